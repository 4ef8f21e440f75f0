"""A step whose targets are away, and that the drain has put into a directory: the same step is
loaded from there, once the tier was waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ckpt.objects.sinks.file_sink import FileSink
from tests.e2e.cluster import Cluster
from tests.e2e.ranks import done, end_with_stagers, every, launched, save_and_wait
from tests.objects.drainkit import FILLER_BYTES, draining, wait_drained
from tests.waiting import ASKED_S, wait_until

AWAY = ("t1", "t2")
"""Without these two of three targets nothing can be read at 2+1."""
TIMEOUT_S = 2.0


@pytest.fixture(scope="module")
def cluster(
    mark: str, tmp_path_factory: pytest.TempPathFactory, sink: FileSink
) -> Iterator[Cluster]:
    """Steps 1 and 2 of a run are drained; step 3 of another is not."""
    with draining(tmp_path_factory.mktemp("burst"), f"{sink.url}?runs=away") as made:
        with launched(made.url, 2, launch="saving") as team:
            for step in (1, 2):
                save_and_wait(team, "away", step, version=step, filler_bytes=FILLER_BYTES)
            save_and_wait(team, "undrained", 3)
            end_with_stagers(team)  # Whose memory is nearer than any store.
        wait_drained(sink, "away", 1, 2)
        yield made


@pytest.fixture
def away(cluster: Cluster) -> Iterator[None]:
    """The two targets are dead meanwhile."""
    cluster.kill(*AWAY)
    yield
    for id in AWAY:
        (cluster.directory / "targets" / id / "held").unlink()
    wait_until(lambda: cluster.live() >= set(AWAY), "they are back", poll_s=ASKED_S)


def load_question(run: str = "away", version: int = 2) -> dict[str, object]:
    return {"run": run, "version": version, "filler_bytes": FILLER_BYTES, "timeout_s": TIMEOUT_S}


@pytest.mark.usefixtures("away")
def test_all_ranks_load_the_same_step_from_the_store(cluster: Cluster, sink: FileSink) -> None:
    with launched(cluster.url, 2, launch="both", durable=sink.url) as team:
        loads = done(every(team, "load", **load_question()))
    assert [(a["step"], a["equal"], a["source"]) for a in loads] == [(2, True, "store")] * 2
    for load in loads:
        (warning,) = load.warnings
        assert "is out of reach in the tier: targets t1, t2 do not answer; it is" in warning


@pytest.mark.usefixtures("away")
def test_a_rank_without_a_store_gets_an_error_and_no_other_step(
    cluster: Cluster, sink: FileSink
) -> None:
    with (
        launched(cluster.url, 1, launch="plain") as (plain,),
        launched(cluster.url, 1, launch="not there", durable=sink.url) as (durable,),
    ):
        refused = plain.ask("load", **load_question())
        missing = durable.ask("load", **load_question("undrained"))
    assert (refused.error, missing.error) == ("unavailable", "unavailable")
    assert "t1, t2" in missing.text


def test_targets_that_hang_in_the_middle_of_a_load_send_it_to_the_store(
    cluster: Cluster, sink: FileSink
) -> None:
    pids = [cluster.pid_of(target) for target in AWAY]
    with launched(cluster.url, 2, launch="hung", durable=sink.url) as (rank, _):
        with ExitStack() as stack:
            for pid in pids:
                stack.enter_context(cluster.stopped(pid))
            load = rank.ask("load", **load_question())
        assert (load["step"], load["equal"], load["source"]) == (2, True, "store")
    wait_until(lambda: cluster.live() >= set(AWAY), "they are back", poll_s=ASKED_S)
