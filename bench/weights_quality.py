"""What fewer bits cost in quality: perplexity and log-probabilities of a text, against fp32 on torch.

python bench/weights_quality.py --model FOLDER
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from kv_quality import BLOCK_SIZE, CHUNK, CPU, TEXT, Reading
from tokenizers import Tokenizer

from tenora_adapters.base import weight_files
from tenora_engine.cpu.native import native_for
from tenora_engine.kernels import REFERENCE, Kernels
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.kv import allocate_kv
from tenora_engine.lora.weights import DeviceSlots
from tenora_engine.model.decoder import Batch, Decoder
from tenora_engine.model.hf_config import read_spec
from tenora_engine.model.weights import load_weights


@torch.inference_mode()
def read(folder: Path, tokens: Sequence[int], kernels: Kernels, dtype: torch.dtype) -> Reading:
    spec = read_spec(folder)
    decoder = Decoder(spec, load_weights(weight_files(folder), spec, dtype, CPU, kernels.make_linear), kernels)
    adapters = DeviceSlots(1, spec, kernels, dtype, CPU).adapters
    num_blocks = -(-len(tokens) // BLOCK_SIZE)
    cache = allocate_kv(spec.num_layers, num_blocks, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim, dtype, CPU)
    nothing = kernels.prepare_lora([], CPU)
    ids = torch.tensor(tokens)
    logprobs, best = [], []
    for start in range(0, len(tokens), CHUNK):
        end = min(start + CHUNK, len(tokens))
        spans = [Span(0, end - start, end, range(1, num_blocks + 1))]
        attention = kernels.prepare_attention(AttentionBatch(spans, BLOCK_SIZE), CPU, dtype)
        positions = torch.arange(start, end)
        batch = Batch(ids[start:end], positions, positions + BLOCK_SIZE, attention, nothing)
        hidden = decoder.forward(batch, cache, adapters)
        logits = decoder.logits(hidden, nothing, adapters)[: len(tokens) - 1 - start]
        logprobs.append(logits.log_softmax(-1).gather(1, ids[start + 1 : end + 1, None]).flatten())
        best.append(logits.argmax(-1))
    return Reading(torch.cat(logprobs), torch.cat(best))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model, with its tokenizer")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    native = native_for(options.threads)
    if native is None:
        raise SystemExit("the native library was not built")
    tokens = Tokenizer.from_file(str(options.model / "tokenizer.json")).encode(options.text.read_text()).ids
    sides = {
        "torch, fp32": (REFERENCE, torch.float32),
        "native, fp32": (native.kernels, torch.float32),
        "torch, bf16": (REFERENCE, torch.bfloat16),
        "native, bf16": (native.kernels, torch.bfloat16),
        "native, bf16, weights in int8": (native.int8_kernels, torch.bfloat16),
    }
    print(f"{len(tokens)} tokens of {options.text.name}")
    print(f"{'':30} {'perplexity':>10} {'loss %':>8} {'greedy %':>9} {'mean diff':>10} {'max diff':>9}")
    truth: Reading | None = None
    for name, (kernels, dtype) in sides.items():
        reading = read(options.model, tokens, kernels, dtype)
        truth = truth or reading
        perplexity, of_truth = (torch.exp(-r.logprobs.mean()).item() for r in (reading, truth))
        same = 100 * (reading.best == truth.best).float().mean().item()
        gaps = (reading.logprobs - truth.logprobs).abs()
        print(
            f"{name:30} {perplexity:10.4f} {100 * (perplexity / of_truth - 1):8.3f} {same:9.2f} "
            f"{gaps.mean().item():10.5f} {gaps.max().item():9.5f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
