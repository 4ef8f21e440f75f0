"""A machine that computes wrong parity does no harm: each process finds out before it encodes,
decodes or serves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.aio.secret import make_secret
from tests.e2e.cluster import Cluster, runs
from tests.harm import WRONG_ISAL, harmed
from tests.waiting import wait_until

CLUSTER_OPTIONS = "targets=4&code=2+1&restart=never"
WAIT_S = 60.0
PAYLOAD = np.random.default_rng(11).integers(0, 255, 3 << 20, "u1")
REFUSAL = "erasure code gives wrong answers; unsafe to start"

_LOAD = """
import sys, ckpt
with ckpt.open(sys.argv[1]) as store:
    try:
        print("loaded", len(store.load(sys.argv[2])["a"]))
    except ckpt.CkptError as error:
        print(error)
"""
_SAVE = """
import sys, ckpt, numpy
with ckpt.open(sys.argv[1]) as store:
    try:
        print(store.save(sys.argv[2], 1, {"a": numpy.ones(1 << 20)}).wait(60))
    except ckpt.CkptError as error:
        print(error)
"""


@pytest.fixture
def wrong(mark: str, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that computes wrongly; the cluster was started outside it."""
    return harmed(tmp_path, WRONG_ISAL)


def said(script: str, *arguments: str, environ: dict[str, str]) -> str:
    """What a process of that environment prints."""
    line = [sys.executable, "-c", script, *arguments]
    ended = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
    return ended.stdout


def test_a_reader_whose_erasure_code_is_wrong_refuses_to_decode(
    cluster: Cluster, wrong: dict[str, str]
) -> None:
    with ckpt.open(cluster.url) as store:
        store.save("read", 1, {"a": PAYLOAD}).wait(WAIT_S)
        (stager,) = store._stagers.links.values()
        os.kill(stager.pid, signal.SIGKILL)
    wait_until(lambda: not runs(stager.pid), "nobody's memory holds it any more")
    (holder,) = (
        id for id, files in cluster.columns_of("read").items() for f in files if f.name[-2:] == "-0"
    )
    cluster.kill(holder)
    assert REFUSAL in said(_LOAD, cluster.url, "read", environ=wrong)
    with ckpt.open(cluster.url) as store:
        again = store.load("read")
        assert isinstance(again, dict)
        np.testing.assert_array_equal(again["a"], PAYLOAD)


def test_a_save_whose_stager_computes_wrong_parity_is_refused_before_a_byte_is_stored(
    cluster: Cluster, wrong: dict[str, str]
) -> None:
    assert REFUSAL in said(_SAVE, cluster.url, "written", environ=wrong)
    with ckpt.open(cluster.url) as store:
        assert store.latest("written") is None
        assert not any(cluster.columns_of("written").values())
        assert store.save("written", 2, {"a": PAYLOAD}).wait(WAIT_S).step == 2


def refused(wrong: dict[str, str], directory: Path, *line: str) -> None:
    """`ckptd LINE` says why, and ends."""
    make_secret(directory / "secret")
    ended = subprocess.run(
        [sys.executable, "-m", "ckptd.cli", *line, "--coordinator", "127.0.0.1:9"],
        env={**wrong, "CKPT_SECRET_FILE": str(directory / "secret")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ended.returncode, REFUSAL in ended.stderr) == (1, True), ended.stderr


def test_a_target_on_a_wrong_machine_does_not_start(wrong: dict[str, str], tmp_path: Path) -> None:
    refused(wrong, tmp_path, "target", "--directory", str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


def test_a_repair_worker_on_a_wrong_machine_does_not_start(
    wrong: dict[str, str], tmp_path: Path
) -> None:
    """Else it would make columns that are none: each cell is compared, so it would do no harm, and
    no good either.
    """
    refused(wrong, tmp_path, "repair")
