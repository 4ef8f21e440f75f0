"""Properties state facts, never times: a busy machine must not fail them. Long files run first, so
that no worker is left alone with one of them at the end. And what fails is told at once: a run that
hangs later and is cut off has no summary.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.landing import IS_LANDING, LANDING

TESTS: Final = Path(__file__).parent
LONGEST: Final = (
    "client/test_health_checks.py",
    "e2e_remote/test_copied_directories.py",
    "e2e/test_catalog_lost.py",
    "e2e/test_launches.py",
    "machines/test_power_loss.py",
    "objects/test_starved_worker.py",
    "objects/test_drain_queue.py",
    "client/test_cli_cluster.py",
    "client/test_demo.py",
    "e2e/test_catalog_lost_remote.py",
    "e2e/test_losses.py",
    "objects/test_store_fan_out.py",
    "e2e/test_bursts.py",
    "soak/test_kill_at_random.py",
    "client/test_end_to_end.py",
    "machines/test_clock_jumps.py",
    "machines/test_campaign.py",
    # Of test-stores: while the first of these starts the gateway, the next two need none.
    "stores/test_store_faults.py",
    "stores/test_newest_zarr.py",
    "stores/test_azure.py",
    "stores/test_bench_jobs.py",
    "stores/test_drain_kills.py",
    "stores/test_bench_errors.py",
    "stores/test_unusable_store.py",
)
"""Each lasts from half a minute to two."""
OF_PROCESSES: Final = (
    "e2e_remote", "e2e", "machines", "objects", "bench", "client", "ckptd", "versions", "mutants",
    "transfer", "aio", "fs", "sim",
)  # fmt: skip
"""Folders of tests with clusters, connections or histories; others take milliseconds."""

# Images of containers set it, and users' machines do not: what is started buffers as it does there.
os.environ.pop("PYTHONUNBUFFERED", None)

LANDING_EXAMPLES: Final = 25
"""Of each property that does not say how many. Each hundred commits draw others; make soak, and
pytest without make, draw Hypothesis's hundred, by chance.
"""
LANDINGS_ALIKE: Final = 100
"""What a change fails it fails at its own commits first, not at the one that merges it."""
TOLD_LINES: Final = 40
"""Of a failure, at once; all of it follows at the end."""


class Herald:
    """I tell of a failure where people look, not in a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            text = "\n".join([report.longreprtext, report.capstderr]).splitlines()
            terminal.write_line("")
            terminal.write_line(f"{report.nodeid} failed ({report.when}), its last lines:")
            for line in text[-TOLD_LINES:]:
                terminal.write_line(f"    {line}")


# Nothing that is imported and collected is garbage: see `pytest_collection_finish`.
gc.disable()
# numpy's thread pool costs each of the processes that tests start a third of its import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Threads of torch's wait for each other by spinning. Where others have the cores, that is all they
# do: a training of 200 tiny steps took 20 s of CPU, and takes one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Whoever runs the tests may have a store, its secret or a daemon's option in their shell.
for variable in ("CKPT_STORE", "CKPT_SECRET_FILE", "CKPT_WIRE", "CKPT_DURABLE"):
    os.environ.pop(variable, None)
for variable in [one for one in os.environ if one.startswith("CKPT_") and "__" in one]:
    del os.environ[variable]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        config.pluginmanager.register(Herald(config), "herald")
    if is_worker or not config.getoption("numprocesses", None):
        _settle_properties(config)


def _settle_properties(config: pytest.Config) -> None:
    """Before a test module is imported. Who leads workers imports none, and does without.

    In CI Hypothesis draws the same each time, unless it must not.
    """
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow]
    facts = settings(deadline=None, suppress_health_check=slow)
    settings.register_profile("facts", facts)
    settings.register_profile("landing", facts, derandomize=False, max_examples=LANDING_EXAMPLES)
    settings.load_profile("landing" if IS_LANDING else "facts")
    if IS_LANDING and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(LANDING // LANDINGS_ALIKE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers take files in this order. Within a file nothing moves."""
    items.sort(key=lambda item: _turn(item.path.relative_to(TESTS)))


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the cyclic collector need not walk them each time, nor
    now, for the few megabytes that imports let go. And it comes rarely: as often as Python has it,
    it was a tenth of what histories cost.
    """
    from ckpt.aio.collector import collect_rarely

    gc.freeze()
    gc.enable()
    collect_rarely()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """pytest walks all objects five times at the end of each process of its own, and Python once
    more. What is garbage goes at the first time; the others need not walk the rest.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _warm_start() -> Iterator[None]:
    """Supervisors, stagers and what a command starts, in a test's own process, are forked warm."""
    from ckpt_client.cli import daemons
    from tests.warm_child import start_printing_child
    from tests.warm_start import WARM, start_warm

    start_warm()
    daemons.start_child = start_printing_child
    yield
    WARM.close()


def _turn(file: Path) -> int:
    """The lower, the sooner."""
    if file.as_posix() in LONGEST:
        return LONGEST.index(file.as_posix())
    folder = file.parts[0]
    later = OF_PROCESSES.index(folder) if folder in OF_PROCESSES else len(OF_PROCESSES)
    return len(LONGEST) + later
