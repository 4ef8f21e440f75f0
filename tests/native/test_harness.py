"""The C library under sanitizers, and as another machine runs it: tests/native/harness.c."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT

SOURCE = ROOT / "ckpt" / "native" / "source"
HARNESS = Path(__file__).with_name("harness.c")
TIMEOUT_S = 100.0
CALLS, SEED = os.environ.get("CKPT_NATIVE_CALLS", "60"), os.environ.get("CKPT_NATIVE_SEED", "1")


def built(folder: Path, *compiler: str) -> Path:
    """The harness with the library in it."""
    program = folder / "harness"
    sources = [HARNESS, *sorted(SOURCE.glob("*.c"))]
    options = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE}"]
    options.append("-DTAKE_BYTES=7001")
    done = subprocess.run(
        [*compiler, *options, "-o", program, *sources], capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return program


def said(*command: str | Path) -> str:
    done = subprocess.run(
        [*command, CALLS, SEED], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_sanitizer_finds_fault(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no compiler with sanitizers is here: install gcc or clang")
    program = built(tmp_path, compiler, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert said(program).endswith(f": {8 * int(CALLS)} calls agree\n")


@pytest.mark.slow
def test_it_computes_the_same_on_aarch64(tmp_path: Path) -> None:
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("no emulator of aarch64 is here: install qemu-user-static")
    pytest.importorskip("ziglang", reason="make soak installs it")
    zig = sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static"
    answer = said(emulator, built(tmp_path, *zig))
    assert answer.startswith("clang ")
    assert answer.endswith(f", aarch64: {8 * int(CALLS)} calls agree\n")
