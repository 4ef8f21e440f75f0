"""What docs/preemption.md shows is run: its loop, and what a batch script does with a signal. Slurm
itself is not here.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import ckpt
from tests.e2e.cluster import Cluster
from tests.e2e.preempted import (
    ends,
    scripts,
    start,
    wait_until_it_trains,
    write_script,
)

CLUSTER_OPTIONS = "targets=3&code=2+1"


def test_the_loop_ends_with_a_saved_step_on_all_ranks_and_goes_on_from_it(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path
) -> None:
    write_script(tmp_path)
    ended = 0
    for job in ("1", "2"):
        with ExitStack() as stack:
            ranks = []
            for rank in range(2):
                seat = {"RANK": str(rank), "WORLD_SIZE": "2", "SLURM_JOB_ID": job}
                line, speaks_at = (sys.executable, "train.py"), str(ended + 20)
                ranks.append(start(cluster.url, tmp_path, *line, SPEAKS_AT=speaks_at, **seat))
                stack.callback(ranks[-1].kill)
            for process in ranks:
                wait_until_it_trains(process)
            ranks[1].send_signal(signal.SIGTERM)
            (steps, others) = (ends(process) for process in ranks)
        assert steps == others == [store.latest("gpt")]
        assert steps[0] > ended
        ended = steps[0]


def test_a_batch_script_passes_its_signal_on_and_waits(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path
) -> None:
    write_script(tmp_path)
    (tmp_path / "batch.sh").write_text(scripts("passed on"))
    before = store.latest("gpt") or 0
    process = start(
        cluster.url, tmp_path, "bash", "batch.sh", SLURM_JOB_ID="3", SPEAKS_AT=str(before + 20)
    )
    try:
        wait_until_it_trains(process)
        process.send_signal(signal.SIGUSR1)
        assert ends(process) == [store.latest("gpt")]
        assert (store.latest("gpt") or 0) > before
    finally:
        process.kill()


def test_a_batch_script_ends_with_the_code_of_a_training_that_failed(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    process = start(cluster.url, tmp_path, "bash", "-c", scripts("passed on"))
    assert ends(process, 3) == []
