"""A job of four ranks on seven targets saves on through what befalls etcd and all coordinators: no
save and no `wait` fails, and no term begins that need not.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt_client.cli.main import main
from tests.e2e.ranks import RankProcess, done, every, launched, save_and_wait
from tests.ha.clusters import SEVEN, SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix, names_in, no_fault, proxied
from tests.ha.test_outages import leader_of
from tests.ha.writes import TRANSACTION
from tests.stores.proxy import Request

RUN = "job"
FILLER_BYTES = 16 << 20
STOPPED_S = 20.0
GONE_S = 15.0
SLOW_S = 0.3


@contextmanager
def job(
    directory: Path, etcd: Etcd, place: Prefix, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SharedCluster, list[RankProcess]]]:
    with SharedCluster(directory, etcd, place, targets=SEVEN, code="4+2") as cluster:
        monkeypatch.setenv("CKPT_SECRET_FILE", str(cluster.secret_file))
        with launched(cluster.url, 4, "start") as team:
            yield cluster, team


def save_through(team: list[RankProcess], step: int, harm: Callable[[], None]) -> None:
    """All ranks hand a burst over, and harm comes while it streams; all of them hear a commit."""
    for rank in team:
        rank.tell("save", run=RUN, step=step, version=step, filler_bytes=FILLER_BYTES)
        rank.tell("wait", run=RUN, step=step)
    harm()
    for _ in ("save", "wait"):
        done([rank.heard() for rank in team])


def check_all(team: list[RankProcess], cluster: SharedCluster, *large: int) -> None:
    """Each step loads bit by bit, and has one record."""
    names = [name.split("/") for name in names_in(cluster.etcd, cluster.place)]
    steps = sorted(int(name[2]) for name in names if name[0] == "record")
    assert steps == sorted(set(steps)), "one record of each"
    for step in steps:
        filler = FILLER_BYTES if step in large else 0
        answers = every(team, "load", run=RUN, step=step, version=step, filler_bytes=filler)
        assert all(answer["equal"] for answer in done(answers))


def rest(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_no_term_begins_when_etcd_s_leader_member_is_killed_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Etcd(tmp_path / "etcd", 3) as etcd,
        job(tmp_path / "c", etcd, Prefix(etcd.addresses), monkeypatch) as (cluster, team),
    ):
        save_and_wait(team, RUN, 1, version=1)
        leader, term = cluster.leader(), cluster.term()
        for step in (2, 3, 4):
            member = etcd.members[leader_of(etcd)]
            save_through(team, step, member.kill)
            member.start()
            member.wait_up()
        assert (cluster.leader(), cluster.term()) == (leader, term)
        check_all(team, cluster, 2, 3, 4)


def test_a_burst_outlasts_the_majority_of_etcd_that_stands_still_for_twenty_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Etcd(tmp_path / "etcd", 3) as etcd,
        job(tmp_path / "c", etcd, Prefix(etcd.addresses), monkeypatch) as (cluster, team),
    ):
        save_and_wait(team, RUN, 1, version=1)

        def stand_still() -> None:
            for member in etcd.members[1:]:
                member.stop()
            rest(STOPPED_S)
            for member in etcd.members[1:]:
                member.go_on()

        save_through(team, 2, stand_still)
        save_and_wait(team, RUN, 3, version=3)
        check_all(team, cluster, 2)


def test_a_burst_outlasts_all_coordinators_gone_for_fifteen_seconds(
    tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(tmp_path, etcd, Prefix(etcd.addresses), monkeypatch) as (cluster, team):
        save_and_wait(team, RUN, 1, version=1)

        def be_gone() -> None:
            ids = sorted(cluster.running)
            for id in ids:
                cluster.kill(id, signal.SIGKILL)
            rest(GONE_S)
            for id in ids:
                cluster.start(id)

        save_through(team, 2, be_gone)
        save_and_wait(team, RUN, 3, version=3)
        check_all(team, cluster, 2)


def test_an_etcd_whose_every_write_takes_300_ms_is_said_and_costs_no_term(
    tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "CATALOG_SLOW" stands."""

    def delay_s(request: Request) -> float:
        return SLOW_S if request.path == TRANSACTION else 0.0

    with proxied(etcd.members[0], no_fault) as proxy:
        proxy.delay_s = delay_s
        place = Prefix(f"127.0.0.1:{proxy.port}")
        with job(tmp_path, etcd, place, monkeypatch) as (cluster, team):
            term, steps = cluster.term(), 8
            for step in range(1, steps):
                save_and_wait(team, RUN, step, version=step)
            main(["status", "--json", "--store", cluster.url])
            checks = {each["name"] for each in json.loads(capsys.readouterr().out)["checks"]}
            assert "CATALOG_SLOW" in checks
            assert cluster.term() == term
            check_all(team, cluster)
