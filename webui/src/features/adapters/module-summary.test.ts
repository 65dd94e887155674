import { expect, test } from "vitest";

import { moduleSummary } from "./module-summary";

const lora = (module: string, rank: number) => ({ module, rank, scaling: 2, delta_norm: 1 });

test("one rank for all, or the range", () => {
  const q = lora("model.layers.0.self_attn.q_proj", 8);
  expect(moduleSummary([q])).toBe("1 module (q_proj), rank 8");
  expect(moduleSummary([q, lora("model.layers.0.mlp.up_proj", 16), lora("model.layers.1.self_attn.q_proj", 8)])).toBe(
    "3 modules (q_proj, up_proj), rank 8 to 16",
  );
});
