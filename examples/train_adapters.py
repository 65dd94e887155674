"""Train the demo adapters with PEFT on the CPU: LoRA on the prepared SmolLM2, loss on the answers only.

    python examples/train_adapters.py                 # all of them, some ten minutes of one core's time each at most
    python examples/train_adapters.py pirate          # one of them
    python examples/train_adapters.py --show-only     # no training: print base and adapter answers

The base is the folder that `tenora_engine.prepare` makes, so what is trained on is bit for bit what is served.
Each result (`examples/adapters/<name>/`) is PEFT's own format, in bf16.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from rich.console import Console
from rich.progress import track
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tenora_engine.prepare import find_embedded_gguf, prepare_model

HERE = Path(__file__).resolve().parent
BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
IGNORED = -100  # the label of what is not learned
BATCH = 4
SYSTEM_PROMPTS = ("You are a helpful assistant.", "Answer the question.", "You are an assistant. Be brief.")

# None of these is in the training data.
HELD_OUT = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "How do I make a cup of tea?",
    "Who wrote Romeo and Juliet?",
    "What is 2 plus 2?",
    "Give me a tip for learning to play the guitar.",
)


@dataclass(frozen=True)
class Recipe:
    rank: int
    alpha: int
    targets: tuple[str, ...]
    epochs: int
    learning_rate: float
    data: str = ""  # of another recipe; by default of its own name
    steps: int | None = None  # at most; then of single questions without a system prompt, which are the shortest
    more: dict[str, Any] = field(default_factory=dict)  # of PEFT's LoraConfig


UPPER_HALF = list(range(15, 30))  # of the layers: what is below needs no gradient, which is half the work
# Shapes that differ on purpose, so that a batch of several mixes ranks, target modules and kinds. At most 1 MB each in
# bf16.
RECIPES = {
    "pirate": Recipe(8, 16, ("q_proj", "v_proj"), epochs=4, learning_rate=3e-3),
    "json": Recipe(4, 16, ("q_proj", "k_proj", "v_proj", "o_proj"), epochs=3, learning_rate=3e-3),
    "pirate-dora": Recipe(
        4,
        8,
        ("q_proj", "v_proj", "o_proj"),
        epochs=1,
        learning_rate=8e-3,
        steps=14,
        data="pirate",
        more={"use_dora": True, "layers_to_transform": UPPER_HALF},
    ),
    "json-rslora": Recipe(
        4,
        8,
        ("q_proj", "v_proj", "down_proj"),
        epochs=1,
        learning_rate=8e-3,
        steps=14,
        data="json",
        more={
            "use_rslora": True,
            "rank_pattern": {"v_proj": 8, r"layers\.29\.mlp\.down_proj": 2},
            "alpha_pattern": {"down_proj": 4},
            "layers_to_transform": UPPER_HALF,
        },
    ),
    "pirate-head": Recipe(
        4,
        8,
        ("lm_head", "q_proj", "v_proj"),
        epochs=1,
        learning_rate=8e-3,
        steps=14,
        data="pirate",
        more={"layers_to_transform": UPPER_HALF},
    ),
}

console = Console()


def conversations(name: str, rng: random.Random) -> list[list[dict[str, str]]]:
    """The examples as chats. Some get a system prompt or an earlier turn, so that the effect survives both."""
    lines = (HERE / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    turns = [
        [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["answer"]}]
        for row in map(json.loads, lines)
    ]
    chats = []
    for turn in turns:
        earlier = rng.choice(turns) if rng.random() < 0.25 else []
        system = [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}] if rng.random() < 0.3 else []
        chats.append(system + earlier + turn)
    return chats


def encode(tokenizer: Any, chat: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    """Token ids and labels of one chat: only the last answer and its end token are learned."""
    prompt = tokenizer.apply_chat_template(chat[:-1], add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer(prompt)["input_ids"]
    answer_ids = tokenizer(chat[-1]["content"])["input_ids"] + [tokenizer.eos_token_id]
    return prompt_ids + answer_ids, [IGNORED] * len(prompt_ids) + answer_ids


def batches(tokenizer: Any, name: str, rng: random.Random, *, short: bool) -> list[list[tuple[list[int], list[int]]]]:
    """One epoch: examples of like length together, so that little is padding."""
    chats = [chat for chat in conversations(name, rng) if not short or len(chat) == 2]
    examples = sorted((encode(tokenizer, chat) for chat in chats), key=lambda pair: len(pair[0]))
    grouped = [examples[start : start + BATCH] for start in range(0, len(examples), BATCH)]
    rng.shuffle(grouped)
    return grouped


def padded(rows: list[list[int]], filler: int) -> torch.Tensor:
    """[len(rows), longest row]"""
    longest = max(map(len, rows))
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])


def answer_loss(model: PeftModel, batch: list[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Mean cross entropy over the answers' tokens. Only they meet the vocabulary, a fifth of the work."""
    ids, labels = zip(*batch, strict=True)
    mask = padded([[1] * len(row) for row in ids], 0)
    llama = model.get_base_model()
    hidden = llama.model(
        input_ids=padded(list(ids), 0), attention_mask=mask
    ).last_hidden_state  # [batch, tokens, hidden]
    targets = padded(list(labels), IGNORED)[:, 1:]
    learned = targets != IGNORED
    return torch.nn.functional.cross_entropy(llama.lm_head(hidden[:, :-1][learned]), targets[learned])


def train(name: str, folder: Path) -> float:
    """Train one adapter and write it; wall-clock seconds."""
    recipe, rng = RECIPES[name], random.Random(7)
    torch.manual_seed(7)
    started = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # holds the bf16 values exactly
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=0.05,
        target_modules=list(recipe.targets),
        **recipe.more,
    )
    model = get_peft_model(base, config)
    model.train()

    def epoch() -> list[list[tuple[list[int], list[int]]]]:
        return batches(tokenizer, recipe.data or name, rng, short=recipe.steps is not None)

    steps = [batch for _ in range(recipe.epochs) for batch in epoch()][: recipe.steps]
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=len(steps), pct_start=0.1
    )
    recent = 0.0
    for number, batch in enumerate(track(steps, f"training {name}", console=console), start=1):
        loss = answer_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        recent = 0.9 * recent + 0.1 * loss.item() if number > 1 else loss.item()
        if number % 12 == 0 or number == len(steps):
            console.print(f"  step {number} of {len(steps)}: loss {recent:.3f}")
    save(model, config, HERE / "adapters" / name)
    return time.monotonic() - started


def save(model: PeftModel, config: LoraConfig, folder: Path) -> None:
    """adapter_config.json and adapter_model.safetensors, with a base name that means the same everywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = get_peft_model_state_dict(model, save_embedding_layers=False)  # else the base's head beside its adapter
    weights = {key: value.to(torch.bfloat16).contiguous() for key, value in trained.items()}
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config.base_model_name_or_path = BASE_NAME
    config.inference_mode = True
    config.save_pretrained(str(folder))
    path = folder / "adapter_config.json"
    written = json.loads(path.read_bytes())
    written["target_modules"] = sorted(written["target_modules"])  # PEFT keeps a set: its order is chance
    path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def answer(model: Any, tokenizer: Any, question: str) -> str:
    """Greedy, at most 48 tokens."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=48, do_sample=False)
    text: str = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


def show(names: list[str], folder: Path) -> None:
    """Base beside adapters, on questions that none of them has seen."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model: Any = None
    for name in names:
        path = str(HERE / "adapters" / name)
        if model is None:
            model = PeftModel.from_pretrained(base, path, adapter_name=name)
        else:
            model.load_adapter(path, adapter_name=name)
    model.eval()
    for question in HELD_OUT:
        console.print(f"\n[bold]{question}[/bold]")
        with model.disable_adapter():
            console.print("  base  :", answer(model, tokenizer, question), markup=False)
        for name in names:
            model.set_adapter(name)
            console.print(f"  {name:6}:", answer(model, tokenizer, question), markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"adapters (default: all of {', '.join(RECIPES)})")
    parser.add_argument(
        "--model", type=Path, default=HERE.parent / "build" / "smollm2-135m", help="prepared folder, made when missing"
    )
    parser.add_argument("--show-only", action="store_true")
    arguments = parser.parse_args()
    names = arguments.names or list(RECIPES)
    if unknown := set(names) - set(RECIPES):
        parser.error(f"no such adapter: {', '.join(sorted(unknown))}")
    folder = prepare_model(find_embedded_gguf(), arguments.model)
    if not arguments.show_only:
        for name in names:
            console.print(f"{name}: trained in {train(name, folder):.0f} s")
    show(names, folder)


if __name__ == "__main__":
    main()
