"""The wheel holds every package on a shelf, all of its files, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHELVES = {"ckpt": ROOT, "servers": ROOT / "servers", "clients": ROOT / "clients"} | {
    "benchmarks": ROOT / "benchmarks"
}
"""Folder -> what its packages' import names are relative to."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel of this tree, built once with the backend that is installed here."""
    folder = tmp_path_factory.mktemp("dist")
    # Without a compiler here the build fetches one for itself.
    ours = ["--no-isolation"] if any(map(shutil.which, ("cc", "gcc", "clang"))) else []
    command = [sys.executable, "-m", "build", "--wheel", *ours, "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    (path,) = folder.glob("*.whl")
    return zipfile.Path(path)


def names_in(wheel: zipfile.Path) -> set[str]:
    """Paths of all files in the wheel."""
    with zipfile.ZipFile(str(wheel.root.filename)) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def files_on_shelves() -> set[str]:
    """Paths, relative to the import root, of all files that belong to a package."""
    return {
        path.relative_to(base).as_posix()
        for folder, base in SHELVES.items()
        for package in (ROOT / folder).rglob("__init__.py")
        for path in package.parent.iterdir()
        if path.is_file() and path.suffix != ".pyc"
    }


def test_every_file_of_every_package_is_in_the_wheel(wheel: zipfile.Path) -> None:
    missing = files_on_shelves() - names_in(wheel)
    assert not missing, "list the package in pyproject.toml, or name the folder's __init__.py"


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for folder in SHELVES for path in (ROOT / folder).rglob("*.py")}
    folders.remove(ROOT / "ckpt" / "native" / "source")  # Built into the wheel, and not installed.
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_nothing_but_packages_is_in_the_wheel(wheel: zipfile.Path) -> None:
    tops = {name.partition("/")[0] for name in names_in(wheel)}
    packages = {name.partition("/")[0] for name in files_on_shelves()}
    assert {top for top in tops if not top.endswith(".dist-info")} == packages


def test_every_command_stands_on_a_module_of_the_wheel(wheel: zipfile.Path) -> None:
    (entry_points,) = (name for name in names_in(wheel) if name.endswith("/entry_points.txt"))
    text = (wheel / entry_points).read_text()
    commands = text.partition("[console_scripts]")[2].partition("[")[0]
    assert re.findall(r"^(\w+) =", commands, re.MULTILINE) == ["ckpt", "ckptbench", "ckptd"]
    modules = re.findall(r"= ([\w.]+):\w+", text)
    names = names_in(wheel)
    for module in modules:
        base = module.replace(".", "/")
        assert f"{base}.py" in names or f"{base}/__init__.py" in names, module


def test_the_licence_travels_with_it(wheel: zipfile.Path) -> None:
    assert any(name.endswith("/LICENSE") for name in names_in(wheel))


def test_each_package_says_that_it_has_types(wheel: zipfile.Path) -> None:
    names = names_in(wheel)
    packages = {name.partition("/")[0] for name in names if "dist-info" not in name}
    assert packages
    assert {f"{package}/py.typed" for package in packages} <= names
