"""The wheel, and environments with it, made once for each Python and worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wheel.environments import VERSIONS, Environment, built, interpreter, made


@pytest.fixture(scope="session")
def built_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    return built(tmp_path_factory.mktemp("dist"))


@pytest.fixture(
    scope="session",
    # One worker has all tests of a Python.
    params=[pytest.param(version, marks=pytest.mark.xdist_group(version)) for version in VERSIONS],
)
def python(request: pytest.FixtureRequest) -> Path:
    """Each Python in turn; those that are not here are skipped, by name."""
    version: str = request.param
    found = interpreter(version)
    if found is None:
        pytest.skip(f"Python {version} is not here: put python{version} on the path")
    return found


@pytest.fixture(scope="session")
def base(
    python: Path, built_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """`pip install ckpt-burst`."""
    return made(tmp_path_factory.mktemp("base") / "venv", python, str(built_files[1]))


@pytest.fixture(scope="session")
def server(
    python: Path, built_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """`pip install 'ckpt-burst[server]'`."""
    folder = tmp_path_factory.mktemp("server") / "venv"
    return made(folder, python, f"{built_files[1]}[server]")
