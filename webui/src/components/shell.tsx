import { Link, type LinkProps } from "@tanstack/react-router";
import type { ReactNode } from "react";

import { Logo } from "./logo";

export interface NavItem {
  label: string;
  icon: ReactNode;
  link: LinkProps;
}

interface ShellProps {
  nav: readonly NavItem[];
  account: ReactNode;
  children: ReactNode;
}

/** The frame of every page: navigation at the side, above on a narrow screen. */
export function Shell({ nav, account, children }: ShellProps) {
  return (
    <div className="flex min-h-dvh flex-col md:flex-row">
      <a
        href="#main"
        className="sr-only focus:not-sr-only focus:absolute focus:top-2 focus:left-2 focus:z-10 focus:rounded focus:bg-surface focus:px-3 focus:py-1.5"
      >
        Skip to content
      </a>
      <aside className="flex shrink-0 items-center gap-4 border-border bg-surface px-3 max-md:border-b md:sticky md:top-0 md:h-dvh md:w-56 md:flex-col md:items-stretch md:gap-1 md:border-e md:py-3">
        <Link to="/" className="flex items-center gap-2 px-2 py-2.5 font-semibold tracking-tight md:mb-2">
          <Logo />
          <span className="max-sm:sr-only">Tenora</span>
        </Link>
        <nav aria-label="Main" className="flex flex-1 gap-0.5 md:flex-col">
          {nav.map((item) => (
            <Link
              key={item.label}
              {...item.link}
              className="flex items-center gap-2.5 rounded-md px-2 py-1.5 transition-colors"
              activeProps={{ className: "bg-accent-soft font-medium text-accent-soft-foreground" }}
              inactiveProps={{ className: "text-muted hover:bg-default hover:text-foreground" }}
            >
              {item.icon}
              {item.label}
            </Link>
          ))}
        </nav>
        {account}
      </aside>
      <main id="main" tabIndex={-1} className="min-w-0 flex-1 px-4 py-5 outline-none md:px-8">
        <div className="mx-auto max-w-6xl">{children}</div>
      </main>
    </div>
  );
}
