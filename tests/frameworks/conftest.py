"""One cluster and one set of gloo ranks for each module of framework tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bytecode import compiled_by_one
from tests.frameworks.clusters import local_cluster
from tests.frameworks.gloo import Ranks
from tests.frameworks.warm import Warm, warm_servers
from tests.meeting import meeting_of, shared
from tests.warm_start import WARM

if TYPE_CHECKING:
    from tests.frameworks.device.emulated import Emulated

TIMEOUT_S = 600
"""Of a test without one of its own: processes import torch anew, on shared machines."""
LONGEST = (
    "test_peers.py",
    "test_torch_restarts.py",
    "test_torch_examples.py",
    "test_bench_engines.py",
    "test_torch_save.py",
    "test_reshard_bytes.py",
    "test_dcp.py",
)
"""They go first, so that no worker is left alone with one of them at the end."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Workers import torch, JAX and their friends here, all at the same time; and few others do."""
    with compiled_by_one("lightning"):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give this folder's tests time, and the long files their turn. Within a file nothing moves."""
    folder = Path(__file__).parent
    if all(item.path.is_relative_to(folder) for item in items):
        items.sort(key=lambda item: _turn(item.path.name))
    for item in items:
        ours = item.path.is_relative_to(folder)
        if ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def _turn(name: str) -> int:
    """The lower, the sooner."""
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes of JAX that tests start find compiled what an earlier one has compiled: half of
    what jax_fit.py costs.
    """
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path_factory.mktemp("jax"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`ckpt+local://DIR` of a running cluster."""
    with local_cluster(tmp_path_factory.mktemp("burst")) as url:
        yield url


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Processes start from these, which are the same for all workers of a run. Their stagers start
    warm as well.
    """
    os.environ.update(WARM.environment())
    with shared(meeting_of(tmp_path_factory), "warm", warm_servers) as directory:
        yield Warm.serving(Path(directory))


@pytest.fixture(scope="module")
def ranks(
    warm: Warm, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Ranks]:
    """Four processes for gloo groups."""
    pool = Ranks(warm, 4, Path(tmp_path_factory.mktemp("gloo")), jobs=[request.path])
    yield pool
    pool.close()


@pytest.fixture(scope="session", autouse=True)
def emulated_or_none(pytestconfig: pytest.Config) -> Emulated | None:
    """The emulated device, compiled when its sources are new; torch knows it from here on. None
    where there is no compiler.

    For all tests of a process, and before any of them: autograd makes its queues at a process's
    first backward pass, for the devices that are there.
    """
    import torch

    from tests.frameworks.device.build import built, compiler
    from tests.frameworks.device.emulated import NAME, loaded

    cxx, cache = compiler(), pytestconfig.cache
    if cxx is None:
        return None
    assert cache is not None
    found = loaded(built(cache.mkdir("emulated-device"), cxx))
    with found.attached():
        torch.ones(1, device=NAME, requires_grad=True).sum().backward()
    return found


@pytest.fixture(scope="session")
def emulated(emulated_or_none: Emulated | None) -> Emulated:
    """The same, for those who need it."""
    if emulated_or_none is None:
        pytest.skip("NO C++ COMPILER: nothing is shown about accelerators; install g++, or set CXX")
    return emulated_or_none


@pytest.fixture
def device(emulated: Emulated) -> Iterator[Emulated]:
    """torch's accelerator for one test, as new; without it torch is as on a host that has none."""
    with emulated.attached():
        yield emulated
