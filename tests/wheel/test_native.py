"""The C library in the wheel: built by whichever compiler there is, for each machine we promise."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.landing import in_turn
from tests.unpacking import unpack
from tests.wheel.environments import BUILD, Environment, beside, once

LIBRARY = "ckpt/native/libckpt.so.1"
TIMEOUT_S = 100.0
MACHINES = {"x86_64": 62, "aarch64": 183}
"""As ELF numbers them."""
GNU, MUSL = ("gnu.2.28", "manylinux_2_28"), ("musl", "musllinux_1_2")
FOREIGN = [("x86_64", *GNU), ("aarch64", *MUSL), ("x86_64", *MUSL), ("aarch64", *GNU)]
"""Two landings in a row have each machine and each C library once."""


@pytest.fixture
def tree(built_files: tuple[Path, Path], tmp_path: Path) -> Path:
    """The sdist, unpacked: what is built there is nobody else's."""
    return tree_of(built_files[0], tmp_path)


def tree_of(sdist: Path, folder: Path) -> Path:
    unpack(sdist, folder)
    (tree,) = folder.iterdir()
    return tree


def build(tree: Path, **environ: str) -> tuple[int, str]:
    """Build a wheel into its `dist`, without a compiler on the path; status and output."""
    empty = tree / "empty"
    empty.mkdir(exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if name not in ("CC", "PATH")}
    done = subprocess.run(
        [*BUILD, "--wheel", tree], env={**clean, "PATH": str(empty), **environ},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def wheel_of(tree: Path) -> tuple[str, bytes]:
    """Its platform tag, and the library in it."""
    (wheel,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return wheel.stem.split("-", 4)[4], archive.read(LIBRARY)


@pytest.fixture(scope="session")
def without_a_compiler(built_files: tuple[Path, Path], meeting: Path) -> Path:
    """The wheel that such a machine builds, once a run: of whichever Python will have it."""
    folder = meeting / "without-a-compiler"

    def make() -> None:
        folder.mkdir(exist_ok=True)
        code, out = build(tree_of(built_files[0], folder))
        assert code == 0, out

    once(folder, make)
    (wheel,) = folder.glob("*/dist/*.whl")
    return wheel


def test_a_machine_without_a_compiler_builds_one_that_works(
    without_a_compiler: Path, tmp_path: Path, python_in_turn: Path, base_in_turn: Environment
) -> None:
    made = beside(base_in_turn, tmp_path / "environment", python_in_turn, without_a_compiler)
    assert made.script("import ckpt; print(ckpt.__file__)").out.startswith(f"{made.folder}/")
    said = made.run("ckpt", "--version")
    assert re.fullmatch(r"ckpt [\d.]+ \(clang [^,]+, \w+\)\n", said.out), said
    asked = made.script(
        "from ckpt.erasure.selftest import self_test; self_test(); print('answers well')"
    )
    assert asked.out == "answers well\n", asked


@pytest.mark.parametrize(("machine", "libc", "tag"), in_turn(FOREIGN, every=4))
def test_wheels_for_other_machines(tree: Path, machine: str, libc: str, tag: str) -> None:
    code, out = build(tree, CKPT_NATIVE_TARGET=f"{machine}-linux-{libc}")
    assert code == 0, out
    found, library = wheel_of(tree)
    assert found == f"{tag}_{machine}"
    assert struct.unpack_from("<H", library, 18) == (MACHINES[machine],)
    # What it asks of the C library is no newer than the tag says.
    versions = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)]
    assert all(minor <= 28 for minor in versions)
    assert (not versions) or libc.startswith("gnu")


def test_a_system_s_compiler_is_taken_where_there_is_one(built_files: tuple[Path, Path]) -> None:
    has_one = any(map(shutil.which, ("cc", "gcc", "clang")))
    assert ("-linux_" in built_files[1].name) is has_one


def test_a_build_that_fails_says_what_the_compiler_said(tree: Path) -> None:
    compiler = tree / "empty" / "broken"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\necho no space left >&2\nexit 3\n")
    compiler.chmod(0o755)
    code, out = build(tree, CC=str(compiler))
    assert code != 0
    assert "ckpt's C library could not be built" in out
    assert "no space left" in out
    log = (tree / "ckpt" / "native" / "build.log").read_text()
    assert log.startswith(str(compiler))
    assert "no space left" in log
