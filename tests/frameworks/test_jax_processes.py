"""JAX over several processes: each stores and loads what its devices hold."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.frameworks.clusters import local_cluster
from tests.frameworks.warm import Warm
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.frameworks.jax_process"
PROCESS = ROOT.joinpath(*MODULE.split(".")).with_suffix(".py")
DEVICES = 4
TIMEOUT_S = 300.0


def run(warm: Warm, url: str, count: int, *verbs: str) -> None:
    """So many processes, which start warm; each must end well, and one that does not ends the
    others, which would wait for it. What they load comes from the targets: a runtime directory of
    their own hides the memory of earlier stagers.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as runtime, ExitStack() as opened:
        environ = {
            **os.environ,
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
            "XDG_RUNTIME_DIR": runtime,
        }
        logs = [Path(runtime) / f"process-{rank}.log" for rank in range(count)]
        processes = [
            subprocess.Popen(
                warm.jax_command(PROCESS, url, str(rank), str(count), port, *verbs),
                stdout=opened.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environ,
            )
            for rank, log in enumerate(logs)
        ]

        def ended() -> bool:
            codes = [process.poll() for process in processes]
            return None not in codes or any(codes)

        try:
            with suppress(AssertionError):  # A process that hangs has no code.
                wait_until(ended, f"{count} processes that {verbs}", TIMEOUT_S)
            codes = [process.poll() for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert codes == [0] * count, [log.read_text()[-4000:] for log in logs]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Without parity: on a busy machine bytes of a slow target would be read twice."""
    with local_cluster(tmp_path_factory.mktemp("burst"), code="3+0") as url:
        yield url


@pytest.fixture(scope="module")
def saved(cluster: str, warm: Warm) -> str:
    """The cluster, with what two processes saved, after a step that one of them refused."""
    run(warm, cluster, 2, "save")
    return cluster


def test_one_process_loads_what_two_have_saved(saved: str, warm: Warm) -> None:
    run(warm, saved, 1, "load")


def test_two_processes_read_together_and_save_beside_their_computations_or_not_at_all(
    saved: str, warm: Warm
) -> None:
    """In this order in the same two: they cost more than what they do."""
    run(warm, saved, 2, "load", "overlap")
