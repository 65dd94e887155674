"""A real engine on a tiny random Llama, adapters made by PEFT, and transformers + PEFT as the oracle."""

from __future__ import annotations

import io
import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import poison
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tenora_adapters.base import BaseModel
from tenora_adapters.blobs import FolderStore
from tenora_adapters.manifest import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, blob_key, encode_manifest
from tenora_adapters.package import StagedFiles
from tenora_adapters.publish import publish
from tenora_adapters.validate import validate_package
from tenora_engine.assemble import Engine, build_engine
from tenora_engine.config import Dtype, EngineConfig
from tenora_engine.wire import (
    AdapterUse,
    FailCode,
    Failed,
    FinishReason,
    Grammar,
    Output,
    Sampling,
    Submit,
    TokenLogprob,
    Usage,
)

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TINY_VOCAB = 128
ROUTE = b"gateway"


@dataclass(frozen=True)
class World:
    """A base model on disk, its adapters' folders and digests by name, and the blob store that holds them."""

    model: Path
    base: BaseModel
    store: FolderStore
    folders: dict[str, Path]
    digests: dict[str, str]

    def uses(self, name: str | None) -> list[str]:
        """What a request names to get the adapter `name`; None is the base."""
        return [] if name is None else [self.digests[name]]


def tiny_llama(folder: Path, **changes: Any) -> Path:
    """A two-layer Llama with random weights, large enough for clear margins between the best tokens."""
    torch.manual_seed(5)
    settings: dict[str, Any] = {
        "vocab_size": TINY_VOCAB,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "eos_token_id": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(**(settings | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # else all ones, which hides a norm that is forgotten
                parameter.uniform_(0.5, 1.5)
            if name.endswith("bias"):  # else all zeros
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    return folder


def random_adapter(
    base: Path,
    folder: Path,
    *,
    rank: int,
    seed: int,
    targets: Sequence[str] = ALL_LINEAR,
    spread: float = 0.2,
    **settings: Any,
) -> Path:
    """A PEFT adapter with random A and B, strong enough to change what the base says."""
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(targets), task_type="CAUSAL_LM", **settings)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude" in name:  # DoRA's, which are the base's lengths at first
                parameter.mul_(torch.empty_like(parameter).uniform_(0.5, 1.5))
            elif "lora_" in name:
                parameter.normal_(0, spread / rank**0.25)
    model.save_pretrained(str(folder), save_embedding_layers=False)  # else the base's lm_head beside the adapter's
    return folder


def store_adapter(store: FolderStore, folder: Path, base: BaseModel, **changes: Any) -> str:
    """Publish a PEFT folder as an upload does, without the check of its numbers; its digest.

    `changes` are made to the manifest: what an upload would never let pass.
    """
    validated = validate_package(StagedFiles(config=folder / CONFIG_FILE, weights=folder / WEIGHTS_FILE), base)
    publish(store, validated)
    manifest = msgspec.structs.replace(validated.manifest, **changes)
    store.put(blob_key(manifest.digest, MANIFEST_FILE), io.BytesIO(encode_manifest(manifest)))
    return manifest.digest


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length}/{seed}").choices(range(3, TINY_VOCAB), k=length)


@dataclass
class Answer:
    """All that one request was told."""

    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=lambda: defaultdict(list))
    finish: dict[int, FinishReason] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    usage: Usage | None = None
    failed: Failed | None = None
    num_terminal: int = 0

    def take(self, event: Output | Failed) -> None:
        assert self.num_terminal == 0, "an event after the terminal one"
        self.usage = event.usage
        if isinstance(event, Failed):
            self.failed = event
            self.num_terminal += 1
            return
        self.tokens[event.choice] += event.token_ids
        self.logprobs[event.choice] += event.logprobs or []
        if event.finish_reason is not None:
            self.finish[event.choice] = event.finish_reason
        if event.prompt_logprobs is not None:
            assert self.prompt_logprobs is None
            self.prompt_logprobs = event.prompt_logprobs
        self.num_terminal += event.final

    @property
    def fail_code(self) -> FailCode:
        assert self.failed is not None
        assert self.num_terminal == 1
        return self.failed.code

    @property
    def text(self) -> list[int]:
        """The tokens of the only choice."""
        assert self.failed is None, self.failed
        assert set(self.tokens) == {0}
        return self.tokens[0]


class EngineUnderTest:
    """An engine core without its socket, and what it told a gateway."""

    def __init__(self, model: Path, store: FolderStore, **options: Any) -> None:
        self._woken = threading.Event()
        settings: dict[str, Any] = {
            "listen": "",
            "model": model,
            "blobs": str(store.root),
            "dtype": Dtype.FP32,
            "threads": 1,
            "kv_blocks": 256,
        }
        self.engine: Engine = build_engine(EngineConfig(**(settings | options)), wake=self._woken.set)
        if poison.WANTED:
            poison.PoisonedBlocks(self.engine)
        self.core = self.engine.core
        self.cache = self.engine.cache
        self.answers: dict[str, Answer] = defaultdict(Answer)
        self._count = 0

    def submit(
        self,
        prompt: Sequence[int],
        adapters: Iterable[str | AdapterUse] = (),
        *,
        salt: bytes = b"tenant",
        tenant: str = "tenant",
        deadline_s: float | None = None,
        base_fingerprint: str | None = None,
        grammar: Grammar | None = None,
        **sampling: Any,
    ) -> str:
        """Submit a greedy request for 16 tokens, unless told otherwise; its request id."""
        self._count += 1
        request_id = f"request-{self._count}"
        uses = tuple(use if isinstance(use, AdapterUse) else AdapterUse(use) for use in adapters)
        defaults: dict[str, Any] = {"max_tokens": 16, "temperature": 0.0}
        self.core.submit(
            Submit(
                request_id=request_id,
                token_ids=list(prompt),
                sampling=Sampling(**(defaults | sampling)),
                tenant=tenant,
                cache_salt=salt,
                base_fingerprint=base_fingerprint or self.core.capacity.base_fingerprint,
                adapters=uses,
                deadline_s=deadline_s,
                grammar=grammar,
            ),
            ROUTE,
        )
        return request_id

    def step(self) -> None:
        self._woken.clear()
        for news in self.core.step().values():
            for event in [*news.outputs, *news.failures]:
                self.answers[event.request_id].take(event)

    def step_when_ready(self) -> None:
        """A step; when it had nothing to do, wait for an adapter or a grammar first."""
        self.step()
        if self.core.idle and self.core.has_requests:
            assert self._woken.wait(60), "nothing to do, and neither adapter nor grammar on its way"

    def finish(self) -> dict[str, Answer]:
        """Step until every request has ended."""
        while self.core.has_requests:
            self.step_when_ready()
        self.step()
        return self.answers

    def ask(self, prompt: Sequence[int], adapters: Iterable[str | AdapterUse] = (), **options: Any) -> Answer:
        """One request, alone."""
        request_id = self.submit(prompt, adapters, **options)
        return self.finish()[request_id]

    def assert_at_rest(self) -> None:
        """Nothing is held by anybody, once what is launched has ended."""
        assert not self.core.has_requests
        self.step()
        assert not self.core.scheduler.has_sequences
        assert self.cache.pool.num_free == self.cache.pool.num_blocks
        assert self.core.residency.num_pins == 0

    def close(self) -> None:
        self.engine.close()


class Oracle:
    """transformers + PEFT in fp32, one process, one adapter at a time."""

    def __init__(self, model: Path, adapters: Mapping[str, Path]) -> None:
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._model: Any = base
        for name, folder in adapters.items():
            if isinstance(self._model, PeftModel):
                self._model.load_adapter(str(folder), adapter_name=name)
            else:
                self._model = PeftModel.from_pretrained(base, str(folder), adapter_name=name)
        self._model.eval()

    def is_greedy(self, prompt: Sequence[int], answer: Sequence[int], adapter: str | None) -> bool:
        """Whether greedy decoding gives `answer`: each of its tokens is the best one after those before it."""
        best = self.logprobs([*prompt, *answer[:-1]], adapter).argmax(-1).tolist()
        return best[len(prompt) - 1 :] == list(answer)

    def logprobs(self, tokens: Sequence[int], adapter: str | None) -> torch.Tensor:
        """Teacher-forced: fp32 [len(tokens), vocab]."""
        with self._using(adapter), torch.inference_mode():
            return self._model(torch.tensor([tokens])).logits[0].float().log_softmax(-1)

    def _using(self, adapter: str | None) -> ExitStack:
        stack = ExitStack()
        if isinstance(self._model, PeftModel):
            if adapter is None:
                stack.enter_context(self._model.disable_adapter())
            else:
                self._model.set_adapter(adapter)
        return stack
