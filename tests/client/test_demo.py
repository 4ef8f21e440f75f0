"""`ckpt demo` as a user runs it: real daemons, trainers, stagers and signals."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

BIRTHMARK = "CKPT_TEST_BIRTHMARK"


@pytest.fixture
def birthmark() -> str:
    return secrets.token_hex(16)


def start(directory: Path, birthmark: str, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ckpt_client.cli.main", "demo", "--directory", str(directory)]
    return subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, BIRTHMARK: birthmark},
        start_new_session=True,
    )


def born_with(birthmark: str) -> list[int]:
    """Processes that descend from the demo, however they were started."""
    wanted = f"{BIRTHMARK}={birthmark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if wanted in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[dict[str, object]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


@pytest.mark.timeout(240)
def test_a_run_that_loses_targets_trainers_and_stagers_ends_with_the_control_runs_bits(
    tmp_path: Path, birthmark: str
) -> None:
    with start(tmp_path, birthmark, "--json", "--steps", "24") as process:
        assert process.stderr is not None
        documents = list(lines_of(process))
        errors = process.stderr.read().decode()
        assert process.wait() == 0, (errors, documents[-1])
    summary = documents[-1]
    assert summary["message_type"] == "summary"
    assert summary["ok"] is True
    listed = summary["checks"]
    assert isinstance(listed, list)
    checks = {check["name"]: check["held"] for check in listed}
    assert len(checks) == 9
    assert all(checks.values()), checks
    figures = summary["figures"]
    assert isinstance(figures, dict)
    assert figures["bytes_rebuilt"] > 0
    assert figures["saves_committed"] >= 6
    assert figures["redundancy_before"].startswith("survives 2 targets")
    assert {each["message_type"] for each in documents[:-1]} == {"phase", "progress", "event"}
    assert list(tmp_path.iterdir()) == []
    assert born_with(birthmark) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_file(
    tmp_path: Path, birthmark: str, number: signal.Signals
) -> None:
    with start(tmp_path, birthmark, "--json", "--steps", "2000", "--save-every", "500") as process:
        for document in lines_of(process):
            if document["message_type"] == "progress":
                break
        assert len(born_with(birthmark)) >= 5, "the director and four ranks"
        process.send_signal(number)
        process.communicate()
        assert process.returncode == 128 + number
    wait_until(lambda: not born_with(birthmark), "the end of what the demo started")
    assert list(tmp_path.iterdir()) == []


def test_a_demo_interrupted_beside_its_cluster_ends_the_cluster(
    tmp_path: Path, birthmark: str
) -> None:
    flags = ("--json", "--steps", "16", "--width", "32")
    with start(tmp_path, birthmark, *flags) as process:
        for document in lines_of(process):
            if document["phase"] == "disturbed run" and document["message_type"] == "progress":
                break
        assert len(born_with(birthmark)) >= 14, "director, ranks, supervisor, coordinator, targets"
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode == 128 + signal.SIGINT
    wait_until(lambda: not born_with(birthmark), "the end of what the demo started")
    assert list(tmp_path.iterdir()) == []
