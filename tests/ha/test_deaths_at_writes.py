"""The leader dies at each kind of catalog write, ahead of it and after it, with its answer on the
way: a job of four ranks on seven targets hears nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt_client.cli.main import main
from tests.e2e.ranks import RankProcess, done, every, launched, save_and_wait
from tests.ha.clusters import SEVEN, SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix, names_in, no_fault, proxied
from tests.ha.writes import Assassin, Kind
from tests.stores.proxy import Fault
from tests.waiting import wait_until

RUN = "job"
FAULTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER)

Team = Sequence[RankProcess]
Deed = Callable[[Team, SharedCluster], None]


def saves(step: int) -> Deed:
    def save(team: Team, _cluster: SharedCluster) -> None:
        save_and_wait(team, RUN, step, version=step)

    return save


def loads(team: Team, _cluster: SharedCluster) -> None:
    for answer in done(every(team, "load", run=RUN, version=4)):
        assert (answer["step"], answer["equal"]) == (4, True)


def says(*words: str) -> Deed:
    def say(_team: Team, cluster: SharedCluster) -> None:
        assert main([*words, "--store", cluster.url]) == 0

    return say


SAVING: tuple[tuple[Kind, Deed], ...] = (
    (Kind("launch/"), saves(1)),
    (Kind("row/", '"open"'), saves(2)),
    (Kind("record/"), saves(3)),
    (Kind("row/", '"committed"'), saves(4)),
    (Kind("launch/", "4#"), loads),
)
KEEPING: tuple[tuple[Kind, Deed], ...] = (
    (Kind("label/", "best"), says("tag", f"{RUN}@2", "best")),
    (Kind("retention/"), says("keep", RUN, "--last", "9")),
    (Kind("row/", '"tombstoned"'), says("rm", f"{RUN}@1")),
    (Kind("target/h3d1"), lambda _team, cluster: new_target(cluster)),
)


def new_target(cluster: SharedCluster) -> None:
    cluster.start_target("h3d1")
    assert cluster.targets["h3d1"].ready


@contextmanager
def doomed(
    directory: Path, etcd: Etcd, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SharedCluster, Assassin, Team]]:
    """All coordinators reach etcd by way of the assassin."""
    with proxied(etcd.members[0], no_fault) as proxy:
        place = Prefix(f"127.0.0.1:{proxy.port}")
        with SharedCluster(directory, etcd, place, targets=SEVEN, code="4+2") as cluster:
            assassin = proxy.decide = Assassin(cluster, fault)
            monkeypatch.setenv("CKPT_SECRET_FILE", str(cluster.secret_file))
            with launched(cluster.url, 4, "start") as team:
                yield cluster, assassin, team


def die_at(kind: Kind, deed: Deed, cluster: SharedCluster, assassin: Assassin, team: Team) -> None:
    """All three run again on return."""
    term = cluster.term()
    assassin.kind = kind
    deed(team, cluster)
    wait_until(lambda: assassin.kind is None, f"{kind} is written")
    wait_until(lambda: cluster.term() > term, "another one leads")
    assert cluster.start(assassin.killed.pop()).ready


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_job_goes_on_when_the_leader_dies_at_a_write_of_a_save_or_a_load(
    tmp_path: Path, etcd: Etcd, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with doomed(tmp_path, etcd, fault, monkeypatch) as (cluster, assassin, team):
        for kind, deed in SAVING:
            die_at(kind, deed, cluster, assassin, team)
        for step in range(1, 5):
            for answer in done(every(team, "load", run=RUN, step=step, version=step)):
                assert answer["equal"]
        names = [name.split("/") for name in names_in(etcd, cluster.place)]
        records = sorted(int(name[2]) for name in names if name[0] == "record")
        assert records == [1, 2, 3, 4], "one of each step"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_somebody_says_is_done_once_when_the_leader_dies_at_its_write(
    tmp_path: Path, etcd: Etcd, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with doomed(tmp_path, etcd, fault, monkeypatch) as (cluster, assassin, team):
        for step in range(1, 4):
            save_and_wait(team, RUN, step, version=step)
        for kind, deed in KEEPING:
            die_at(kind, deed, cluster, assassin, team)
        wait_until(lambda: "target/h3d1" in names_in(etcd, cluster.place), "it is known")
        assert "retention/job" in names_in(etcd, cluster.place)
        gone = every(team, "load", run=RUN, step=1, version=1)
        assert [answer.error for answer in gone] == ["not_found"] * 4
        for answer in done(every(team, "load", run=RUN, version=3)):
            assert (answer["step"], answer["equal"]) == (3, True)
