import { useQuery } from "@tanstack/react-query";

import { EmptyNote } from "@/components/notes";
import { Panel } from "@/components/data-table";
import { PageHeader } from "@/components/page-header";
import { QueryBoundary } from "@/components/query-boundary";

import { enginesQuery } from "./api/list-engines";
import { EngineCard } from "./engine-card";

export function EnginesPage() {
  const query = useQuery(enginesQuery);
  return (
    <>
      <PageHeader title="Engines" description="The replicas that answer, as the gateways hear from them now." />
      <QueryBoundary query={query}>
        {({ items }) =>
          items.length === 0 ? (
            <Panel>
              <EmptyNote title="No engine reports">
                Requests wait for one for a while, then fail. <code className="font-mono text-xs">tenora status</code>{" "}
                says what runs on an embedded installation.
              </EmptyNote>
            </Panel>
          ) : (
            <div className="grid gap-4 lg:grid-cols-2">
              {items.map((engine) => (
                <EngineCard key={engine.engine_id} engine={engine} />
              ))}
            </div>
          )
        }
      </QueryBoundary>
    </>
  );
}
