"""What the packages import is what pyproject.toml declares: the base alone carries a trainer, and
each extra what its rooms need besides."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from typing import Final

import pytest

from ckpt.base.extras import EXTRA_OF
from tests.tree import ROOT, Source, module_of, nodes_of, parsed, sources

PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
BASE: Final = PYPROJECT["project"]["dependencies"]
EXTRAS: Final = PYPROJECT["project"]["optional-dependencies"]
OURS: Final = {"ckpt", "ckptd", "ckpt_client", "ckpt_torch", "ckpt_jax", "ckptbench"}
DISTRIBUTION: Final = {"orbax": "orbax-checkpoint"}
"""Import name -> distribution, where they differ by more than a dash."""
ROOMS: Final = {
    "ckpt.objects": ("zarr", "s3"),
    "ckpt_client.exchange": ("zarr", "torch"),
    "ckptd": ("server",),
    "ckpt_torch": ("torch",),
    "ckpt_torch.lightning": ("lightning",),
    "ckpt_torch.accelerate": ("huggingface",),
    "ckpt_torch.transformers": ("huggingface",),
    "ckpt_torch.nvrx": ("nvrx",),
    "ckpt_torch.torch_checkpointing": ("torch-checkpointing",),
    "ckpt_torch.torchtitan": ("torchtitan",),
    "ckpt_jax": ("jax",),
    "ckptbench": ("bench",),
}
"""Module, or room of modules -> the extras that its user has. All others have the base."""
BY_URL: Final = {"adlfs", "gcsfs", "s3fs"}
"""What fsspec imports for us."""
FOR_ITS_FILES: Final = {"pyeclib"}
"""Its wheel carries ISA-L, which we load by its path."""
BY_BUILD: Final = "ckpt/native/source/"
"""Runs when a wheel is built, with what the build system brings; it is not installed."""
BY_TESTS: Final = {"ckpt.testing"}
"""Contract suites, for those who have pytest."""


@pytest.fixture(scope="module", autouse=True)
def _parsed() -> Iterator[None]:
    with parsed():
        yield


def distribution(name: str) -> str:
    """As pip spells it, of an import name or of a requirement."""
    bare = re.split(r"[\[<>=;~! ]", DISTRIBUTION.get(name, name), maxsplit=1)[0]
    return bare.replace("_", "-").lower()


def declared(extra: str) -> set[str]:
    """The distributions of an extra, and of those that it names."""
    found: set[str] = set()
    for line in EXTRAS[extra]:
        inner = re.match(r"ckpt-burst\[(.+)\]", line)
        names = inner[1].split(",") if inner else ()
        found |= set().union(*map(declared, names)) if inner else {distribution(line)}
    return found


def imported(source: Source) -> Iterator[str]:
    """Top names of the foreign packages that a file imports anywhere, lazily or not."""
    for node in nodes_of(source):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case _:
                continue
        tops = {module.partition(".")[0] for module in modules}
        # `_typeshed` is there for type checkers alone.
        yield from tops - OURS - {"_typeshed"} - sys.stdlib_module_names


def room_of(module: str, rooms: set[str]) -> str:
    """The nearest of the rooms that holds a module; empty without one."""
    inside = [room for room in rooms if f"{module}.".startswith(f"{room}.")]
    return max(inside, key=len, default="")


PACKAGED: Final = [
    source
    for source in sources()
    if not source.is_test
    and not source.path.startswith(BY_BUILD)
    and not room_of(module_of(source), BY_TESTS)
]


def test_a_module_imports_what_the_base_or_its_room_s_extra_brings() -> None:
    base = set(map(distribution, BASE))
    undeclared = {}
    for source in PACKAGED:
        extras = ROOMS.get(room_of(module_of(source), set(ROOMS)), ())
        known = base.union(*map(declared, extras))
        if lacking := {name for name in imported(source) if distribution(name) not in known}:
            undeclared[source.path] = sorted(lacking)
    assert undeclared == {}


def test_nothing_is_required_that_nobody_imports() -> None:
    used = {distribution(name) for source in PACKAGED for name in imported(source)}
    required = set(map(distribution, BASE)).union(*map(declared, EXTRAS))
    assert required - used == BY_URL | FOR_ITS_FILES


def test_what_builds_a_wheel_imports_what_the_build_system_brings() -> None:
    brought = set(map(distribution, PYPROJECT["build-system"]["requires"]))
    builders = [source for source in sources() if source.path.startswith(BY_BUILD)]
    assert {name for source in builders for name in imported(source)} == brought


@pytest.mark.parametrize(("package", "extra"), sorted(EXTRA_OF.items()))
def test_the_extra_that_an_error_names_brings_the_package(package: str, extra: str) -> None:
    assert distribution(package) in declared(extra)


def test_every_package_of_an_extra_has_an_error_that_names_the_extra() -> None:
    stores = declared("s3") | declared("gs") | declared("az")
    named = set(map(distribution, EXTRA_OF)) | stores | set(map(distribution, BASE))
    assert set().union(*map(declared, EXTRAS)) - named == set()


def test_all_has_every_extra_but_those_for_the_benchmark_and_for_single_vendors() -> None:
    vendors = ("nvrx", "torch-checkpointing", "torchtitan")
    apart = declared("bench").union(*map(declared, vendors))
    assert declared("all") == set().union(*map(declared, EXTRAS)) - (apart - declared("all"))
    assert declared("server") | declared("zarr") | declared("s3") <= declared("all")
