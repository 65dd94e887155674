"""A pytest plugin for kernels in Triton's interpreter: memory that tells what should not happen to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

from tenora_engine.kernels.lora_slots import TableSlots

# Which triton a run is meant for, where it is not the one that is installed.
if wanted := os.environ.get("TENORA_TEST_TRITON"):
    assert triton.__version__ == wanted

ROUNDED = {tl.bfloat16: (torch.bfloat16, torch.uint16), tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8)}


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """NaN where there is one, else the largest number."""
    if tensor.dtype == torch.float8_e4m3fn:
        tensor.view(torch.uint8).fill_(0x7F)
        return tensor
    return tensor.fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)


@pytest.fixture(autouse=True)
def debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tl.device_assert` is checked, as with TRITON_DEBUG=1 on a GPU."""
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, debug=True))


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody wrote reads as poison."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: poison(empty(*size, **options)))


@pytest.fixture(autouse=True)
def numbers_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bf16 as 16-bit integers, and its dot multiplies those: hand it the values, exactly. And it
    cuts off what it should round: let torch round."""
    convert = interpreter._convert_float

    def rounded(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if source != tl.float32 or target not in ROUNDED:
            return convert(data, source, target, mode)
        dtype, bits = ROUNDED[target]
        return torch.from_numpy(np.ascontiguousarray(data)).to(dtype).view(bits).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
    create_dot = InterpreterBuilder.create_dot

    def dot(builder: InterpreterBuilder, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = builder.cast_impl(a, tl.float32), builder.cast_impl(b, tl.float32)
        return create_dot(builder, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)


@pytest.fixture(autouse=True)
def guarded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No load or store touches memory outside the kernel's arguments and the adapters in slots, not even for a value
    that is dropped: on a GPU that can be a fault."""
    begins, ends = np.empty(0, np.uint64), np.empty(0, np.uint64)
    make, arguments = TableSlots.__init__, GridExecutor._init_args_hst
    made: list[TableSlots] = []

    def noted_make(slots: TableSlots, *shape: Any) -> None:
        make(slots, *shape)
        made.append(slots)

    def noted(executor: GridExecutor, given: Sequence[Any], named: dict[str, Any]) -> Any:
        nonlocal begins, ends
        placed = [tensor for slots in made for tensors in slots._placed for tensor in tensors]
        storages = [tensor.untyped_storage() for tensor in [*given, *placed] if isinstance(tensor, torch.Tensor)]
        ranges = sorted({(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages})
        begins, ends = np.array(ranges, dtype=np.uint64).T
        return arguments(executor, given, named)

    def checked(access: str, mask_index: int) -> None:
        original = getattr(InterpreterBuilder, access)

        def check(builder: InterpreterBuilder, places: Any, *rest: Any) -> Any:
            touched = places.data[rest[mask_index].data]
            assert (touched < ends[np.searchsorted(begins, touched, side="right") - 1]).all()
            return original(builder, places, *rest)

        monkeypatch.setattr(InterpreterBuilder, access, check)

    monkeypatch.setattr(TableSlots, "__init__", noted_make)
    monkeypatch.setattr(GridExecutor, "_init_args_hst", noted)
    checked("create_masked_load", 0)
    checked("create_masked_store", 1)
