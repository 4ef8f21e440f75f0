"""The sdist, the wheel, and environments with it: made once a run, when a test first asks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.landing import in_turn
from tests.wheel.environments import VERSIONS, Environment, Environments, built, interpreter


@pytest.fixture(scope="session")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all workers of a run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def built_files(meeting: Path) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    return built(meeting / "dist")


@pytest.fixture(scope="session")
def environments(built_files: tuple[Path, Path], meeting: Path) -> Environments:
    """Of all Pythons."""
    return Environments(meeting / "environments", wheel=built_files[1])


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    """Each Python; those that are not here are skipped, by name."""
    return _python(request.param)


@pytest.fixture(params=in_turn(VERSIONS, every=2))
def python_in_turn(request: pytest.FixtureRequest) -> Path:
    """Every other Python, the others at the next landing: for what is said alike under all."""
    return _python(request.param)


def _python(version: str) -> Path:
    found = interpreter(version)
    if found is None:
        pytest.skip(f"Python {version} is not here: put python{version} on the path")
    return found


@pytest.fixture
def server(python: Path, environments: Environments) -> Environment:
    """`pip install 'ckpt-burst[server]'`."""
    return environments.of(python, extra="server")


@pytest.fixture
def base_in_turn(python_in_turn: Path, environments: Environments) -> Environment:
    """`pip install ckpt-burst`. What that brings [server] brings as well, under each Python."""
    return environments.of(python_in_turn)


@pytest.fixture
def server_in_turn(python_in_turn: Path, environments: Environments) -> Environment:
    """As `server`."""
    return environments.of(python_in_turn, extra="server")
