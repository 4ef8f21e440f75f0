"""Builds our C library into the wheel: with the system's compiler, or with the one that the ziglang
wheel carries where there is none.

Environment:

    CC                   this compiler, in place of cc, gcc or clang
    CKPT_NATIVE_TARGET   build for another machine or C library, as zig names them: wheels for all
                         are x86_64-linux-gnu.2.28, aarch64-linux-gnu.2.28, x86_64-linux-musl and
                         aarch64-linux-musl
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE: Final = "ckpt/native/source"
LIBRARY: Final = "ckpt/native/libckpt.so.1"
LOG: Final = "ckpt/native/build.log"
OPTIONS: Final = (
    "-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra",
)  # fmt: skip
ZIG: Final = "ziglang>=0.13"
GLIBC: Final = "2.28"
"""The oldest that a zig-built library runs with."""


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """hatchling finds and calls me."""

    def dependencies(self) -> list[str]:
        """What a build needs besides hatchling: a compiler, where the system has none."""
        return [ZIG] if _target() else []

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        """Build it where the wheel, or an editable installation (`version`), takes it from."""
        target = _target()
        command = [*(_zig(target) if target else _compiler()), *OPTIONS]
        self._compile(command)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform(target)}"
        build_data["artifacts"] = [LIBRARY]

    def _compile(self, command: list[str]) -> None:
        root = Path(self.root)
        sources = sorted(str(path) for path in (root / SOURCE).glob("*.c"))
        library, log = root / LIBRARY, root / LOG
        # Beside it and then in its place: processes that have the old one go on with that.
        fresh = library.with_name(f"{library.name}.{os.getpid()}")
        done = subprocess.run(
            [*command, "-o", str(fresh), *sources], capture_output=True, text=True, check=False
        )
        if done.returncode:
            fresh.unlink(missing_ok=True)
            log.write_text(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
            sys.exit(f"ckpt's C library could not be built:\n{log.read_text()}\n(also in {log})")
        log.unlink(missing_ok=True)
        fresh.replace(library)


def _compiler() -> list[str]:
    """The system's; empty where it has none."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), [])


def _target() -> str:
    """What zig builds for; empty where the system's compiler does it."""
    asked = os.environ.get("CKPT_NATIVE_TARGET", "")
    if asked or _compiler():
        return asked
    libc = f"gnu.{GLIBC}" if platform.libc_ver()[0] == "glibc" else "musl"
    return f"{platform.machine()}-linux-{libc}"


def _zig(target: str) -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc", "-target", target]


def _platform(target: str) -> str:
    """The platform tag of the wheel."""
    if not target:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    machine, _, libc = target.partition("-linux-")
    kind, _, version = libc.partition(".")
    if kind == "musl":
        return f"musllinux_1_2_{machine}"
    return f"manylinux_{(version or GLIBC).replace('.', '_')}_{machine}"
