"""The table of launch configurations: `launches.json`, a row per operation, target, dtype and class of shapes.

Rows for the target `*` ship for every GPU and are reasoned; `tenora tune` measures on a GPU and writes rows for that
one (`sm_90`, `gfx942`) into a table of one's own, which TENORA_ENGINE_LAUNCHES names. A row for the target is taken
before one for `*`, and of equal ones that of one's own table.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

SHIPPED: Final = Path(__file__).with_name("launches.json")
OWN_TABLE: Final = "TENORA_ENGINE_LAUNCHES"
ANY: Final = "*"


class LaunchTableError(Exception):
    """TENORA_ENGINE_LAUNCHES names what is no table."""


@dataclass(frozen=True, slots=True)
class Row:
    op: str
    target: str  # of a GPU, or ANY
    dtype: str
    shape: Mapping[str, int]  # the class that it was chosen for
    launch: Mapping[str, int]
    microseconds: float | None = None  # measured, where the tuner wrote it

    @property
    def key(self) -> tuple[Any, ...]:
        return self.op, self.target, self.dtype, tuple(sorted(self.shape.items()))


def read_rows(path: Path) -> list[Row]:
    """Raises OSError, ValueError and TypeError for what is not a table."""
    rows = json.loads(path.read_text())
    if not isinstance(rows, list):
        raise ValueError("not a list of rows")
    return [Row(**fields) for fields in rows]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """One row a line, so that a difference can be read."""
    lines = []
    for row in sorted(rows, key=lambda row: row.key):
        fields = {name: getattr(row, name) for name in ("op", "target", "dtype", "shape", "launch", "microseconds")}
        if row.microseconds is None:
            del fields["microseconds"]
        lines.append(json.dumps(fields))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def merge(rows: Sequence[Row], newer: Sequence[Row]) -> list[Row]:
    return list({row.key: row for row in [*rows, *newer]}.values())


def load_table() -> None:
    """Before the first launch needs it. Raises LaunchTableError."""
    _table()


@functools.cache
def _table() -> dict[tuple[Any, ...], Row]:
    rows = read_rows(SHIPPED)
    if own := os.environ.get(OWN_TABLE):
        try:
            rows = merge(rows, read_rows(Path(own)))
        except (OSError, ValueError, TypeError) as error:
            raise LaunchTableError(f"{OWN_TABLE} names no table of launches, {own}: {error}") from error
    return {row.key: row for row in rows}


@functools.cache
def find(op: str, target: str, dtype: torch.dtype, **shape: int) -> Mapping[str, int]:
    """The launch of the row for exactly this class of shapes. Raises KeyError where there is none."""
    name = str(dtype).removeprefix("torch.")
    keys = [Row(op, of, name, shape, {}).key for of in (target, ANY)]
    row = next((_table()[key] for key in keys if key in _table()), None)
    if row is None:
        raise KeyError(f"no launch of {op} in {name} for {shape}")
    return row.launch


@contextmanager
def trying(row: Row) -> Iterator[None]:
    """For the time of the block, launch as `row` says: how a tuner compares. In one thread, and with no other."""
    before = _table().get(row.key)
    _table()[row.key] = row
    find.cache_clear()
    try:
        yield
    finally:
        del _table()[row.key]
        if before is not None:
            _table()[row.key] = before
        find.cache_clear()


@functools.cache
def target_of(device: torch.device) -> str:
    if device.type != "cuda":
        return ANY
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
