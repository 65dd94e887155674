import type { ReactNode } from "react";

interface PageHeaderProps {
  title: ReactNode;
  description?: ReactNode;
  actions?: ReactNode;
}

export function PageHeader({ title, description, actions }: PageHeaderProps) {
  return (
    <header className="mb-4 flex flex-wrap items-start justify-between gap-3">
      <div className="min-w-0">
        <h1 className="truncate">{title}</h1>
        {description != null && <p className="mt-0.5 text-muted">{description}</p>}
      </div>
      {actions != null && <div className="flex items-center gap-2">{actions}</div>}
    </header>
  );
}

/** The same, one level down: the head of a tab or a part of a page. */
export function SectionHeader({ title, description, actions }: PageHeaderProps) {
  return (
    <header className="mb-3 flex flex-wrap items-end justify-between gap-3">
      <div>
        <h2>{title}</h2>
        {description != null && <p className="mt-0.5 max-w-2xl text-muted">{description}</p>}
      </div>
      {actions != null && <div className="flex flex-wrap items-end gap-2">{actions}</div>}
    </header>
  );
}
