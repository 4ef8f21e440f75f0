"""The leader dies at each kind of catalog write, ahead of it and after it, with its answer on the
way, and the write arrives late once more: a job of four ranks on seven targets hears nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pytest

from ckpt_client.cli.main import main
from tests.e2e.ranks import RankProcess, done, every, launched, save_and_wait
from tests.ha.clusters import SEVEN, SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, names_in, no_fault, proxied
from tests.ha.writes import TRANSACTION, Assassin, Kind
from tests.stores.proxy import Fault, Proxy
from tests.waiting import wait_until

FAULTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER)

Team = Sequence[RankProcess]


@dataclass(frozen=True, slots=True)
class Doomed:
    """All coordinators reach etcd by way of the proxy."""

    proxy: Proxy
    cluster: SharedCluster
    team: Team

    def die_at(self, fault: Fault, kind: Kind, deed: Callable[[], object]) -> None:
        """Who leads dies at the first write of that kind while it is done, which arrives once more
        when another one leads; all three run again on return.
        """
        cluster, term = self.cluster, self.cluster.term()
        assassin = self.proxy.decide = Assassin(cluster, fault)
        assassin.kind = kind
        deed()
        wait_until(lambda: assassin.kind is None, f"{kind} is written")
        wait_until(lambda: cluster.term() > term, "another one leads")
        self.proxy.decide = no_fault
        (killed,) = assassin.killed
        assert cluster.start(killed).ready
        # What the network held for so long arrives, and does nothing.
        late = asked(cluster.etcd.members[0], TRANSACTION, json.loads(assassin.body))
        assert "succeeded" not in late

    def save(self, run: str, step: int) -> None:
        save_and_wait(self.team, run, step, version=step)

    def load(self, run: str, version: int, step: int | None = None) -> None:
        """By its number, or as the newest."""
        for answer in done(every(self.team, "load", run=run, step=step, version=version)):
            assert (answer["step"], answer["equal"]) == (version, True)

    def say(self, *words: str) -> None:
        assert main([*words, "--store", self.cluster.url]) == 0

    def start_target(self, id: str) -> None:
        self.cluster.start_target(id)
        assert self.cluster.targets[id].ready


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[Doomed]:
    with ExitStack() as stack:
        proxy = stack.enter_context(proxied(etcd.members[0], no_fault))
        place = Prefix(f"127.0.0.1:{proxy.port}")
        cluster = stack.enter_context(
            SharedCluster(tmp_path_factory.mktemp("doomed"), etcd, place, targets=SEVEN, code="4+2")
        )
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("CKPT_SECRET_FILE", str(cluster.secret_file))
        yield Doomed(proxy, cluster, stack.enter_context(launched(cluster.url, 4, "start")))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_job_goes_on_when_the_leader_dies_at_a_write_of_a_save_or_a_load(
    doomed: Doomed, fault: Fault
) -> None:
    run = f"job-{fault.name}"
    kinds = (
        Kind("launch/"), Kind("row/", '"open"'), Kind("record/"), Kind("row/", '"committed"')
    )  # fmt: skip
    for step, kind in enumerate(kinds, 1):
        doomed.die_at(fault, kind, partial(doomed.save, run, step))
    doomed.die_at(fault, Kind("launch/", "4#"), partial(doomed.load, run, 4))
    for step in range(1, 5):
        doomed.load(run, step, step)
    names = [name.split("/") for name in names_in(doomed.cluster.etcd, doomed.cluster.place)]
    records = sorted(int(name[2]) for name in names if name[:2] == ["record", run])
    assert records == [1, 2, 3, 4], "one of each step"


@pytest.mark.parametrize(
    ("fault", "target"),
    list(zip(FAULTS, ("h3d1", "h4d0"), strict=True)),
    ids=["CUT_BEFORE", "CUT_AFTER"],
)
def test_what_somebody_says_is_done_once_when_the_leader_dies_at_its_write(
    doomed: Doomed, fault: Fault, target: str
) -> None:
    run, cluster = f"kept-{fault.name}", doomed.cluster
    for step in range(1, 4):
        doomed.save(run, step)
    said = (
        (Kind("label/", "best"), ("tag", f"{run}@2", "best")),
        (Kind("retention/"), ("keep", run, "--last", "9")),
        (Kind("row/", '"tombstoned"'), ("rm", f"{run}@1")),
        (Kind("repair"), ("repair", "set", "--floor-bytes", f"{5 + FAULTS.index(fault)}MiB")),
    )
    for kind, words in said:
        doomed.die_at(fault, kind, partial(doomed.say, *words))
    doomed.die_at(fault, Kind(f"target/{target}"), partial(doomed.start_target, target))
    wait_until(lambda: f"target/{target}" in names_in(cluster.etcd, cluster.place), "it is known")
    assert f"retention/{run}" in names_in(cluster.etcd, cluster.place)
    gone = every(doomed.team, "load", run=run, step=1, version=1)
    assert [answer.error for answer in gone] == ["not_found"] * 4
    doomed.load(run, 3)
