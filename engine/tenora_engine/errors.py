"""The engine's errors, by what the caller can do.

    EngineError
    +-- StartError          the process cannot serve: told once, at start-up
    +-- Refused             one request cannot be served; becomes its `Failed` on the wire
    +-- AdapterUnavailable  one adapter cannot be loaded; its requests fail, nobody else's

`model.spec.UnsupportedModel` and `gguf_checkpoint.PrepareError` stand beside this tree: they import without the wire.
"""

from __future__ import annotations

from tenora_engine.wire import FailCode


class EngineError(Exception):
    """Anything the engine raises on purpose."""


class StartError(EngineError):
    """The process cannot serve: an option is wrong, or a folder does not hold what it should."""


class Refused(EngineError):
    """One request cannot be served. `message` is safe to show its tenant."""

    def __init__(self, code: FailCode, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


class AdapterUnavailable(EngineError):
    """One adapter is missing, corrupt or not servable here. `message` is safe to show its tenant.

    `retryable`: another try may work (the store was out of reach), as opposed to content that stays wrong.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
