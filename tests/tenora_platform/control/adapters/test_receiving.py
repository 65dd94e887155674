"""UPL-02, UPL-04: what comes in as multipart, in bounds, and with nothing left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from fastapi import Request

from tenora_platform.control.adapters import receiving
from tenora_platform.control.adapters.receiving import receive_upload
from tenora_platform.control.errors import ControlError, InvalidRequest, Timeout, TooLarge

LIMIT = 10_000


def part(name: str, data: bytes, filename: str | None = None) -> bytes:
    disposition = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename is not None else "")
    return b"--xyz\r\nContent-Disposition: " + disposition.encode() + b"\r\n\r\n" + data + b"\r\n"


END = b"--xyz--\r\n"


async def receive(
    body: bytes | Iterable[bytes], *, kind: str = "multipart/form-data; boundary=xyz", **headers: str
) -> tuple[dict[str, str], list[tuple[str, bytes]]]:
    chunks = iter([body] if isinstance(body, bytes) else body)

    async def messages() -> dict[str, object]:
        chunk = next(chunks, None)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": chunk != b""}

    fields = [(b"content-type", kind.encode())] + [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "POST", "headers": fields}, messages)
    async with receive_upload(request, LIMIT) as upload:
        return upload.fields, [(file.filename, file.path.read_bytes()) for file in upload.files]


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_whatever_the_chunks(size: int) -> None:
    body = part("name", b"bot") + part("files", b"\r\n--xy\x00" * 9, "a.zip") + part("files", b"", "b") + END
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    fields, files = await receive([*chunks, b""])
    assert fields == {"name": "bot"}
    assert files == [("a.zip", b"\r\n--xy\x00" * 9), ("b", b"")]


async def test_the_names_on_disk_are_ours(staging: Path) -> None:
    """UPL-02"""
    body = part("files", b"x", "adapter.safetensors") + END
    chunks = iter([body, b""])

    async def messages() -> dict[str, object]:
        return {"type": "http.request", "body": next(chunks), "more_body": False}

    headers = [(b"content-type", b"multipart/form-data; boundary=xyz")]
    async with receive_upload(
        Request({"type": "http", "method": "POST", "headers": headers}, messages), LIMIT
    ) as upload:
        assert [path.name for path in staging.rglob("*") if path.is_file()] == ["part-1"]
        assert (
            upload.files[0].path.stat().st_mode & 0o077 == 0 or upload.files[0].path.parent.stat().st_mode & 0o077 == 0
        )


@pytest.mark.parametrize(
    "filename",
    ["../../x", "/abs", "C:\\\\x", "a/../../b", "..\\\\x", "%2e%2e%2fx", "..", ".", "", "a\tb", "a/b.zip", "%5cx"],
)
async def test_hostile_file_names(filename: str) -> None:
    """UPL-02: the whole upload is refused."""
    with pytest.raises(InvalidRequest) as caught:
        await receive([part("name", b"bot") + part("files", b"x", filename) + END, b""])
    assert caught.value.code == "bad_filename"


async def test_a_body_without_end() -> None:
    """UPL-04: counted on the stream, whatever Content-Length says."""

    def endless() -> Iterator[bytes]:
        yield part("files", b"", "a")[:-2]
        while True:
            yield b"x" * 1000

    with pytest.raises(TooLarge):
        await receive(endless(), **{"content-length": "5"})


async def test_a_declared_length_over_the_limit_is_not_read() -> None:
    def never() -> Iterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    with pytest.raises(TooLarge):
        await receive(never(), **{"content-length": str(LIMIT + 1)})


async def test_a_client_that_goes_away() -> None:
    with pytest.raises(InvalidRequest, match="cut off"):
        await receive([part("files", b"x" * 100, "a")[:-50]])


async def test_a_client_that_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """UPL-04: one byte a second is not for ever."""
    monkeypatch.setattr(receiving, "MAX_SECONDS", 0.0)
    with pytest.raises(Timeout):
        await receive([part("files", b"x", "a") + END, b""])


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=xyz"),
        (part("files", b"x", "a"), "multipart/form-data; boundary=xyz"),
        (b"not multipart", "multipart/form-data; boundary=xyz"),
        (part("a", b"x") + END, "multipart/form-data"),
        (part("a", b"x") + END, "application/json"),
        (part("a", b"x") + END, "multipart/form-data; boundary=" + "x" * 500),
        (part("a", b"x" * 2000) + END, "multipart/form-data; boundary=xyz"),
        (part("a", b"\xff") + END, "multipart/form-data; boundary=xyz"),
        (part("a", b"1") + part("a", b"2") + END, "multipart/form-data; boundary=xyz"),
        (b"".join(part("files", b"", f"f{number}") for number in range(9)) + END, "multipart/form-data; boundary=xyz"),
        (b"--xyz\r\n" + b"X-Long: " + b"x" * 9000 + b"\r\n\r\n\r\n" + END, "multipart/form-data; boundary=xyz"),
        (
            b"--xyz\r\n" + b"".join(b"X-%d: x\r\n" % n for n in range(99)) + b"\r\n\r\n" + END,
            "multipart/form-data; boundary=xyz",
        ),
    ],
)
async def test_what_is_not_an_upload(body: bytes, kind: str) -> None:
    with pytest.raises(ControlError) as caught:
        await receive([body, b""], kind=kind)
    assert caught.value.status == 400


async def test_a_compressed_body_is_refused() -> None:
    """UPL-04: what is counted is what is stored."""
    with pytest.raises(InvalidRequest, match="encoding"):
        await receive([b""], **{"content-encoding": "gzip"})
