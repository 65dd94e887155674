"""Files that are almost what they should be: each seed and number gives one, always the same."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any

_NUMBERS = [0, 1, 2, 7, 8, 127, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**64 - 1]
_WORDS = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\",
    b"\0",
    b"\xff",
    b"../",
    b"/",
    b"NaN",
    b"1e999",
    b"-",
    b"null",
]


def mutate(data: bytes, dice: random.Random) -> bytes:
    """One to four random changes of bytes, numbers, lengths and places."""
    for _ in range(dice.randint(1, 4)):
        change = dice.choice(_CHANGES)
        data = change(data, dice)
    return data


def _flip(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, dice: random.Random) -> bytes:
    at, size = dice.randrange(len(data) + 1), dice.choice([1, 2, 4, 8])
    number = dice.choice(_NUMBERS) % 256**size
    return data[:at] + number.to_bytes(size, "little") + data[at + size :]


def _insert(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + dice.choice([*_WORDS, dice.randbytes(dice.randint(1, 20))]) + data[at:]


def _delete(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + data[at + dice.choice([1, 1, 2, 8, 100]) :]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    begin = dice.randrange(len(data) + 1)
    part = data[begin : begin + dice.choice([1, 8, 30, 200])]
    at = dice.randrange(len(data) + 1)
    return data[:at] + part * dice.choice([1, 1, 2, 9]) + data[at:]


def _truncate(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _digits(data: bytes, dice: random.Random) -> bytes:
    places = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return data
    begin = end = dice.choice(places)
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    return data[:begin] + str(dice.choice(_NUMBERS)).encode() + data[end:]


_CHANGES: list[Callable[[bytes, random.Random], bytes]] = [
    _flip,
    _overwrite,
    _insert,
    _delete,
    _repeat,
    _truncate,
    _digits,
    _digits,
]


# -- safetensors ------------------------------------------------------------------------------------------------------


def safetensors_file(fields: dict[str, Any], data: bytes) -> bytes:
    header = json.dumps(fields).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data


def mutated_safetensors(dice: random.Random) -> bytes:
    """Of bytes, or of the header's fields, whose length is then right: most of the former end at the first check."""
    sizes, fields, end = {"F32": 4, "F16": 2, "BF16": 2}, {}, 0
    for index in range(dice.randint(1, 4)):
        dtype, shape = dice.choice(list(sizes)), [dice.randint(0, 4) for _ in range(dice.randint(0, 3))]
        count = sizes[dtype]
        for dimension in shape:
            count *= dimension
        fields[f"t{index}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + count]}
        end += count
    if dice.random() < 0.3:
        fields["__metadata__"] = {"format": "pt"}
    data = dice.randbytes(end)
    if dice.random() < 0.1:  # legal: the order of the names is free
        return safetensors_file(dict(dice.sample(list(fields.items()), len(fields))), data)
    if dice.random() < 0.5:
        return mutate(safetensors_file(fields, data), dice)
    changed: Any = mutate_json(fields, dice)
    if dice.random() < 0.3:
        data = mutate(data, dice)
    return safetensors_file(changed, data)


def mutate_json(value: Any, dice: random.Random) -> Any:
    """The same value with one place in it changed."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        key = dice.choice(list(value))
        changed = dict(value)
        if dice.random() < 0.1:
            changed[dice.choice(["x", "", "__metadata__", "dtype", "r\0"])] = changed.pop(key)
        elif dice.random() < 0.1:
            del changed[key]
        else:
            changed[key] = mutate_json(value[key], dice)
        return changed
    if isinstance(value, list) and value and dice.random() < 0.8:
        at = dice.randrange(len(value))
        return [*value[:at], mutate_json(value[at], dice), *value[at + 1 :]]
    if type(value) is int and dice.random() < 0.6:
        return value + dice.choice([-8, -4, -2, -1, 1, 2, 4, 8])
    return dice.choice(
        [
            None,
            True,
            False,
            -1,
            0,
            1,
            2,
            4,
            0.5,
            1e30,
            2**63,
            2**64,
            "",
            "F32",
            "BF16",
            "I8",
            "q_proj",
            [],
            [1],
            {},
            "a" * 600,
        ]
    )


# -- adapter_config.json ----------------------------------------------------------------------------------------------

_EXPRESSIONS = [r".*\.(q|v)_proj", r"((a+)+)+$", r"(?=x)", r"\1", r"[", r"a{1,9999}", r"(?i)Q_PROJ", "\u00e9"]


def mutated_config(config: dict[str, Any], dice: random.Random) -> bytes:
    changed = dict(config)
    for _ in range(dice.randint(1, 3)):
        changed = mutate_json(changed, dice)
        if not isinstance(changed, dict):
            return json.dumps(changed).encode()
        if dice.random() < 0.3:
            changed[dice.choice(["target_modules", "exclude_modules", "layers_pattern"])] = dice.choice(_EXPRESSIONS)
        if dice.random() < 0.3:
            changed[dice.choice(["rank_pattern", "alpha_pattern"])] = {dice.choice(_EXPRESSIONS): dice.randint(-1, 9)}
    text = json.dumps(changed).encode()
    return mutate(text, dice) if dice.random() < 0.3 else text


# -- archives ---------------------------------------------------------------------------------------------------------


def mutated_archive(files: dict[str, bytes], dice: random.Random) -> bytes:
    """A zip, a tar or a gzipped tar. Of a tar that was changed the checksums are right again, mostly."""
    kind = dice.choice(["zip", "tar", "tar.gz"])
    held = io.BytesIO()
    if kind == "zip":
        method = dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
        with zipfile.ZipFile(held, "w", method) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return mutate(held.getvalue(), dice)
    with tarfile.open(fileobj=held, mode="w", format=dice.choice([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    plain = held.getvalue()
    changed = bytearray(plain)
    header = dice.choice([i for i in range(0, len(plain), 512) if plain[i + 257 : i + 262] == b"ustar"])
    changed[header : header + 512] = mutate(plain[header : header + 512], dice)[:512].ljust(512, b"\0")
    if dice.random() < 0.8:
        block = bytes(changed[header : header + 512])
        total = sum(block[:148]) + 8 * 32 + sum(block[156:])
        changed[header + 148 : header + 156] = b"%06o\0 " % total
    if kind == "tar":
        return bytes(changed)
    packed = gzip.compress(bytes(changed), 1, mtime=0)
    return mutate(packed, dice) if dice.random() < 0.3 else packed
