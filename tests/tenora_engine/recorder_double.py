"""CUDA graphs without CUDA: what a run launches is kept, with its memory, and launched again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import GridExecutor

# What makes the host wait for the device, or lets it look at values: a graph has no place for either.
WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique", "masked_select", "bincount")


class HostWaits(Exception):
    """What a capture would refuse."""


class Recording(TorchDispatchMode):
    """torch's operations and Triton's launches, in their order, with the arguments that they had."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []
        self.num_launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith(WAITING):
            raise HostWaits(name)
        out = func(*args, **(kwargs or {}))

        def again() -> None:
            result = func(*args, **(kwargs or {}))
            # A view or a change in place has the same memory again; what was made anew goes where it was.
            if isinstance(out, Tensor) and result.data_ptr() != out.data_ptr():
                out.copy_(result)

        self.calls.append(again)
        return out

    @contextmanager
    def launches(self) -> Iterator[None]:
        launch = GridExecutor.__call__

        def noted(executor: GridExecutor, *given: Any, **named: Any) -> None:
            def again() -> None:
                with _disable_current_modes():
                    launch(executor, *given, **named)

            self.calls.append(again)
            self.num_launches += 1
            again()

        GridExecutor.__call__ = noted
        try:
            yield
        finally:
            GridExecutor.__call__ = launch


class FakeRecorder:
    def __init__(self) -> None:
        self.recordings: list[Recording] = []

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        run()
        recording = Recording()
        self.recordings.append(recording)
        with recording, recording.launches():
            out = run()

        def replay() -> Tensor:
            for call in recording.calls:
                call()
            return out

        return replay
