"""Several coordinators of one catalog: one leads, and another one does as soon as it is gone."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ha.coordinators import Coordinators
from tests.ha.members import Etcd
from tests.ha.places import Prefix, names_in, no_fault, proxied
from tests.waiting import wait_until

WRITES = ("/v3/kv/txn", "/v3/lease/grant")


@pytest.fixture
def three(tmp_path: Path, etcd: Etcd) -> Iterator[Coordinators]:
    with Coordinators(tmp_path, etcd, Prefix(etcd.addresses)) as made:
        yield made


def on_the_roll(three: Coordinators) -> set[str]:
    names = names_in(three.etcd, three.place)
    return {name.removeprefix("coordinator/") for name in names if name.startswith("coordinator/")}


def wait_serves(coordinators: Coordinators, id: str, term: int) -> None:
    line = f'"id": "{id}", "term": {term}'
    wait_until(lambda: coordinators.logged(id, line) == 1, f"{id} serves in term {term}")


def why(coordinators: Coordinators, id: str, term: int) -> str:
    """It began that term, as it logged."""
    lines = map(json.loads, coordinators.log_of(id).read_text().splitlines())
    (found,) = (line for line in lines if line.get("term") == term and "campaign_s" in line)
    return str(found["why"])


def ends_of(id: str) -> tuple[str, str]:
    """What its successor may know of the end of its process: of two that stand by the other one may
    have freed the key, and who is terminated frees it first.
    """
    return f"the process of {id} has ended", f"{id} stepped down, or its lease ran out"


def test_one_leads_and_the_others_know_where(three: Coordinators) -> None:
    leader = three.leader()
    assert three.key()["address"] == three.listen[leader]
    assert on_the_roll(three) == {"a", "b", "c"}
    wait_serves(three, leader, 1)
    assert why(three, leader, 1) == "nobody led"
    for id in {"a", "b", "c"} - {leader}:
        assert three.running[id].ready["leader"] == three.listen[leader]
        assert "term" not in three.running[id].ready


def test_another_one_leads_when_the_leader_is_killed_again_and_again(three: Coordinators) -> None:
    for count in range(1, 4):
        before = three.leader()
        assert three.term() == count
        assert three.kill(before) == -signal.SIGKILL
        after = three.leader(but=before)
        assert three.term() == count + 1
        wait_serves(three, after, count + 1)
        assert why(three, after, count + 1) in ends_of(before)
        assert f'"term": {count + 1}' in three.warm_lines(after), "it followed by a watch"
        assert three.start(before).ready["leader"] == three.listen[after]


def test_another_one_leads_where_each_write_of_etcd_takes_long(tmp_path: Path, etcd: Etcd) -> None:
    """It needs two of them to take the key, on a lease that lasts 2 s."""
    with proxied(etcd.members[0], no_fault) as proxy:
        place = Prefix(f"127.0.0.1:{proxy.port}")
        with Coordinators(tmp_path, etcd, place, ids="ab") as two:
            proxy.delay_s = lambda request: 1.2 if request.path in WRITES else 0.0
            before = two.leader()
            two.kill(before)
            (after,) = two.running
            wait_until(lambda: two.logged(after, '"leads"') == 1, "the other one leads")
            proxy.delay_s = lambda _request: 0.0


def test_a_killed_leader_is_unseated_and_not_waited_for(three: Coordinators) -> None:
    before = three.leader()
    others = {"a", "b", "c"} - {before}
    text = "the leader's process is gone"
    three.kill(before)
    three.leader(but=before)
    wait_until(lambda: any(three.logged(id, text) for id in others), "it was unseated")


def test_who_ends_frees_the_key_and_leaves_the_roll(three: Coordinators) -> None:
    before = three.leader()
    assert three.kill(before, signal.SIGTERM) == 0
    assert before not in on_the_roll(three)
    after = three.leader()
    assert after != before
    term = three.term()
    wait_serves(three, after, term)
    assert why(three, after, term) in ends_of(before)
    for id in tuple(three.running):
        assert three.kill(id, signal.SIGTERM) == 0
    assert names_in(three.etcd, three.place) == {"meta", "protocol", "sequence", "term", "count"}


def test_a_leader_that_stood_still_wakes_beside_its_successor_and_follows(
    three: Coordinators,
) -> None:
    before = three.leader()
    process = three.running[before].process
    process.send_signal(signal.SIGSTOP)
    after = three.leader(but=before)
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: three.logged(before, "the term ends") == 1, "it has noticed")
    # It stands by: when the others are gone it leads again, in the same process.
    for id in {"a", "b", "c"} - {before}:
        three.kill(id)
    assert three.leader(but=after) == before
    wait_serves(three, before, three.term())
    assert process.poll() is None


def test_the_same_id_twice_is_refused_by_name(three: Coordinators) -> None:
    with Coordinators(three.directory / "other", three.etcd, three.place, ids="") as other:
        other.listen["a"] = "127.0.0.1:0"
        with pytest.raises(AssertionError, match="ended before it was ready"):
            other.start("a")
        assert other.kill("a") == 11
        told = other.log_of("a").read_text()
    assert f"a coordinator with the id a runs already: pid {three.running['a'].process.pid}" in told
    assert "give each an --id of its own" in told


def test_one_with_another_secret_is_refused_by_name(three: Coordinators) -> None:
    """It would stand by, and lead one day, with nobody whom it lets in."""
    leader = three.leader()
    with Coordinators(three.directory / "other", three.etcd, three.place, ids="") as other:
        other.listen["d"] = "127.0.0.1:0"
        with pytest.raises(AssertionError, match="ended before it was ready"):
            other.start("d")
        assert other.kill("d") == 2
        told = other.log_of("d").read_text()
    assert f"coordinator {leader} leads with another secret than this one has" in told
    assert "the same secret file" in told
    wait_until(lambda: on_the_roll(three) == {"a", "b", "c"}, "it has left")


def test_who_stands_by_stays_when_one_with_another_secret_leads(tmp_path: Path, etcd: Etcd) -> None:
    with Coordinators(tmp_path, etcd, Prefix(etcd.addresses), ids="ab") as two:
        leader = two.leader()
        (standby,) = {"a", "b"} - {leader}
        two.running[standby].process.send_signal(signal.SIGSTOP)
        two.kill(leader, signal.SIGTERM)
        with Coordinators(two.directory / "other", two.etcd, two.place, ids="d") as other:
            two.running[standby].process.send_signal(signal.SIGCONT)
            text = "coordinator d leads with another secret than this one has"
            wait_until(lambda: two.logged(standby, text) == 1, "it says so")
            other.kill("d")
        assert two.leader(but="d") == standby


def test_without_a_majority_nobody_leads_and_then_the_same_processes_do(tmp_path: Path) -> None:
    with (
        Etcd(tmp_path / "etcd", 3) as etcd,
        Coordinators(tmp_path, etcd, Prefix(etcd.addresses), ids="ab") as two,
    ):
        before = two.leader()
        wait_serves(two, before, 1)
        for member in etcd.members[1:]:
            member.kill()
        wait_until(lambda: two.logged(before, "its lease was not kept") == 1, "it gives up")
        for member in etcd.members[1:]:
            member.start()
        wait_until(lambda: two.term() > 1, "somebody begins a term")
        wait_serves(two, two.leader(), two.term())
        assert all(daemon.process.poll() is None for daemon in two.running.values())
