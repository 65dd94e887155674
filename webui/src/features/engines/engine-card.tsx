import { Meter } from "@heroui/react";
import type { ReactNode } from "react";

import type { Engine } from "@/api/types";
import { Panel } from "@/components/data-table";
import { Digest } from "@/components/digest";
import { StatusChip } from "@/components/status-chip";
import { formatCount } from "@/format/quantities";

export function EngineCard({ engine }: { engine: Engine }) {
  const used = engine.kv_blocks_total - engine.kv_blocks_free;
  return (
    <Panel className="flex flex-col gap-4 p-4">
      <header className="flex items-center justify-between gap-2">
        <h2 className="truncate">{engine.engine_id}</h2>
        {engine.draining ? <StatusChip tone="caution">draining</StatusChip> : <StatusChip tone="good">serving</StatusChip>}
      </header>
      <dl className="grid grid-cols-3 gap-3">
        <Figure label="Running" value={formatCount(engine.running)} />
        <Figure label="Waiting" value={formatCount(engine.waiting)} />
        <Figure label="Tokens to compute" value={formatCount(engine.load_tokens)} />
      </dl>
      <Meter aria-label="KV cache in use" value={used} maxValue={Math.max(engine.kv_blocks_total, 1)} size="sm">
        <div className="mb-1 flex justify-between text-xs">
          <span className="text-muted">KV cache</span>
          <span className="tabular-nums">
            {formatCount(used)} of {formatCount(engine.kv_blocks_total)} blocks of {engine.block_size} tokens
          </span>
        </div>
        <Meter.Track>
          <Meter.Fill />
        </Meter.Track>
      </Meter>
      <div>
        <h3 className="mb-1.5 text-xs text-muted">Resident adapters</h3>
        {engine.adapters.length === 0 ? (
          <p>none: they load at their first request</p>
        ) : (
          <ul className="flex flex-wrap gap-1.5">
            {engine.adapters.map((digest) => (
              <li key={digest} className="rounded border border-border bg-surface-secondary px-1.5 py-0.5">
                <Digest value={digest} />
              </li>
            ))}
          </ul>
        )}
      </div>
      <dl className="flex flex-wrap gap-x-6 gap-y-1 border-t border-separator pt-3 text-xs text-muted">
        <Detail label="Build">{engine.build}</Detail>
        <Detail label="Base">
          <Digest value={engine.base_fingerprint} />
        </Detail>
        <Detail label="Context">{formatCount(engine.max_model_len)} tokens</Detail>
      </dl>
    </Panel>
  );
}

function Figure({ label, value }: { label: string; value: string }) {
  return (
    <div>
      <dt className="text-xs text-muted">{label}</dt>
      <dd className="text-lg font-semibold tabular-nums">{value}</dd>
    </div>
  );
}

function Detail({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div className="flex gap-1.5">
      <dt>{label}</dt>
      <dd className="text-foreground">{children}</dd>
    </div>
  );
}
