"""The native library: where it is, its functions, and its choice of an instruction set. Knows no tensor."""

from __future__ import annotations

import ctypes
import functools
import logging
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, Final

from tenora_engine.cpu.abi import STRUCTS, DType, Step

log = logging.getLogger(__name__)

LIBRARY_FILE: Final = Path(__file__).with_name("libtenora_cpu.so")

ISAS: Final = ("amx", "avx512_bf16", "avx512", "avx2", "portable")  # best first


class Library:
    """One instruction set of the library, and a team of threads to run it on."""

    def __init__(self, functions: ctypes.CDLL, isa: int, num_threads: int) -> None:
        self._functions = functions
        self._isa = isa
        self.num_threads = num_threads
        self._team: int = functions.tenora_team(num_threads)
        self.isa_name: str = functions.tenora_isa_name(isa).decode()

    def packed_elements(self, out_features: int, in_features: int) -> int:
        return int(self._functions.tenora_packed_elements(self._isa, out_features, in_features))

    def pack(self, dtype: DType, weights: int, packed: int, out_features: int, in_features: int) -> None:
        """Lay weights [out_features, in_features] out for `Linear`. `weights` and `packed` are addresses."""
        self._functions.tenora_pack(self._isa, dtype, weights, packed, out_features, in_features)

    def run(self, ops: Any, num_ops: int, step: Step, nanoseconds: Any = None) -> None:
        """`ops`: an array of pointers to operations, applied in order. The GIL is released meanwhile.

        nanoseconds: None, or an array of as many int64 for the time that each takes.
        """
        self._functions.tenora_run(self._isa, self._team, ops, num_ops, ctypes.byref(step), nanoseconds)

    def __del__(self) -> None:
        self._functions.tenora_disband(self._team)


@functools.cache
def open_library(num_threads: int, isa: str = "") -> Library | None:
    """With the best instruction set of this machine, or with `isa`. None, with a word in the log: there is none."""
    functions = _load()
    if functions is None:
        return None
    handle = functions.tenora_isa(isa.encode())
    return Library(functions, handle, num_threads) if handle else None


@functools.cache
def _load() -> ctypes.CDLL | None:
    if not LIBRARY_FILE.exists():
        log.info("the native library was not built (%s)", LIBRARY_FILE.name)
        return None
    try:
        functions = ctypes.CDLL(str(LIBRARY_FILE))
    except OSError as error:
        log.warning("the native library cannot be loaded: %s", error)
        return None
    sizes = (c_int64 * len(STRUCTS))()
    functions.tenora_sizes.restype = c_int64
    count = functions.tenora_sizes(sizes, c_int64(len(STRUCTS)))
    if count != len(STRUCTS) or list(sizes) != [ctypes.sizeof(struct) for struct in STRUCTS]:
        log.warning("the native library is of another build: build the package again")
        return None
    _declare(functions)
    return functions


def _declare(functions: ctypes.CDLL) -> None:
    functions.tenora_isa.argtypes, functions.tenora_isa.restype = (c_char_p,), c_void_p
    functions.tenora_isa_name.argtypes, functions.tenora_isa_name.restype = (c_void_p,), c_char_p
    functions.tenora_team.argtypes, functions.tenora_team.restype = (c_int32,), c_void_p
    functions.tenora_disband.argtypes, functions.tenora_disband.restype = (c_void_p,), None
    functions.tenora_packed_elements.argtypes = (c_void_p, c_int64, c_int64)
    functions.tenora_packed_elements.restype = c_int64
    functions.tenora_pack.argtypes = (c_void_p, c_int32, c_void_p, c_void_p, c_int64, c_int64)
    functions.tenora_pack.restype = None
    functions.tenora_run.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, POINTER(Step), c_void_p)
    functions.tenora_run.restype = None
