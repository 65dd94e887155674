"""A lean reader of server-sent events (WHATWG HTML, section 9.2), as far as OpenAI-compatible servers use them."""

from __future__ import annotations

from typing import Final

_MAX_EVENT_BYTES: Final = 8 << 20


class EventTooLong(ValueError):
    """The server sends something that never ends."""


class EventReader:
    """Bytes in as the network cuts them, the `data` of whole events out. Comments and other fields are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Raises EventTooLong."""
        data = self._rest + data
        if b"\r" in data:  # a lone CR at the end waits for its LF
            data = data.replace(b"\r\n", b"\n")
        *blocks, self._rest = data.split(b"\n\n")
        if len(self._rest) > _MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {_MAX_EVENT_BYTES >> 20} MiB")
        return [found for block in blocks if (found := _data_of(block)) is not None]


def _data_of(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:  # nearly all
        return block[6:]
    values = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(values) if values else None
