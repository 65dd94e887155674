"""Archives and files from strangers. Whatever is wrong with one, the whole upload is refused and nothing is left."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import stat
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tenora_adapters.errors import FormatUnsupported, PackageRejected, PackageTooLarge
from tenora_adapters.limits import DEFAULT_LIMITS, Limits
from tenora_adapters.members import Content, sniff
from tenora_adapters.package import UploadedFile, open_files, open_upload

CONFIG = b'{"peft_type": "LORA"}'
WEIGHTS = b"\x02\0\0\0\0\0\0\0{}" + bytes(100)
PAIR = {"adapter_config.json": CONFIG, "adapter_model.safetensors": WEIGHTS}


def tree(folder: Path) -> dict[str, str]:
    """Every path below `folder` with a hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


class Desk:
    """Where an upload lies and is staged; `refuse` also looks for what was left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staging = folder / "staging"
        self.staging.mkdir()

    def put(self, data: bytes, name: str = "upload") -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def take(self, data: bytes, filename: str = "adapter.zip", limits: Limits = DEFAULT_LIMITS) -> None:
        staged = open_upload(self.put(data), filename, self.staging, limits)
        assert (staged.config.read_bytes(), staged.weights.read_bytes()) == (CONFIG, WEIGHTS)
        assert sorted(path.name for path in self.staging.iterdir()) == sorted(PAIR)

    def refuse(self, data: bytes, filename: str = "adapter.zip", limits: Limits = DEFAULT_LIMITS) -> PackageRejected:
        upload = self.put(data)
        before = tree(self.folder)
        with pytest.raises(PackageRejected) as refused:
            open_upload(upload, filename, self.staging, limits)
        assert tree(self.folder) == before
        return refused.value


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def zipped(members: dict[str, bytes] | list[tuple[str | zipfile.ZipInfo, bytes]], method: int = 8) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(members: dict[str, bytes] | list[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(data)
            info.mtime = info.mtime or 1.5  # a fraction needs an extended header
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


GOOD: dict[str, Callable[[], bytes]] = {
    "zip": lambda: zipped(PAIR),
    "stored zip": lambda: zipped(PAIR, zipfile.ZIP_STORED),
    "zip of a folder": lambda: zipped(
        {f"pirate/{name}": data for name, data in PAIR.items()} | {"pirate/README.md": b""}
    ),
    "zip with folder entries": lambda: zipped([("pirate/", b""), *((f"pirate/{n}", d) for n, d in PAIR.items())]),
    "tar": lambda: tarred(PAIR),
    "gnu tar": lambda: tarred(PAIR, tarfile.GNU_FORMAT),
    "ustar": lambda: tarred([(entry(n, mtime=1), d) for n, d in PAIR.items()], tarfile.USTAR_FORMAT),
    "tar of .": lambda: tarred([(entry("./", tarfile.DIRTYPE), b""), *((entry(f"./{n}"), d) for n, d in PAIR.items())]),
    "tar.gz": lambda: gzip.compress(tarred(PAIR)),
    "tar.gz of a folder": lambda: gzip.compress(
        tarred({f"a/{n}": d for n, d in PAIR.items()} | {"a/tokenizer.json": b"{}"})
    ),
}


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD.keys())
def test_good_packages_whatever_they_are_called(desk: Desk, make: Callable[[], bytes]) -> None:
    desk.take(make(), "no-matter.bin")


def test_a_folder_and_the_two_files(desk: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name, data in (PAIR | {"README.md": b"hello"}).items():
        (folder / name).write_bytes(data)
    (folder / "checkpoint-1").mkdir()
    staged = open_upload(folder, "adapter", desk.staging)
    assert staged.weights.read_bytes() == WEIGHTS
    staged.config.unlink(), staged.weights.unlink()
    files = [UploadedFile(folder / name, name) for name in PAIR]
    assert open_files(files, desk.staging).config.read_bytes() == CONFIG


@pytest.mark.parametrize("missing", PAIR)
def test_half_an_adapter(desk: Desk, missing: str) -> None:
    refused = desk.refuse(zipped({name: data for name, data in PAIR.items() if name != missing}))
    assert (refused.code, refused.param) == ("missing_file", missing)


def test_config_and_weights_of_different_folders(desk: Desk) -> None:
    refused = desk.refuse(zipped({"a/adapter_config.json": CONFIG, "b/adapter_model.safetensors": WEIGHTS}))
    assert "different folders" in refused.message


class Bomb:
    """Touches a file when unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return (Path.touch, (self.canary,))


@pytest.fixture
def unpickled() -> Iterator[list[str]]:
    """What any unpickler of this process looks up, by an audit hook that falls silent afterwards."""
    seen: list[str] = []
    state = {"listening": True}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if state["listening"] and event == "pickle.find_class":
            seen.append(str(arguments))

    sys.addaudithook(hook)
    yield seen
    state["listening"] = False


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_upl_01_a_pickle_is_refused_under_any_name(desk: Desk, unpickled: list[str], protocol: int) -> None:
    canary = desk.folder / "canary"
    bomb = pickle.dumps(Bomb(canary), protocol)
    for name in ("adapter_model.bin", "adapter.pt", "adapter.pkl", "adapter", "adapter.zip"):
        assert desk.refuse(bomb, name).code == "pickle_refused"
    for packed in (zipped, tarred):
        assert desk.refuse(packed({"adapter_config.json": CONFIG, "adapter_model.bin": bomb})).code == "pickle_refused"
        assert desk.refuse(packed(PAIR | {"adapter_model.safetensors": bomb})).code == "pickle_refused"
        assert desk.refuse(packed(PAIR | {"training_args.bin": bomb})).code == "pickle_refused"
    files = [UploadedFile(desk.put(CONFIG, "a"), "adapter_config.json")]
    files.append(UploadedFile(desk.put(bomb, "b"), "adapter_model.safetensors"))
    with pytest.raises(FormatUnsupported):
        open_files(files, desk.staging)
    assert not canary.exists()
    assert unpickled == []


def test_upl_01_torch_and_numpy_containers(desk: Desk, unpickled: list[str]) -> None:
    bomb = pickle.dumps(Bomb(desk.folder / "canary"))
    inner = zipped({"archive/data.pkl": bomb, "archive/version": b"3"}, zipfile.ZIP_STORED)
    assert desk.refuse(inner, "adapter_model.safetensors").code == "pickle_refused"
    assert desk.refuse(zipped({"w.npy": b"\x93NUMPY" + bomb}), "x.npz").code == "pickle_refused"
    assert desk.refuse(b"\x93NUMPY\x01\0" + bomb, "x.npy").code == "pickle_refused"
    assert desk.refuse(zipped(PAIR | {"adapter_model.safetensors": inner})).code == "unsupported_format"
    assert unpickled == []


def test_upl_01_safetensors_are_told_from_their_look_alikes() -> None:
    """The length of a header may begin like a pickle's opcode or gzip's magic number."""
    for length in (0x0480, 0x8B1F, 0x04034B50):
        assert sniff(length.to_bytes(8, "little") + b'{"a":') is Content.OTHER
    assert sniff(pickle.dumps([1], 4)) is Content.PICKLE


UNSAFE = [
    "../../x",
    "/abs",
    "C:\\x",
    "a/../../b",
    "..\\x",
    "%2e%2e%2f",
    "%252e%252e%252fx",
    "a//b",
    "..",
    "a/./b",
    "~/x",
]
UNSAFE += ["a\nb", "é.json", "a/b/c/d/e", "x" * 300, "con:stream"]


@pytest.mark.parametrize("name", UNSAFE)
def test_upl_02_hostile_names_refuse_the_whole_upload(desk: Desk, name: str) -> None:
    for data in (zipped(PAIR | {name: b"x"}), tarred(PAIR | {name: b"x"})):
        assert desk.refuse(data).code == "unsafe_name"
    for folder in (f"{name}/", f"{name}/adapter_config.json"):
        assert desk.refuse(zipped({folder: b""} | PAIR)).code == "unsafe_name"


def test_upl_02_hostile_names_of_uploaded_files(desk: Desk) -> None:
    for name in ("../adapter_config.json", "/etc/adapter_config.json", "..\\adapter_config.json", "a\0.json"):
        files = [UploadedFile(desk.put(CONFIG, "a"), name)]
        files.append(UploadedFile(desk.put(WEIGHTS, "b"), "adapter_model.safetensors"))
        with pytest.raises(PackageRejected) as refused:
            open_files(files, desk.staging)
        assert refused.value.code == "unsafe_name"
        assert list(desk.staging.iterdir()) == []


def test_upl_02_a_nul_in_a_name(desk: Desk) -> None:
    data = zipped(PAIR | {"README.mdX../../x": b"x"}).replace(b"README.mdX../../x", b"README.md\0../../x")
    assert desk.refuse(data).code == "unsafe_name"


def test_upl_02_no_name_in_a_zip(desk: Desk) -> None:
    data = bytearray(zipped({"x": b"{}"}))
    for lengths in (26, data.find(b"PK\x01\x02") + 28):  # of the name and the extra field, which takes its byte
        data[lengths : lengths + 4] = b"\0\0\1\0"
    assert desk.refuse(bytes(data)).code == "unsafe_name"


def test_upl_02_names_twice_also_in_another_case(desk: Desk) -> None:
    for other in ("README.md", "readme.md", "README.MD"):
        with pytest.warns(UserWarning, match="Duplicate name") if other == "README.md" else nullcontext():
            data = zipped([*PAIR.items(), ("README.md", b"1"), (other, b"2")])
        assert desk.refuse(data).code == "duplicate_member"
    assert desk.refuse(tarred([(entry(n), d) for n, d in [*PAIR.items(), *PAIR.items()]])).code == "duplicate_member"
    assert desk.refuse(zipped(PAIR | {"b/adapter_config.json": CONFIG})).code == "duplicate_member"


def test_upl_02_unexpected_members_are_named(desk: Desk) -> None:
    refused = desk.refuse(zipped(PAIR | {"run.sh": b"x"}))
    assert (refused.code, refused.param) == ("unexpected_member", "run.sh")
    assert desk.refuse(zipped(PAIR | {"inner.zip": zipped(PAIR)})).code == "unexpected_member"


LINKS: dict[str, tarfile.TarInfo] = {
    "symlink": entry("adapter_config.json", tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": entry("adapter_config.json", tarfile.LNKTYPE, linkname="../../etc/passwd"),
    "long link": entry("adapter_config.json", tarfile.SYMTYPE, linkname="../" * 80 + "etc/passwd"),
    "fifo": entry("adapter_config.json", tarfile.FIFOTYPE),
    "block device": entry("adapter_config.json", tarfile.BLKTYPE, devmajor=8),
    "character device": entry("adapter_config.json", tarfile.CHRTYPE, devmajor=1, devminor=3),
    "contiguous": entry("adapter_config.json", tarfile.CONTTYPE),
    "setuid": entry("adapter_config.json", mode=0o4755),
    "sparse": entry("adapter_config.json", b"S"),
    "renamed by an extended header": entry("adapter_config.json", pax_headers={"path": "../../x"}),
    "resized by an extended header": entry("adapter_config.json", pax_headers={"size": "1"}),
    "sparse by an extended header": entry("adapter_config.json", pax_headers={"GNU.sparse.major": "1"}),
    "a name too long for a header": entry("a" * 150),
}


@pytest.mark.parametrize("info", LINKS.values(), ids=LINKS.keys())
@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_upl_03_only_plain_files_of_a_tar(desk: Desk, info: tarfile.TarInfo, format: int) -> None:
    if info.pax_headers and format == tarfile.GNU_FORMAT:
        pytest.skip("only PAX has extended headers")
    data = tarred([(info, b""), (entry("adapter_model.safetensors"), WEIGHTS)], format)
    for packed in (data, gzip.compress(data)):
        assert desk.refuse(packed).code in {"not_a_plain_file", "unsafe_name"}


@pytest.mark.parametrize(
    "mode", [stat.S_IFLNK | 0o777, stat.S_IFIFO, stat.S_IFBLK, stat.S_IFREG | stat.S_ISUID | 0o755]
)
def test_upl_03_only_plain_files_of_a_zip(desk: Desk, mode: int) -> None:
    info = zipfile.ZipInfo("adapter_config.json")
    info.create_system, info.external_attr = 3, mode << 16
    assert desk.refuse(zipped([(info, b"/etc/passwd")])).code == "not_a_plain_file"


def test_upl_03_links_in_a_folder(desk: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (folder / "adapter_config.json").symlink_to("/etc/passwd")
    with pytest.raises(PackageRejected) as refused:
        open_upload(folder, "adapter", desk.staging)
    assert refused.value.code == "not_a_plain_file"
    assert list(desk.staging.iterdir()) == []


SMALL = Limits(max_unpacked_bytes=4 << 20, max_upload_bytes=2 << 20)


@pytest.mark.parametrize("packed", [zipped, lambda m: gzip.compress(tarred(m))], ids=["zip", "tar.gz"])
def test_upl_04_bombs(desk: Desk, packed: Callable[[dict[str, bytes]], bytes]) -> None:
    """Refused by size, and below the size by the ratio of what comes out to what went in."""
    zeros = packed(PAIR | {"adapter_model.safetensors": WEIGHTS + bytes(8 << 20)})
    assert len(zeros) < 40_000
    assert isinstance(desk.refuse(zeros, limits=SMALL), PackageTooLarge)
    assert isinstance(desk.refuse(zeros), PackageTooLarge)
    bystander = packed(PAIR | {"README.md": bytes(8 << 20)})
    assert isinstance(desk.refuse(bystander, limits=SMALL), PackageTooLarge)


def test_upl_04_a_zip_that_lies_about_sizes(desk: Desk) -> None:
    """The directory says 3 bytes, the data has more: never more than it says, and never silently less."""
    data = bytearray(zipped({"adapter_config.json": CONFIG, "adapter_model.safetensors": WEIGHTS}))
    at = data.rfind(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 3)
    desk.refuse(bytes(data))


def test_upl_04_overlapping_members(desk: Desk) -> None:
    """Two names in the directory for one piece of data."""
    data = bytearray(zipped({"adapter_config.json": CONFIG, "adapter_model.safetensors": CONFIG}))
    first = data.find(b"PK\x01\x02")
    second = data.find(b"PK\x01\x02", first + 4)
    struct.pack_into("<I", data, second + 42, struct.unpack_from("<I", data, first + 42)[0])
    assert "overlap" in desk.refuse(bytes(data)).message


def test_upl_04_many_members(desk: Desk) -> None:
    many = {f"README.{i}": b"" for i in range(5_000)}
    for data in (zipped(many), tarred([(entry(name, mtime=1), b"") for name in list(many)[:200]])):
        assert desk.refuse(data).code == "too_many_members"
    plain = zipped(PAIR)
    with_locator = plain[:-22] + b"PK\x06\x07" + bytes(16) + plain[-22:]
    assert "zip64" in desk.refuse(with_locator).message
    for count in (200, 5_000):
        data = bytearray(zipped(dict(list(many.items())[:count])))
        struct.pack_into("<HH", data, len(data) - 14, 1, 1)  # the end record says one member
        assert isinstance(desk.refuse(bytes(data)), PackageTooLarge)


def test_upl_04_too_large_as_it_arrives(desk: Desk) -> None:
    assert isinstance(desk.refuse(bytes(3 << 20), limits=SMALL), PackageTooLarge)


def test_upl_04_a_huge_extended_header(desk: Desk) -> None:
    info = entry("adapter_config.json", pax_headers={"comment": "x" * (1 << 20)})
    assert isinstance(desk.refuse(tarred([(info, CONFIG)])), PackageTooLarge)


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD.keys())
def test_upl_04_cut_and_damaged_archives(desk: Desk, make: Callable[[], bytes]) -> None:
    """Never another exception. A tar that lacks only its end marker is damaged, too."""
    data = make()
    is_tar = data[257:262] == b"ustar"  # which ends in a long padding
    for keep in (5, 60, 600, 1100, 1500) if is_tar else (5, 60, len(data) // 3, len(data) // 2, len(data) - 30):
        desk.refuse(data[:keep])
    for at in range(0, len(data), max(1, len(data) // 40)):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        try:
            desk.take(bytes(damaged))
        except PackageRejected:
            assert list(desk.staging.iterdir()) == []
        except AssertionError:  # one flipped byte of a tar's data is not the archive's to see
            assert b"ustar" in (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        for path in desk.staging.iterdir():
            path.unlink()


def test_encrypted_and_exotic_zips(desk: Desk) -> None:
    data = bytearray(zipped(PAIR))
    at = data.find(b"PK\x01\x02")
    data[at + 8] |= 1
    assert "encrypted" in desk.refuse(bytes(data)).message
    assert "deflated" in desk.refuse(zipped(PAIR, zipfile.ZIP_LZMA)).message


def test_a_zip_of_nothing(desk: Desk) -> None:
    assert desk.refuse(zipped({})).code == "missing_file"


def test_a_damaged_zip_is_not_quoted_at_length(desk: Desk) -> None:
    """The local header says that its name is 1,000 bytes, and the library names them all."""
    data = bytearray(zipped(PAIR | {"adapter_config.json": CONFIG + b" " * 2000}, zipfile.ZIP_STORED))
    data[26:28] = (1000).to_bytes(2, "little")
    assert len(desk.refuse(bytes(data)).message) < 300


def test_something_else_is_told_what_to_send(desk: Desk) -> None:
    for data in (b"", b"hello", b"7z\xbc\xaf\x27\x1c", b"\xfd7zXZ\0"):
        assert desk.refuse(data, "adapter.7z").code == "unsupported_format"
