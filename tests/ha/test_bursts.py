"""A job of four ranks on seven targets saves on through what befalls etcd and all coordinators: no
save and no `wait` fails, and no term begins that need not.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from ckpt_client.cli.main import main
from tests.e2e.ranks import RankProcess, done, every, launched, save_and_wait
from tests.ha.clusters import SEVEN, SharedCluster
from tests.ha.members import Etcd, Member
from tests.ha.places import Prefix, names_in, no_fault, proxied
from tests.ha.test_outages import leader_of
from tests.ha.writes import TRANSACTION
from tests.stores.proxy import Proxy
from tests.waiting import wait_until

FILLER_BYTES = 16 << 20
STOPPED_S = 20.0
GONE_S = 15.0
SLOW_S = 0.3


@dataclass(slots=True)
class Job:
    """Each test has a run of its own."""

    cluster: SharedCluster
    proxies: list[Proxy]
    """One before each member of etcd."""
    team: list[RankProcess]
    run: str = ""
    large: set[int] = field(default_factory=set)
    """Steps with a filler."""

    @property
    def members(self) -> list[Member]:
        return self.cluster.etcd.members

    def save(self, step: int) -> None:
        save_and_wait(self.team, self.run, step, version=step)

    def save_through(self, step: int, harm: Callable[[], None]) -> None:
        """All ranks hand a burst over, and harm comes while it streams; all hear a commit."""
        self.large.add(step)
        for rank in self.team:
            rank.tell("save", run=self.run, step=step, version=step, filler_bytes=FILLER_BYTES)
            rank.tell("wait", run=self.run, step=step)
        harm()
        for _ in ("save", "wait"):
            done([rank.heard() for rank in self.team])

    def check(self, steps: int) -> None:
        """Each step loads bit by bit, and has one record."""
        names = [n.split("/") for n in names_in(self.cluster.etcd, self.cluster.place)]
        records = sorted(int(name[2]) for name in names if name[:2] == ["record", self.run])
        assert records == list(range(1, steps + 1))
        for step in records:
            filler = FILLER_BYTES if step in self.large else 0
            told = every(
                self.team, "load", run=self.run, step=step, version=step, filler_bytes=filler
            )
            assert all(answer["equal"] for answer in done(told))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("bursts")
    with ExitStack() as stack:
        etcd = stack.enter_context(Etcd(folder / "etcd", 3))
        proxies = [stack.enter_context(proxied(member, no_fault)) for member in etcd.members]
        place = Prefix(",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies))
        cluster = stack.enter_context(SharedCluster(folder, etcd, place, targets=SEVEN, code="4+2"))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("CKPT_SECRET_FILE", str(cluster.secret_file))
        team = stack.enter_context(launched(cluster.url, 4, "start"))
        yield Job(cluster, proxies, team)


@pytest.fixture
def job(shared: Job, request: pytest.FixtureRequest) -> Job:
    return replace(shared, run=str(request.node.name)[-32:], large=set())


def rest(seconds: float) -> None:
    threading.Event().wait(seconds)


def ends(cluster: SharedCluster, leader: str, before: int) -> bool:
    """Another term of its own than so many before."""
    return cluster.logged(leader, "the term ends") > before


def test_no_term_begins_when_etcd_s_leader_member_is_killed_under_load(job: Job) -> None:
    """Where etcd elects another one within a lease, as it does unless its hosts are busy."""
    cluster, kept = job.cluster, 0
    job.save(1)
    for step in (2, 3, 4):
        leader, term = cluster.leader(), cluster.term()
        ended = cluster.logged(leader, "the term ends")
        member = job.members[leader_of(cluster.etcd)]
        job.save_through(step, member.kill)
        member.start()
        member.wait_up()
        if (cluster.leader(), cluster.term()) == (leader, term):
            kept += 1
        else:
            # By its own clock or by etcd's word, whichever is first; nobody took it for gone.
            wait_until(partial(ends, cluster, leader, ended), "it has noticed")
        assert not any(cluster.logged(id, "process is gone") for id in cluster.running)
    assert kept
    job.check(4)


def test_a_burst_outlasts_the_majority_of_etcd_that_stands_still_for_twenty_seconds(
    job: Job,
) -> None:
    def stand_still() -> None:
        for member in job.members[1:]:
            member.stop()
        rest(STOPPED_S)
        for member in job.members[1:]:
            member.go_on()

    job.save(1)
    job.save_through(2, stand_still)
    job.save(3)
    job.check(3)


def test_a_burst_outlasts_all_coordinators_gone_for_fifteen_seconds(job: Job) -> None:
    def be_gone() -> None:
        ids = sorted(job.cluster.running)
        for id in ids:
            job.cluster.kill(id, signal.SIGKILL)
        rest(GONE_S)
        for id in ids:
            job.cluster.start(id)

    job.save(1)
    job.save_through(2, be_gone)
    job.save(3)
    job.check(3)


def test_an_etcd_whose_every_write_takes_300_ms_is_said_and_costs_no_term(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "CATALOG_SLOW" stands."""
    for proxy in job.proxies:
        proxy.delay_s = lambda request: SLOW_S if request.path == TRANSACTION else 0.0
    term, steps = job.cluster.term(), 7
    for step in range(1, steps + 1):
        job.save(step)
    main(["status", "--json", "--store", job.cluster.url])
    checks = {each["name"] for each in json.loads(capsys.readouterr().out)["checks"]}
    assert "CATALOG_SLOW" in checks
    assert job.cluster.term() == term
    for proxy in job.proxies:
        proxy.delay_s = lambda _request: 0.0
    job.check(steps)
