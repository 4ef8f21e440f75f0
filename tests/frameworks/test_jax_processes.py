"""JAX over several processes: each stores and loads what its devices hold."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.clusters import local_cluster

ROOT = Path(__file__).resolve().parents[2]
PROCESS = "tests.frameworks.jax_process"
DEVICES = 4
TIMEOUT_S = 300.0


def run(url: str, count: int, verb: str) -> None:
    """So many processes; each must end well. What they load comes from the targets: a runtime
    directory of their own hides the memory of earlier stagers.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as runtime:
        environ = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
            "XDG_RUNTIME_DIR": runtime,
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", PROCESS, url, str(rank), str(count), port, verb],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                env=environ,
            )
            for rank in range(count)
        ]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Without parity: on a busy machine bytes of a slow target would be read twice."""
    with local_cluster(tmp_path_factory.mktemp("burst"), code="3+0") as url:
        yield url


@pytest.fixture(scope="module")
def saved(cluster: str) -> str:
    """The cluster, with what two processes saved, after a step that one of them refused."""
    run(cluster, 2, "save")
    return cluster


def test_one_process_loads_what_two_have_saved(saved: str) -> None:
    run(saved, 1, "load")


def test_two_processes_read_together_what_both_need(saved: str) -> None:
    run(saved, 2, "load")
