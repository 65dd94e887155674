"""How large an adapter may be, in every respect that costs memory or time before we know what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Limits:
    max_upload_bytes: int = 512 << 20  # as it arrives
    max_unpacked_bytes: int = 1 << 30  # what comes out of an archive, all members together
    max_ratio: int = 100  # unpacked to packed, looked at beyond the first MiB
    max_members: int = 64
    max_config_bytes: int = 256 << 10
    max_header_bytes: int = 8 << 20
    max_tensors: int = 16_384
    max_rank: int = 256
    max_scaling: float = 1e4
    max_saved_elements: int = 64 << 20  # of one module that was trained whole: 128 MiB in bf16, in every engine
    max_patterns: int = 1024  # entries of one list or mapping in the config
    max_invocation_tokens: int = 64  # that activate an aLoRA
    max_pattern_chars: int = 512  # one regular expression or name
    max_pattern_total: int = 48 << 10  # characters of all of a config's
    max_pattern_program: int = 4000  # RE2's instructions for all expressions that are more than a name


DEFAULT_LIMITS: Final = Limits()
