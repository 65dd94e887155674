import { Link, type LinkProps } from "@tanstack/react-router";

interface TabLink {
  label: string;
  link: LinkProps;
}

/** Tabs that are places of their own: each has a URL, so they are links and not a tab list. */
export function TabLinks({ label, tabs }: { label: string; tabs: readonly TabLink[] }) {
  return (
    <nav aria-label={label} className="mb-5 flex gap-1 overflow-x-auto border-b border-border">
      {tabs.map((tab) => (
        <Link
          key={tab.label}
          {...tab.link}
          className="-mb-px border-b-2 px-3 py-2 whitespace-nowrap transition-colors"
          activeProps={{ className: "border-accent font-medium text-foreground" }}
          inactiveProps={{ className: "border-transparent text-muted hover:text-foreground" }}
        >
          {tab.label}
        </Link>
      ))}
    </nav>
  );
}
