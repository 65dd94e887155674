"""Builds the engine's native library (`engine/tenora_engine/cpu/src`) with the package, where there is a C++ compiler.

Everything else stands in pyproject.toml. Without a compiler the package installs without the library, and the engine
computes with torch alone, which it says at its start.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("engine/tenora_engine/cpu/src")
FLAGS = [
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",
]
# kernels.cpp is compiled once for each; the library chooses when it is loaded.
ISAS = {"portable": ("kPortable", [])}
if platform.machine() in ("x86_64", "AMD64"):
    avx512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"]
    ISAS |= {"avx2": ("kAvx2", ["-mavx2", "-mfma"]), "avx512": ("kAvx512", avx512)}
    avx512_bf16 = [*avx512, "-mavx512bf16"]
    ISAS |= {"avx512_bf16": ("kAvx512Bf16", avx512_bf16), "amx": ("kAmx", [*avx512_bf16, "-mamx-tile", "-mamx-bf16"])}


class BuildNative(build_ext):
    """One shared library without Python's headers, loaded by ctypes: the same file for every version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        flags = FLAGS + os.environ.get("TENORA_NATIVE_FLAGS", "").split()
        common = [str(SOURCES / name) for name in ("library.cpp", "team.cpp")]
        objects = self.compiler.compile(common, output_dir=self.build_temp, extra_postargs=flags)
        for isa, (table, isa_flags) in ISAS.items():
            objects += self.compiler.compile(
                [str(SOURCES / "kernels.cpp")],
                output_dir=os.path.join(self.build_temp, isa),
                macros=[("TENORA_ISA", isa), ("TENORA_TABLE", table)],
                extra_postargs=flags + isa_flags,
            )
        link = ["-pthread", *os.environ.get("TENORA_NATIVE_FLAGS", "-s" if sys.platform == "linux" else "").split()]
        path = self.get_ext_fullpath(ext.name)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, path, extra_postargs=link, target_lang="c++")


native = Extension(
    "tenora_engine.cpu.libtenora_cpu",
    sources=[str(SOURCES / name) for name in ("library.cpp", "team.cpp", "kernels.cpp")],
    depends=[str(path) for path in sorted(SOURCES.glob("*.h"))],
    language="c++",
    optional=True,  # a failure is a warning
)

setup(ext_modules=[native] if sys.platform != "win32" else [], cmdclass={"build_ext": BuildNative})
