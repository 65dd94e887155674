"""The options of `tenora_engine serve`, from the command line or the environment (`TENORA_ENGINE_<OPTION>`)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Final

ENVIRONMENT_PREFIX: Final = "TENORA_ENGINE_"


class Device(StrEnum):
    """Where the model is computed. `auto`: on the first GPU that torch can use, else on the CPU."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"  # NVIDIA's or AMD's


class Dtype(StrEnum):
    """In which numbers the model is computed. `auto`: bf16 where that is no slower on this machine, else fp32."""

    AUTO = "auto"
    BF16 = "bf16"
    FP32 = "fp32"


class KvDtype(StrEnum):
    """In which numbers keys and values are kept. `auto`: those of the model."""

    AUTO = "auto"
    FP8 = "fp8"  # e4m3
    INT8 = "int8"


class CpuKernels(StrEnum):
    """Who computes on a CPU. `auto`: the native library where it was built, else torch, several times slower."""

    AUTO = "auto"
    NATIVE = "native"
    TORCH = "torch"


class Weights(StrEnum):
    """How the base's linear layers are kept. `int8`: rounded when they are loaded, one scale for each output."""

    MODEL = "model"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    listen: str  # ZeroMQ address to bind: ipc:///file or tcp://127.0.0.1:port
    model: Path  # folder of the base model, Hugging Face layout
    blobs: str  # URL of the blob store, see `tenora_adapters.blobs`
    engine_id: str = "engine-0"
    device: Device = Device.AUTO
    cuda_graphs: bool = True  # a GPU's steps of decoding are launched as a whole
    dtype: Dtype = Dtype.AUTO
    kv_dtype: KvDtype = KvDtype.AUTO
    weights: Weights = Weights.MODEL
    cpu_kernels: CpuKernels = CpuKernels.AUTO
    threads: int | None = None  # None: as many as there are cores
    kv_blocks: int | None = None  # None: from the memory of the machine
    block_size: int = 16  # tokens
    max_sequences: int = 32  # running at once
    max_batch_tokens: int = 128  # in one step; more makes prompts faster and the gaps of running streams longer
    max_waiting: int = 256  # sequences in the queue; beyond it requests are refused as overloaded
    max_model_len: int | None = None  # None: the model's own context length
    adapter_slots: int = 32
    adapter_mb: int | None = None  # of the device's memory, that adapters in slots may take; None: as the slots need
    host_adapters: int = 64  # kept in memory, those in slots included
    host_adapter_mb: int = 4096  # of memory, for these
    adapter_cache: Path | None = None  # folder on a local disk; None: straight from the blob store
    adapter_cache_mb: int = 10240
    tenant_kv_share: float = 1.0  # of the KV cache, that one tenant may hold
    tenant_adapter_slots: int | None = None  # that one tenant may use at once; None: all
    host_kv_blocks: int = 0  # where preempted sequences are kept, if that is cheaper than to compute them again
    swap_block_tokens: float = 1.0  # tokens that a step computes while one block goes to the host and comes back
    patience_s: float = 5.0  # how long one whose turn it is, and who lacks memory, may be passed by others
    batch_patience_s: float = 30.0  # how long the batch class waits for a turn while interactive requests come
    lead_tokens: float = 8192.0  # of service, by which others may be ahead of one that they pass
    prefix_cache: bool = True
    async_step: bool | None = None  # plan a step while the one before it is computed; None: on a GPU (ADR 7)
    grammar_seconds: int = 10  # of processor time, to compile one grammar
    grammar_memory_mb: int = 1024  # to compile one grammar
    grammar_cache_mb: int = 256  # compiled grammars that are kept
    draft_tokens: int = 0  # guessed for one sequence in one step, at most; 0: nothing is guessed
    metrics: str | None = None  # host:port, where Prometheus may ask; None: nowhere
    drain_s: float = 20.0  # how long running requests may take to end after SIGTERM


def parse_config(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> EngineConfig:
    """Prints a usage message and raises SystemExit when an option is missing or wrong."""
    parser = argparse.ArgumentParser(prog="python -m tenora_engine serve", description=__doc__)
    defaults = {field.name: field.default for field in fields(EngineConfig) if field.default is not MISSING}

    def option(name: str, kind: Callable[[str], object], help_text: str) -> None:
        variable = ENVIRONMENT_PREFIX + name.upper()
        parser.add_argument(
            "--" + name.replace("_", "-"),
            type=kind,
            default=environment.get(variable, defaults.get(name)),
            required=name not in defaults and variable not in environment,
            help=f"{help_text} [{variable}]",
        )

    option("listen", str, "address to bind: ipc:///file or tcp://127.0.0.1:port")
    option("model", Path, "folder of the base model (Hugging Face layout)")
    option("blobs", str, "URL of the adapters' blob store: file:///folder")
    option("engine_id", str, "stable name of this replica")
    option("device", Device, "auto, cpu or cuda (the first GPU; CUDA_VISIBLE_DEVICES chooses among several)")
    option("cuda_graphs", _switch, "on or off: launch a GPU's steps of decoding as a whole")
    option("dtype", Dtype, "auto, bf16 or fp32")
    option("kv_dtype", KvDtype, "of the KV cache: auto (as the model), fp8 or int8")
    option("weights", Weights, "model: as `dtype` says; int8: half the memory of bf16, and less exact")
    option("cpu_kernels", CpuKernels, "auto, native (refuse to start without the native library) or torch")
    option("threads", _positive, "threads of the computation; default: all cores")
    option("kv_blocks", _positive, "blocks of the KV cache; default: by the machine's memory")
    option("block_size", _positive, "tokens per block")
    option("max_sequences", _positive, "sequences running at once")
    option("max_batch_tokens", _positive, "tokens computed in one step")
    option("max_waiting", _positive, "length of the queue")
    option("max_model_len", _positive, "longest prompt and completion; default: the model's own")
    option("adapter_slots", _positive, "adapters usable in one step")
    option("adapter_mb", _positive, "MiB of the device's memory for adapters in slots; default: what they need")
    option("host_adapters", _positive, "adapters kept in memory")
    option("host_adapter_mb", _positive, "MiB of memory for these")
    option("adapter_cache", Path, "folder for adapters' files on a local disk, which engines of one machine share")
    option("adapter_cache_mb", _positive, "MiB of that disk")
    option("tenant_kv_share", _share, "of the KV cache that one tenant may hold, above 0 and up to 1")
    option("tenant_adapter_slots", _positive, "adapters of one tenant usable in one step; default: all slots")
    option("host_kv_blocks", _count, "KV blocks kept on the host for preempted sequences; 0: they are computed again")
    option("swap_block_tokens", float, "tokens computed in the time of moving one block to the host and back")
    option("patience_s", float, "seconds for which one that lacks memory may be passed by others")
    option("batch_patience_s", float, "seconds after which waiting batch requests get a turn")
    option("lead_tokens", float, "service (tokens) by which a tenant may be ahead of one that it passes")
    option("prefix_cache", _switch, "on or off")
    option("async_step", _switch, "plan a step while the one before it is computed: on or off; default: on a GPU")
    option("grammar_seconds", _positive, "seconds of processor time to compile one grammar")
    option("grammar_memory_mb", _positive, "MiB of memory to compile one grammar")
    option("grammar_cache_mb", _positive, "MiB of compiled grammars that are kept")
    option("draft_tokens", _count, "tokens guessed for one sequence in one step, where that pays; 0: none")
    option("metrics", str, "host:port of GET /metrics for Prometheus; default: none")
    option("drain_s", float, "seconds for running requests to end after SIGTERM")
    options = parser.parse_args(arguments)
    config = EngineConfig(**vars(options))
    if config.max_batch_tokens < config.max_sequences:
        parser.error("--max-batch-tokens must not be below --max-sequences")
    if config.host_adapters < config.adapter_slots:
        parser.error("--host-adapters must not be below --adapter-slots")
    return config


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(text)
    return text == "on"
