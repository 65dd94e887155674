"""The rule for adapter names. A name is a label of a tenant: it never becomes a path."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from tenora_adapters.errors import NameRejected

ADAPTER_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def check_adapter_name(name: str, reserved: Collection[str] = ()) -> str:
    """`name` itself, or NameRejected. `reserved`: names of base models and their aliases."""
    if not ADAPTER_NAME.fullmatch(name):
        raise NameRejected(
            "an adapter's name has 1 to 63 of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit",
            param="name",
        )
    if name in reserved:
        raise NameRejected(f"{name!r} is the name of a base model", param="name", code="reserved_adapter_name")
    return name
