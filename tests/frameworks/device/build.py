"""The emulated device's library, compiled once for these sources and this torch."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import torch

FOLDER: Final = Path(__file__).parent
UNITS: Final = ("streams", "memory", "tensors")
TORCH: Final = Path(torch.__file__).parent
COMPILE: Final = (
    "-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    "-DAT_PER_OPERATOR_HEADERS",
    "-isystem", str(TORCH / "include"),
    "-isystem", str(TORCH / "include" / "torch" / "csrc" / "api" / "include"),
)  # fmt: skip
LINK: Final = (
    f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10",
)  # fmt: skip


def compiler() -> str | None:
    """$CXX, or g++, or clang++: the first that is here."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def built(cache: Path, cxx: str) -> Path:
    """The library, in `cache`: processes that ask at the same time compile it once.

    Raises CalledProcessError, with the compiler's own words on stderr.
    """
    library = cache / f"emulated-{_key(cxx)}.so"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(cxx, library)
    return library


def _key(cxx: str) -> str:
    """Of all that the library is made of."""
    digest = hashlib.sha256(repr((torch.__version__, cxx, COMPILE, LINK)).encode())
    for path in sorted((*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(cxx: str, library: Path) -> None:
    """A quarter of a minute; the library has its name only when it is whole."""
    objects = [library.with_name(f"{unit}.o") for unit in UNITS]

    def compile_one(unit: str) -> None:
        target = library.with_name(f"{unit}.o")
        _run(cxx, *COMPILE, "-c", str(FOLDER / f"{unit}.cpp"), "-o", str(target))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, reversed(UNITS)))
    half = library.with_suffix(".half")
    _run(cxx, "-shared", *map(str, objects), "-o", str(half), *LINK)
    half.rename(library)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
