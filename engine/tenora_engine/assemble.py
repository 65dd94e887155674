"""Puts an engine together from its configuration: the only place where all parts meet."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer

from tenora_adapters.base import BaseModel, BaseModelError, read_base_model, weight_files
from tenora_adapters.blobs import BlobError, open_store
from tenora_engine.admission import Capacity
from tenora_engine.block_copies import BlockCopies
from tenora_engine.config import CpuKernels, Device, Dtype, EngineConfig, Weights
from tenora_engine.core import EngineCore
from tenora_engine.cpu.native import native_for
from tenora_engine.cpu.recorded import record
from tenora_engine.errors import StartError
from tenora_engine.executor import Executor
from tenora_engine.grammar.compiler import GrammarCompiler
from tenora_engine.grammar.grammars import Grammars
from tenora_engine.grammar.vocabulary import read_vocabulary
from tenora_engine.kernels import REFERENCE, Kernels, kernels_for
from tenora_engine.kernels.kv import LayerKv, allocate_kv, kv_token_bytes
from tenora_engine.kernels.launch_table import LaunchTableError
from tenora_engine.kv.prefix_cache import PrefixCache
from tenora_engine.lora.disk_cache import DiskCache
from tenora_engine.lora.dora import BaseWeights
from tenora_engine.lora.files import FileSource, StoreFiles
from tenora_engine.lora.loader import AdapterLoader, AdapterSource
from tenora_engine.lora.residency import Residency, Room
from tenora_engine.lora.weights import DeviceSlots
from tenora_engine.model.decoder import Adapters, Decoder
from tenora_engine.model.hf_config import read_spec
from tenora_engine.model.kv_format import KvFormat, choose_kv_dtype, kv_format
from tenora_engine.model.spec import ModelSpec, UnsupportedModel
from tenora_engine.model.weights import load_weights
from tenora_engine.runner import Runner
from tenora_engine.scheduler import Limits, Scheduler, SwapCost
from tenora_engine.speculation import Speculator

log = logging.getLogger(__name__)

# Of the machine's memory, for the KV cache where --kv-blocks does not say. Its pages are touched only when used.
_KV_SHARE: Final = 1 / 8
# Of what a GPU has free once it has the base's weights: the rest is for adapters, graphs and a step's own tensors.
_FREE_GPU_SHARE: Final = 0.75


@dataclass(frozen=True, slots=True)
class Engine:
    core: EngineCore
    executor: Executor
    loader: AdapterLoader
    compiler: GrammarCompiler
    cache: PrefixCache

    def close(self) -> None:
        self.core.close()
        self.executor.close()
        self.loader.close()
        self.compiler.close()


def build_engine(
    config: EngineConfig,
    wake: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Engine:
    """Load the model and make everything ready to serve. Raises StartError.

    `wake` is called from another thread when an adapter has been loaded and `core.step` should be called.
    """
    device = choose_device(config.device)
    threads = config.threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    started = clock()
    kernels = choose_kernels(config, device, threads)
    dtype = choose_dtype(config.dtype, kernels)
    try:
        spec = read_spec(config.model)
        base = read_base_model(config.model)
        weights = load_weights(weight_files(config.model), spec, dtype, device, kernels.make_linear)
        decoder = Decoder(spec, weights, kernels)
        base_weights = BaseWeights(weight_files(config.model))
        files = _adapter_files(config)
    except (UnsupportedModel, BaseModelError, BlobError, SafetensorError, OSError, ValueError) as error:
        raise StartError(str(error)) from error

    kv = kv_format(choose_kv_dtype(config.kv_dtype, dtype, device), spec, decoder.weights)
    max_model_len = min(config.max_model_len or spec.context_length, spec.context_length)
    num_blocks = config.kv_blocks or _blocks_by_memory(spec, config, kv.dtype, max_model_len, device)
    cache = PrefixCache(num_blocks, config.block_size, enabled=config.prefix_cache)
    memory = allocate_kv(
        spec.num_layers,
        num_blocks,
        config.block_size,
        spec.num_kv_heads,
        spec.head_dim,
        kv.dtype,
        device,
        kv.key_offsets,
    )
    slots = DeviceSlots(config.adapter_slots, spec, decoder.kernels, dtype, device)
    loader = AdapterLoader(AdapterSource(files, base, spec, dtype, base_weights), slots.place, wake)
    residency = Residency(slots, _adapter_room(config), loader, clock, files_are_local=files.is_local)
    if device.type == "cpu":
        decoder = record(decoder, memory, slots.adapters, config.max_batch_tokens, threads)
    elif config.cuda_graphs and kernels is not REFERENCE:
        decoder = _graphed(decoder, memory, slots.adapters, config.max_sequences, max_model_len)
    runner = Runner(decoder, memory, config.block_size, slots.adapters)
    executor = Executor(runner, BlockCopies(memory, config.host_kv_blocks), config.block_size, residency.slot_of, clock)
    speculator = Speculator(config.draft_tokens, _tokenize(config.model)) if config.draft_tokens else None
    vocabulary = read_vocabulary(config.model, spec.vocab_size, tuple(spec.eos_token_ids))
    compiler = GrammarCompiler(vocabulary, config.grammar_seconds, config.grammar_memory_mb << 20, wake)
    core = EngineCore(
        capacity=_capacity(config, spec, base, max_model_len, num_blocks, kv),
        scheduler=Scheduler(
            _limits(config, num_blocks),
            cache,
            residency,
            speculator,
            host_blocks=config.host_kv_blocks,
            swap_cost=SwapCost(config.swap_block_tokens),
        ),
        residency=residency,
        grammars=Grammars(vocabulary, compiler, config.grammar_cache_mb << 20),
        executor=executor,
        clock=clock,
        max_waiting=config.max_waiting,
        plan_ahead=device.type == "cuda" if config.async_step is None else config.async_step,
        speculator=speculator,
    )
    log.info(
        "base %s in %s on %d threads, %d KV blocks of %d tokens, ready after %.1f s",
        base.fingerprint[:12],
        dtype,
        threads,
        num_blocks,
        config.block_size,
        clock() - started,
    )
    return Engine(core, executor, loader, compiler, cache)


def _tokenize(model: Path) -> Callable[[str], list[int]]:
    """The base's tokens of a text; none where the model's folder has no tokenizer."""
    file = model / "tokenizer.json"
    if not file.exists():
        return lambda text: []
    tokenizer = Tokenizer.from_file(str(file))

    def tokenize(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return tokenize


def choose_kernels(config: EngineConfig, device: torch.device, num_threads: int) -> Kernels:
    """Raises StartError when what was asked for is not there."""
    try:
        kernels = REFERENCE if config.cpu_kernels is CpuKernels.TORCH else kernels_for(device, num_threads)
    except LaunchTableError as error:
        raise StartError(str(error)) from error
    if kernels is REFERENCE and config.cpu_kernels is CpuKernels.NATIVE:
        raise StartError("the native library was not built: install where a C++ compiler is, see docs/cpu-speed.md")
    if kernels is REFERENCE:
        log.warning("computing with torch alone: several times slower than the native library, see docs/cpu-speed.md")
    if config.weights is Weights.INT8:
        native = native_for(num_threads)
        if native is None or kernels is not native.kernels:
            raise StartError("weights in int8 need the native library")
        return native.int8_kernels
    return kernels


def choose_dtype(asked: Dtype, kernels: Kernels) -> torch.dtype:
    """bf16 is never slower than fp32 on the native library. On torch alone only where the CPU multiplies it: without
    AVX512-BF16 or AMX, its bf16 products of more than one row were measured 4 to 10 times slower than fp32 ones."""
    if asked is not Dtype.AUTO:
        return torch.bfloat16 if asked is Dtype.BF16 else torch.float32
    multiplies = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if multiplies or kernels is not REFERENCE else torch.float32


def choose_device(asked: Device) -> torch.device:
    """Raises StartError when there is no GPU where one is asked for."""
    there = torch.cuda.is_available()
    if asked is Device.CUDA and not there:
        raise StartError("no GPU that this torch can use")
    return torch.device("cuda", 0) if there and asked is not Device.CPU else torch.device("cpu")


def _adapter_files(config: EngineConfig) -> FileSource:
    """Raises BlobError and OSError."""
    store = open_store(config.blobs)
    if config.adapter_cache is None:
        return StoreFiles(store)
    return DiskCache(store, config.adapter_cache, config.adapter_cache_mb << 20)


def _adapter_room(config: EngineConfig) -> Room:
    return Room(
        config.adapter_slots,
        config.host_adapters,
        config.host_adapter_mb << 20,
        inf if config.adapter_mb is None else config.adapter_mb << 20,
    )


def _graphed(decoder: Decoder, memory: Sequence[LayerKv], adapters: Adapters, max_rows: int, context: int) -> Decoder:
    from tenora_engine.model.graphs import CudaRecorder, GraphedDecoder

    graphed = GraphedDecoder(decoder, memory, adapters, max_rows=max_rows, context=context, recorder=CudaRecorder())
    graphed.warm_up()
    return graphed


def _blocks_by_memory(
    spec: ModelSpec, config: EngineConfig, kv_dtype: torch.dtype, max_model_len: int, device: torch.device
) -> int:
    """At least one sequence of full length; at most what all sequences could ever fill."""
    token_bytes = spec.num_layers * kv_token_bytes(spec.num_kv_heads, spec.head_dim, kv_dtype)
    block_bytes = config.block_size * token_bytes
    if device.type == "cuda":
        memory = torch.cuda.mem_get_info(device)[0] * _FREE_GPU_SHARE
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _KV_SHARE
    per_sequence = -(-max_model_len // config.block_size)
    return max(per_sequence, min(int(memory) // block_bytes, per_sequence * config.max_sequences))


def _tenant_blocks(config: EngineConfig, num_blocks: int) -> int:
    return max(1, int(num_blocks * config.tenant_kv_share))


def _limits(config: EngineConfig, num_blocks: int) -> Limits:
    return Limits(
        max_sequences=config.max_sequences,
        max_batch_tokens=config.max_batch_tokens,
        tenant_blocks=None if config.tenant_kv_share == 1 else _tenant_blocks(config, num_blocks),
        tenant_adapters=config.tenant_adapter_slots,
        patience_s=config.patience_s,
        batch_patience_s=config.batch_patience_s,
        lead=config.lead_tokens,
    )


def _capacity(
    config: EngineConfig, spec: ModelSpec, base: BaseModel, max_model_len: int, num_blocks: int, kv: KvFormat
) -> Capacity:
    return Capacity(
        base_fingerprint=base.fingerprint,
        vocab_size=spec.vocab_size,
        eos_token_ids=frozenset(spec.eos_token_ids),
        max_model_len=max_model_len,
        kv_tokens=_tenant_blocks(config, num_blocks) * config.block_size,
        kv_dtype=kv.name,
        num_adapter_slots=min(config.adapter_slots, config.tenant_adapter_slots or config.adapter_slots),
    )
