"""The leader dies at each kind of catalog write, ahead of it and after it, with its answer on the
way, and the write arrives late once more: a job of four ranks on seven targets hears nothing of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from ckpt.base.ids import TargetId
from ckpt.format.messages.asking import ChangeTarget, TargetChanged
from ckpt_client.cli.main import main
from tests.e2e.ranks import RankProcess, done, every, launched, save_and_wait
from tests.e2e_remote.cluster import Daemon
from tests.ha.clusters import SEVEN, SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, names_in, no_fault, pairs_in, proxied
from tests.ha.writes import TRANSACTION, Assassin, Kind
from tests.landing import in_turn
from tests.stores.proxy import Fault, Proxy
from tests.waiting import ASKED_S, wait_until

FAULTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER)
"""At each kind of write a landing has one of them, and the next landing the other."""
AGAIN_S = 60.0
"""On a busy machine."""

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

    def named_on(self, target: str) -> int:
        """Columns."""
        with self.cluster.client() as client:
            question = ChangeTarget(TargetId(target), "draining", dry_run=True)
            answer, _ = client.call(question, timeout_s=AGAIN_S)
        assert isinstance(answer, TargetChanged)
        return answer.columns

    @contextmanager
    def worker(self, *words: str) -> Iterator[Daemon]:
        """`ckptd` with these words, while the block runs."""
        cluster = self.cluster
        made = Daemon(
            *words, "--coordinator", cluster.addresses, "--secret-file", str(cluster.secret_file),
            log=cluster.log_of(words[0]),
        )  # fmt: skip
        try:
            yield made
        finally:
            made.end()

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


@pytest.mark.parametrize("fault", in_turn(FAULTS, every=2), ids=lambda fault: fault.name)
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
    in_turn([*zip(FAULTS, ("h3d1", "h4d0"), strict=True)], every=2, first=1),
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


@pytest.mark.parametrize("fault", in_turn(FAULTS, every=2, first=1), ids=lambda fault: fault.name)
def test_ranks_without_a_key_are_of_one_launch_when_the_leader_dies_as_it_lets_them_in(
    doomed: Doomed, fault: Fault
) -> None:
    run, cluster = f"keyless-{fault.name}", doomed.cluster
    with launched(cluster.url, 4) as team:
        kind = Kind(f"launch/{run}/", within="/rank/")
        doomed.die_at(fault, kind, partial(save_and_wait, team, run, 1))
        for answer in done(every(team, "load", run=run, step=1)):
            assert answer["equal"]
        entered = [name for name in names_in(cluster.etcd, cluster.place) if "/rank/" in name]
    of_run = [name.split("/") for name in entered if name.startswith(kind.start)]
    assert len({name[2] for name in of_run}) == 1
    assert sorted(int(name[4]) for name in of_run) == [0, 1, 2, 3]


@pytest.mark.parametrize("fault", in_turn(FAULTS, every=2), ids=lambda fault: fault.name)
def test_all_ranks_hear_that_a_save_was_aborted_when_the_leader_dies_as_it_writes_that(
    doomed: Doomed, fault: Fault
) -> None:
    """And why. Where it was written, that may be gone with the leader."""
    run, (*peers, refusing) = f"aborted-{fault.name}", doomed.team
    reasons = [f"rank {refusing.rank} refused step 1"]
    if fault is Fault.CUT_AFTER:
        reasons.append("it was aborted, or deleted long ago")

    def refused() -> None:
        done(every(peers, "save", run=run, step=1))
        assert refusing.ask("save_refused", run=run, step=1).error == "refused"
        for answer in every(peers, "wait", run=run, step=1):
            assert answer.error == "aborted"
            assert any(reason in answer.text for reason in reasons), answer.text

    doomed.die_at(fault, Kind("row/", '"aborted"'), refused)
    # Who leads next hears the refusal again, perhaps when the step is saved again already.
    save_and_wait(doomed.team, run, 1, version=2)
    for answer in done(every(doomed.team, "load", run=run, step=1, version=2)):
        assert answer["equal"]


@pytest.mark.parametrize("fault", in_turn(FAULTS, every=2, first=1), ids=lambda fault: fault.name)
def test_a_store_is_drained_to_when_the_leader_dies_as_it_notes_the_store_and_what_it_holds(
    doomed: Doomed, fault: Fault, tmp_path: Path
) -> None:
    run, cluster = f"drained-{fault.name}", doomed.cluster
    doomed.save(run, 1)
    with ExitStack() as stack:

        def open_store() -> None:
            worker = doomed.worker("drain", "--to", f"file://{tmp_path}?runs={run}")
            assert stack.enter_context(worker).ready

        def marks() -> int:
            return len(list(tmp_path.rglob("COMMITTED.json")))

        def drain_one_more() -> None:
            doomed.save(run, 2)
            wait_until(lambda: marks() == 2, "step 2 is drained", AGAIN_S)

        doomed.die_at(fault, Kind("store/"), open_store)
        wait_until(lambda: marks() == 1, "step 1 is drained", AGAIN_S)
        doomed.die_at(fault, Kind("store/", "2#", within=run), drain_one_more)

        def held() -> str:
            pairs = pairs_in(cluster.etcd, cluster.place)
            pages = (
                value
                for name, value in sorted(pairs.items())
                if name.startswith("store/") and f"/{run}/" in name
            )
            return " ".join(base64.b64decode(page).decode() for page in pages)

        wait_until(lambda: "2#" in held(), "the store is known to hold step 2", AGAIN_S)
        assert [each.split("#")[0] for each in held().split()] == ["1", "2"]
    assert marks() == 2


@pytest.mark.parametrize("fault", in_turn(FAULTS, every=2), ids=lambda fault: fault.name)
def test_columns_have_moved_once_when_the_leader_dies_as_it_writes_where_to(
    doomed: Doomed, fault: Fault
) -> None:
    run, cluster = f"moved-{fault.name}", doomed.cluster
    doomed.save(run, 1)
    with doomed.worker("repair", "--poll-s", "0.1") as worker:
        assert worker.ready
        doomed.die_at(fault, Kind("moved/"), partial(doomed.say, "target", "drain", "h3d0"))
        # Without --wait: copies stay for minutes where a launch of before may read them.
        wait_until(lambda: doomed.named_on("h3d0") == 0, "all have moved", AGAIN_S, ASKED_S)
    assert any(name.startswith(f"moved/{run}/") for name in names_in(cluster.etcd, cluster.place))
    doomed.load(run, 1)
    doomed.say("target", "undrain", "h3d0")
