"""What a quantised KV cache costs in quality: perplexity, greedy tokens, and prefilling against decoding.

    python bench/kv_quality.py --model FOLDER [--json FILE]

The model in the folder (SmolLM2-135M, see `python -m tenora_engine prepare`), and the same in Qwen2's shape, with a
bias on its K projection. As in the models of that family, the bias is large in the pairs of dimensions that RoPE turns
slowly. There it adds nearly the same to all scores of a query, so that the model says nearly what it said without it:
what a quantised cache makes of it is its own loss. Two such models: one with the sizes of Qwen2.5-7B, whose first and
last layer have biases of 27 and 41 (root mean square of the elements; norms of 605 and 921 over 512 of them) and whose
layers between have about 1 (22 over 512), as measured in llama.cpp's issue 21385; and one with 20 in every layer, which
is harder than any model that we know of.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from tenora_adapters.base import weight_files
from tenora_engine.kernels import REFERENCE
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.kv import allocate_kv
from tenora_engine.lora.weights import DeviceSlots
from tenora_engine.model.decoder import Batch, Decoder
from tenora_engine.model.hf_config import read_spec
from tenora_engine.model.kv_format import KvFormat, kv_format
from tenora_engine.model.weights import load_weights

TEXT: Final = Path(__file__).with_name("texts") / "lighthouse.txt"
CPU: Final = torch.device("cpu")
BLOCK_SIZE: Final = 16
CHUNK: Final = 128  # tokens of a prefilling step
DECODED: Final = 64  # tokens at the end that are computed one by one too
FORMATS: Final = {"plain": torch.float32, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


@dataclass(frozen=True)
class Quality:
    model: str
    cache: str
    perplexity: float
    loss_percent: float  # of perplexity, against the plain cache
    greedy_percent: float  # of positions with the plain cache's best token
    mean_difference: float  # of the text's log-probabilities, against the plain cache
    decode_gap: float  # largest difference of a log-probability between prefilling and decoding


@dataclass(frozen=True)
class Reading:
    logprobs: Tensor  # [T - 1], of each token after those before it
    best: Tensor  # [T - 1], the token that was likeliest in its place


class Model:
    def __init__(self, folder: Path) -> None:
        self.spec = read_spec(folder)
        weights = load_weights(weight_files(folder), self.spec, torch.float32, CPU, REFERENCE.make_linear)
        self.decoder = Decoder(self.spec, weights, REFERENCE)
        self._adapters = DeviceSlots(1, self.spec, REFERENCE, torch.float32, CPU).adapters

    def format(self, dtype: torch.dtype) -> KvFormat:
        return kv_format(dtype, self.spec, self.decoder.weights)

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], kv: KvFormat, singles: int = 0) -> Reading:
        """In chunks, the last `singles` tokens one by one."""
        spec, num_tokens = self.spec, len(tokens)
        num_blocks = -(-num_tokens // BLOCK_SIZE)
        cache = allocate_kv(
            spec.num_layers, num_blocks, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim, kv.dtype, CPU, kv.key_offsets
        )
        add_lora = REFERENCE.prepare_lora([], CPU)
        ids = torch.tensor(tokens)
        logprobs, best = [], []
        for start, end in _steps(num_tokens, singles):
            attention = AttentionBatch([Span(0, end - start, end, range(1, num_blocks + 1))], BLOCK_SIZE)
            batch = Batch(
                token_ids=ids[start:end],
                positions=torch.arange(start, end),
                places=torch.arange(start, end) + BLOCK_SIZE,  # behind the null block
                attention=REFERENCE.prepare_attention(attention, CPU, torch.float32),
                add_lora=add_lora,
            )
            hidden = self.decoder.forward(batch, cache, self._adapters)
            logits = self.decoder.logits(hidden, add_lora, self._adapters)[: num_tokens - 1 - start]
            following = ids[start + 1 : end + 1, None]
            logprobs.append(logits.log_softmax(-1).gather(1, following).flatten())
            best.append(logits.argmax(-1))
        return Reading(torch.cat(logprobs), torch.cat(best))


def _steps(num_tokens: int, singles: int) -> Iterator[tuple[int, int]]:
    chunked = num_tokens - singles
    for start in range(0, chunked, CHUNK):
        yield start, min(start + CHUNK, chunked)
    for start in range(chunked, num_tokens):
        yield start, start + 1


def with_key_bias(folder: Path, out: Path, first: float, between: float, last: float) -> Path:
    """The model in Qwen2's shape: biases on q and v of zero, on k of these sizes (root mean square of a layer's
    elements), nearly all of it in the quarter of the pairs that turn slowest."""
    config = json.loads((folder / "config.json").read_text())
    heads, head_dim = config["num_key_value_heads"], config["hidden_size"] // config["num_attention_heads"]
    half = head_dim // 2
    generator = torch.Generator().manual_seed(1)
    spread = torch.full((half,), 0.015)
    spread[-half // 4 :] = 2.0  # whose root mean square over all pairs is 1
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        tensors |= load_file(file)
    num_layers = config["num_hidden_layers"]
    for layer, size in enumerate([first, *[between] * (num_layers - 2), last]):
        attention = f"model.layers.{layer}.self_attn"
        tensors[f"{attention}.q_proj.bias"] = torch.zeros(config["hidden_size"])
        tensors[f"{attention}.v_proj.bias"] = torch.zeros(heads * head_dim)
        bias = torch.randn(heads, 2, half, generator=generator) * spread * size
        tensors[f"{attention}.k_proj.bias"] = bias.flatten()
    out.mkdir()
    save_file(tensors, out / "model.safetensors")
    changed = config | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    (out / "config.json").write_text(json.dumps(changed))
    shutil.copy(folder / "tokenizer.json", out)
    return out


def measure(name: str, folder: Path, tokens: Sequence[int]) -> Iterator[Quality]:
    model = Model(folder)
    plain = model.read(tokens, KvFormat(torch.float32))
    formats = {label: model.format(dtype) for label, dtype in FORMATS.items()}
    for label, kv in list(formats.items()):
        if kv.key_offsets is not None:
            formats[f"{label}, no offset"] = KvFormat(kv.dtype)
    for label, kv in formats.items():
        read = plain if label == "plain" else model.read(tokens, kv)
        decoded = model.read(tokens, kv, singles=DECODED)
        perplexity, of_plain = (torch.exp(-reading.logprobs.mean()).item() for reading in (read, plain))
        yield Quality(
            model=name,
            cache=label,
            perplexity=perplexity,
            loss_percent=100 * (perplexity / of_plain - 1),
            greedy_percent=100 * (read.best == plain.best).float().mean().item(),
            mean_difference=(read.logprobs - plain.logprobs).abs().mean().item(),
            decode_gap=(read.logprobs - decoded.logprobs).abs().max().item(),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model, with its tokenizer")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, help="of the text, from its beginning; default: all")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    tokens = tokenizer.encode(options.text.read_text()).ids[: options.tokens]
    print(f"{len(tokens)} tokens of {options.text.name}, computed in fp32")
    columns = ("perplexity", "loss %", "greedy %", "mean diff", "decode gap")
    print(f"{'model':28} {'cache':16}", *(f"{column:>10}" for column in columns))
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        models = {
            "plain": options.model,
            "K bias as Qwen2.5": with_key_bias(options.model, Path(scratch) / "qwen", 27.0, 1.0, 41.0),
            "K bias everywhere": with_key_bias(options.model, Path(scratch) / "hard", 20.0, 20.0, 20.0),
        }
        for name, folder in models.items():
            for q in measure(name, folder, tokens):
                found.append(q)
                print(
                    f"{q.model:28} {q.cache:16} {q.perplexity:10.4f} {q.loss_percent:10.3f} "
                    f"{q.greedy_percent:10.2f} {q.mean_difference:10.4f} {q.decode_gap:10.1e}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps([asdict(quality) for quality in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
