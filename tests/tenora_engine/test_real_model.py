"""SmolLM2-135M and every adapter in `examples/adapters` against transformers + PEFT in fp32: greedy for 64 tokens, and
the log-probability of every token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from engine_under_test import EngineUnderTest, Oracle, random_adapter, store_adapter
from tokenizers import Tokenizer

from tenora_adapters.base import read_base_model
from tenora_adapters.blobs import FolderStore
from tenora_engine.wire import AdapterUse

NUM_TOKENS = 64
TOLERANCE = 1e-4  # of a log-probability
QUESTIONS = ("What is the capital of France?", "Tell me about the sea.", "How do I boil an egg?")


@dataclass(frozen=True)
class RealWorld:
    engine: EngineUnderTest
    digests: dict[str | None, str | None]
    oracle: Oracle
    prompts: dict[str, list[int]]  # by question


def _adapter_folders(repository: Path, model: Path, scratch: Path) -> dict[str, Path]:
    """The demo adapters, and one whose every number is random: it covers what training leaves near zero."""
    demo = {
        folder.name: folder for folder in sorted((repository / "examples" / "adapters").glob("*/")) if folder.is_dir()
    }
    assert len(demo) >= 2, "the demo adapters are part of the repository"
    return demo | {"random": random_adapter(model, scratch / "random", rank=8, seed=1, spread=0.05)}


@pytest.fixture(scope="module")
def real(repository: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealWorld]:
    scratch = tmp_path_factory.mktemp("real")
    folders = _adapter_folders(repository, model_folder, scratch)
    base, store = read_base_model(model_folder), FolderStore(scratch / "blobs")
    digests: dict[str | None, str | None] = {name: store_adapter(store, path, base) for name, path in folders.items()}
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    prompts = {
        question: tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
        for question in QUESTIONS
    }
    engine = EngineUnderTest(model_folder, store)
    yield RealWorld(engine, {None: None} | digests, Oracle(model_folder, folders), prompts)
    engine.close()


def test_greedy_tokens_equal_peft_alone(real: RealWorld):
    """One request at a time. The answers differ, so that no adapter was left out."""
    answers = []
    for name, digest in real.digests.items():
        prompt = real.prompts[QUESTIONS[0]]
        answers.append(real.engine.ask(prompt, [] if digest is None else [digest], max_tokens=NUM_TOKENS).text)
        assert len(answers[-1]) == NUM_TOKENS
        assert real.oracle.is_greedy(prompt, answers[-1], name), name
    assert len(set(map(tuple, answers))) == len(answers)


def test_greedy_tokens_equal_peft_mixed(real: RealWorld):
    """Base and all adapters in one batch, every question, next to each other."""
    asked: dict[str, tuple[str | None, list[int]]] = {}
    for prompt in real.prompts.values():
        for name, digest in real.digests.items():
            request_id = real.engine.submit(prompt, [] if digest is None else [digest], max_tokens=NUM_TOKENS)
            asked[request_id] = (name, prompt)
    answers = real.engine.finish()
    for request_id, (name, prompt) in asked.items():
        assert len(answers[request_id].text) == NUM_TOKENS
        assert real.oracle.is_greedy(prompt, answers[request_id].text, name), (name, prompt)
    real.engine.assert_at_rest()


def worst_difference(real: RealWorld, name: str | None, scale: float = 1.0) -> float:
    """Of the log-probability of each token, teacher-forced, over all questions, three times each."""
    tokens = [token for prompt in real.prompts.values() for token in prompt] * 3
    digest = real.digests[name]
    uses = [] if digest is None else [AdapterUse(digest, scale)]
    told = real.engine.ask(tokens, uses, max_tokens=0, prompt_logprobs=0).prompt_logprobs
    assert told is not None
    got = torch.tensor([entry.logprob for entry in told if entry is not None])
    want = real.oracle.logprobs(tokens, name)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    assert len(got) == len(tokens) - 1 > 100
    return float((got - want).abs().max())


def test_every_position_has_pefts_logprob(real: RealWorld):
    for name in real.digests:
        assert worst_difference(real, name) < TOLERANCE, name


def test_a_wrong_scale_fails_the_gate(real: RealWorld):
    """The positive control, for each adapter."""
    for name in real.digests.keys() - {None}:
        assert worst_difference(real, name, scale=1.1) > TOLERANCE, name
