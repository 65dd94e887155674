from __future__ import annotations

import pytest

from tenora_platform.bench import events
from tenora_platform.bench.events import EventReader, EventTooLong

STREAM = b': a comment\n\ndata: {"a": 1}\n\nevent: x\ndata: two\ndata: lines\n\n\ndata:tight\n\ndata: [DONE]\n\n'
WANTED = [b'{"a": 1}', b"two\nlines", b"tight", b"[DONE]"]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_come_out_whole_however_the_network_cuts_them(newline: bytes, size: int) -> None:
    stream, reader = STREAM.replace(b"\n", newline), EventReader()
    found = [data for at in range(0, len(stream), size) for data in reader.feed(stream[at : at + size])]
    assert found == WANTED


def test_an_event_without_its_end_is_none() -> None:
    assert EventReader().feed(b"data: half\n") == []


def test_what_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MAX_EVENT_BYTES", 10)
    with pytest.raises(EventTooLong):
        EventReader().feed(b"data: 12345678")
