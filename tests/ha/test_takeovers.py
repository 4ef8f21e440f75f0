"""A job that saves and loads does not notice that its coordinators die one after the other."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.units import KiB
from ckpt_client.cli.main import main
from tests.ha.clusters import SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix, names_in, pairs_in, value_of
from tests.landing import in_turn
from tests.waiting import ASKED_S, wait_until

RUN = "llama/7b"
WAIT_S = 60.0
HANGED = 3
SAVES = 4


@pytest.fixture
def cluster(tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedCluster]:
    with SharedCluster(tmp_path, etcd, Prefix(etcd.addresses)) as made:
        monkeypatch.setenv("CKPT_SECRET_FILE", str(made.secret_file))
        yield made


def state(step: int) -> dict[str, object]:
    return {"w": np.arange(500_000) * step, "step": step}


def check_loads(store: ckpt.Store, step: int) -> None:
    found = store.load(RUN, step)
    assert isinstance(found, dict)
    assert found["step"] == step
    assert np.array_equal(found["w"], np.arange(500_000) * step)


def one_record_a_step(cluster: SharedCluster, steps: int) -> None:
    records = [name for name in names_in(cluster.etcd, cluster.place) if name.startswith("record/")]
    saved = sorted(int(name.split("/")[2]) for name in records)
    assert saved == list(range(1, steps + 1))


class Hangman(threading.Thread):
    """I end whoever leads, by this signal, start it again, and go on until `stop`."""

    def __init__(self, cluster: SharedCluster, number: signal.Signals) -> None:
        super().__init__(name="hangman")
        self.cluster, self.number = cluster, number
        self.stop = threading.Event()
        self.count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.wait(0.5):
                leader = self.cluster.leader()
                self.cluster.kill(leader, self.number)
                self.cluster.leader(but=leader)
                assert self.cluster.start(leader).ready
                self.count += 1
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize(
    "number", in_turn([signal.SIGKILL, signal.SIGTERM], every=2), ids=lambda each: each.name
)
def test_a_job_saves_on_while_one_leader_after_the_other_ends(
    cluster: SharedCluster, number: signal.Signals
) -> None:
    hangman = Hangman(cluster, number)
    hangman.start()
    step = 0
    try:
        with ckpt.open(cluster.url) as store:
            while hangman.count < HANGED and hangman.is_alive():
                step += 1
                store.save(RUN, step, state(step)).wait(WAIT_S)
                check_loads(store, step)
    finally:
        hangman.stop.set()
        hangman.join()
    assert hangman.error is None
    with ckpt.open(cluster.url) as store:
        assert store.latest(RUN) == step
        for earlier in range(1, step + 1):
            check_loads(store, earlier)
    one_record_a_step(cluster, step)


def test_a_leader_that_stands_still_and_wakes_beside_its_successor_does_no_harm(
    cluster: SharedCluster,
) -> None:
    with ckpt.open(cluster.url) as store:
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        before = cluster.leader()
        process = cluster.running[before].process
        save = store.save(RUN, 2, state(2))
        process.send_signal(signal.SIGSTOP)
        save.wait(WAIT_S)
        cluster.leader(but=before)
        store.save(RUN, 3, state(3)).wait(WAIT_S)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: cluster.logged(before, "the term ends") == 1, "it has noticed")
        store.save(RUN, 4, state(4)).wait(WAIT_S)
        for step in range(1, 5):
            check_loads(store, step)
    one_record_a_step(cluster, 4)


def test_a_job_goes_on_when_all_coordinators_were_replaced_under_it(
    cluster: SharedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its session to who leads stands until all that it was given are gone."""
    given, url, leader = cluster.addresses, cluster.url, cluster.leader()
    with ckpt.open(url) as store:
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        assert cluster.leader() == leader
        for old, new in zip(sorted(set("abc") - {leader}), "de", strict=True):
            cluster.listen[new] = "127.0.0.1:0"
            assert cluster.start(new).ready
            cluster.kill(old, signal.SIGTERM)
            # Who is asked looks who runs.
            assert main(["coordinator", "ls", "--store", url]) == 0
            assert cluster.listen[new] in capsys.readouterr().out
        cluster.kill(leader, signal.SIGTERM)
        assert not {cluster.listen[id] for id in cluster.running} & set(given.split(","))
        store.save(RUN, 2, state(2)).wait(WAIT_S)
        check_loads(store, 1)
        check_loads(store, 2)
    one_record_a_step(cluster, 2)


def test_a_save_costs_the_catalog_four_transactions_and_eight_kib(cluster: SharedCluster) -> None:
    def written() -> int:
        return int(value_of(cluster.etcd, cluster.place, "sequence") or 0)

    with ckpt.open(cluster.url) as store:
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        before, held = written(), pairs_in(cluster.etcd, cluster.place)
        for step in range(2, 2 + SAVES):
            store.save(RUN, step, state(step)).wait(WAIT_S)
        taken = written() - before
    after = pairs_in(cluster.etcd, cluster.place)
    text = sum(len(name) + len(value) * 3 // 4 for name, value in after.items())
    text -= sum(len(name) + len(value) * 3 // 4 for name, value in held.items())
    assert 0 < taken <= 4 * SAVES
    assert 0 < text <= SAVES * 8 * KiB


def test_a_save_waits_for_an_etcd_without_a_majority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Etcd(tmp_path / "etcd", 3) as etcd,
        SharedCluster(tmp_path, etcd, Prefix(etcd.addresses), ids="ab") as cluster,
    ):
        monkeypatch.setenv("CKPT_SECRET_FILE", str(cluster.secret_file))
        with ckpt.open(cluster.url) as store:
            store.save(RUN, 1, state(1)).wait(WAIT_S)
            before = cluster.leader()
            for member in etcd.members[1:]:
                member.kill()
            save = store.save(RUN, 2, state(2))
            wait_until(
                lambda: cluster.logged(before, "its lease was not kept") == 1, "nobody leads"
            )
            for member in etcd.members[1:]:
                member.start()
            save.wait(WAIT_S)
            store.save(RUN, 3, state(3)).wait(WAIT_S)
            for step in range(1, 4):
                check_loads(store, step)
        one_record_a_step(cluster, 3)


def test_space_that_stands_for_the_next_save_is_used_by_it_under_the_next_leader(
    cluster: SharedCluster,
) -> None:
    """It would be held for a minute beside what was asked for again."""

    def reserved() -> set[str]:
        found = (cluster.directory / id / "staging" for id in cluster.targets)
        return {file.name for each in found for file in each.glob("reservation-*")}

    with ckpt.open(cluster.url) as store:
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        wait_until(lambda: len(reserved()) == len(cluster.targets), "three columns and a spare")
        stood = reserved()
        before = cluster.leader()
        cluster.kill(before, signal.SIGKILL)
        cluster.leader(but=before)
        # What stands on a target that is late is an orphan once the save has been planned.
        all_here = lambda: cluster.live_count() == len(cluster.targets)  # noqa: E731
        wait_until(all_here, "all targets are here", poll_s=ASKED_S)
        store.save(RUN, 2, state(2)).wait(WAIT_S)
        wait_until(lambda: not stood & reserved(), "the save has used it, or given it back")
        wait_until(lambda: len(reserved()) == len(cluster.targets), "the same for the next one")
        check_loads(store, 2)
