"""The drain's queue: oldest needed first, leases that end, parts that are shared, P9."""

from __future__ import annotations

import random

import pytest

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.drains import (
    BeginParts,
    DrainLeased,
    DrainNoted,
    EndDrain,
    ForgetStore,
    LeaseDrain,
    OpenStore,
    PartTaken,
    RenewDrain,
    TakePart,
    TellStored,
    TellTrouble,
    Turn,
    encode_parts,
    encode_stored,
)
from ckpt.format.messages.hello import Failed, Role
from ckpt.protocol.coordinator.keeping.drain_jobs import DrainJob
from ckpt.protocol.coordinator.keeping.draining import (
    GRACE_US,
    LEASE_US,
    REST_US,
    UNREACHED_COUNT_MAX,
    UNREACHED_US,
)
from ckpt.protocol.coordinator.stores import CheckpointDrained
from tests.protocol.coordinating import RUN, SECOND_US, Bench

URL = "s3://bucket/runs"


class WorkerFake:
    """A drain worker that says what it is told to say."""

    def __init__(self, bench: Bench, name: str = "a", *, url: str = URL, **policy: object) -> None:
        self.bench = bench
        self.name = name
        self.url = url
        self.session = bench.session(Role.DRAIN)
        opened = OpenStore(url, name, **policy)  # type: ignore[arg-type]
        noted = self.say(opened)
        assert isinstance(noted, DrainNoted)
        assert noted.lease_us == LEASE_US

    def say(self, message: Message, bulk: bytes = b"") -> Message:
        (answer,) = self.bench.tell(self.session, message, bulk)
        return answer

    def lease(self) -> CheckpointId | None:
        answer = self.say(LeaseDrain(self.url, self.name))
        assert isinstance(answer, DrainLeased)
        return answer.checkpoint

    def begin(self, id: CheckpointId, count: int, *done: int) -> Message:
        return self.say(BeginParts(self.url, self.name, id, count), encode_parts(done))

    def take(self, id: CheckpointId, slot: int = 0, done: int | None = None) -> Message:
        return self.say(TakePart(self.url, self.name, id, slot, done))

    def end(self, id: CheckpointId, error: str = "") -> Message:
        return self.say(EndDrain(self.url, self.name, id, error))

    def renew(self, id: CheckpointId | None = None, written: int = 0, rate: float = 0) -> Message:
        return self.say(RenewDrain(self.url, self.name, id, written, rate))

    def store(self) -> dict[str, object]:
        status = self.bench.ask("status")
        assert isinstance(status, dict)
        (found,) = [store for store in status["stores"] if store["url"] == self.url]
        assert isinstance(found, dict)
        return found


def part(number: int) -> PartTaken:
    return PartTaken(Turn.PART, number)


WAIT, COMMIT = PartTaken(Turn.WAIT), PartTaken(Turn.COMMIT)


def is_fenced(answer: Message) -> bool:
    return isinstance(answer, Failed) and answer.code == "fenced"


def steps(bench: Bench) -> list[int]:
    shown = bench.ask("steps", RUN)
    assert isinstance(shown, list)
    return [view["step"] for view in shown]


# ------------------------------------------------------------------------ the queue


def test_the_oldest_that_is_needed_goes_first_and_a_repeated_question_changes_nothing() -> None:
    bench = Bench()
    ids = [bench.save(step) for step in (1, 2, 3)]
    worker = WorkerFake(bench, keep=2)
    assert worker.lease() == ids[1], "step 1 would be deleted there again"
    assert worker.lease() == ids[1]
    assert worker.end(ids[1]) == DrainNoted(LEASE_US)
    assert worker.lease() == ids[2]
    worker.end(ids[2])
    assert worker.lease() is None


def test_what_is_drained_is_durable_before_it_is_answered_and_is_never_leased_again() -> None:
    bench = Bench()
    id = bench.save(1)
    worker = WorkerFake(bench)
    assert worker.lease() == id
    bench.persist_at_once = False
    assert bench.tell(worker.session, EndDrain(URL, "a", id)) == []
    bench.sync()
    assert bench.to(worker.session)[-1] == DrainNoted(LEASE_US)
    assert bench.durable[-2] == CheckpointDrained(URL, id)
    bench.persist_at_once = True
    bench.restart(*bench.targets)
    assert WorkerFake(bench, "b").lease() is None
    assert WorkerFake(bench, "b").store()["backlog"] == 0


def test_the_queue_survives_a_coordinator_and_a_worker_goes_on_from_its_receipts() -> None:
    bench = Bench()
    id = bench.save(1)
    worker = WorkerFake(bench)
    worker.lease()
    worker.begin(id, 3)
    assert worker.take(id) == part(0)
    bench.restart(*bench.targets)
    bench.tick()
    assert bench.machine.drains.stores[URL].policy.url == URL, "known without a worker"
    worker.session = bench.session(Role.DRAIN)
    assert is_fenced(worker.take(id, done=0))
    assert worker.lease() == id
    worker.begin(id, 3, 0, 1)
    assert worker.take(id) == part(2)
    assert worker.take(id, done=2) == COMMIT


def test_a_store_that_was_emptied_or_filled_by_others_is_taken_as_it_is_found() -> None:
    bench = Bench()
    ids = [bench.save(step) for step in (1, 2)]
    worker = WorkerFake(bench)
    held = [(Step(1), ids[0].generation)]
    worker.say(TellStored(URL, "a", RunName(RUN)), encode_stored(held))
    assert worker.lease() == ids[1]
    worker.end(ids[1])
    worker.say(TellStored(URL, "a", RunName(RUN)), encode_stored([]))
    assert worker.lease() == ids[0]


def test_a_catalog_that_was_rebuilt_does_not_know_the_store_and_says_so() -> None:
    bench = Bench()
    session = bench.session(Role.DRAIN)
    (answer,) = bench.tell(session, LeaseDrain(URL, "a"))
    assert isinstance(answer, Failed)
    assert answer.code == "not_found"


# ------------------------------------------------------------------------ leases and parts


def test_two_workers_share_the_parts_of_one_checkpoint_and_one_of_them_commits() -> None:
    bench = Bench()
    id = bench.save(1)
    a, b = WorkerFake(bench, "a"), WorkerFake(bench, "b")
    assert (a.lease(), b.lease()) == (id, id)
    a.begin(id, 3)
    b.begin(id, 3)
    assert (a.take(id), b.take(id), a.take(id, 1)) == (part(0), part(1), part(2))
    assert a.take(id) == part(0), "the answer was lost: the same slot, the same part"
    assert a.take(id, 0, done=0) == WAIT
    assert b.take(id, 0, done=1) == WAIT
    assert a.take(id, 1, done=2) == COMMIT
    assert a.take(id, 0) == COMMIT, "both threads of the one that commits"
    assert b.take(id, 0) == WAIT
    a.end(id)
    assert is_fenced(b.take(id, 0))
    assert b.lease() is None


def test_when_all_parts_are_held_the_next_checkpoint_is_begun_beside_it() -> None:
    bench = Bench()
    first, second = bench.save(1), bench.save(2)
    a, b = WorkerFake(bench, "a"), WorkerFake(bench, "b")
    a.lease()
    a.begin(first, 1)
    a.take(first)
    assert b.lease() == second


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_a_worker_that_dies_loses_its_lease_and_another_does_only_what_was_not_done(
    how: str,
) -> None:
    bench = Bench()
    id = bench.save(1)
    a, b = WorkerFake(bench, "a"), WorkerFake(bench, "b")
    a.lease()
    a.begin(id, 3)
    assert a.take(id) == part(0)
    assert a.take(id, done=0) == part(1)
    b.lease()
    b.begin(id, 3, 0)
    assert b.take(id) == part(2)
    assert b.take(id, done=2) == WAIT, "part 1 is a's"
    if how == "killed":
        bench.close(a.session)
        bench.tick(GRACE_US / SECOND_US)
    else:
        b.renew(id)
        bench.tick(LEASE_US / SECOND_US - 1)
        b.renew(id)
        bench.tick(1)
    assert b.take(id) == part(1)
    assert b.take(id, done=1) == COMMIT
    a.session = bench.session(Role.DRAIN)
    assert is_fenced(a.take(id, done=1)), "it comes again, and is not believed"
    assert is_fenced(a.renew(id))


def test_a_worker_that_dies_before_its_marker_leaves_the_commit_to_another() -> None:
    bench = Bench()
    id = bench.save(1)
    a, b = WorkerFake(bench, "a"), WorkerFake(bench, "b")
    a.lease()
    b.lease()
    for worker in (a, b):
        worker.begin(id, 1, 0)
    assert (a.take(id), b.take(id)) == (COMMIT, WAIT)
    bench.close(a.session)
    bench.tick(GRACE_US / SECOND_US)
    assert b.take(id) == COMMIT


def test_a_session_that_is_back_in_time_keeps_its_lease() -> None:
    bench = Bench()
    id = bench.save(1)
    a = WorkerFake(bench, "a")
    a.lease()
    a.begin(id, 2)
    assert a.take(id) == part(0)
    bench.close(a.session)
    a.session = bench.session(Role.DRAIN)
    a.renew(id)
    bench.tick(GRACE_US / SECOND_US)
    assert a.take(id, done=0) == part(1)


def test_a_store_without_conditional_creation_has_one_writer_at_a_time() -> None:
    bench = Bench()
    first, second = bench.save(1), bench.save(2)
    a = WorkerFake(bench, "a", conditional=False)
    b = WorkerFake(bench, "b", conditional=False)
    assert (a.lease(), b.lease()) == (first, None)
    a.end(first)
    assert (b.lease(), a.lease()) == (second, None)
    assert a.store()["conditional"] is False


def test_a_checkpoint_that_fails_rests_while_the_others_go_on() -> None:
    bench = Bench()
    first, second = bench.save(1), bench.save(2)
    worker = WorkerFake(bench)
    worker.lease()
    worker.end(first, "403")
    assert worker.store()["error"] == "run@1: 403"
    assert worker.store()["state"] == "failing"
    status = bench.ask("status")
    assert isinstance(status, dict)
    assert [check["name"] for check in status["checks"]] == ["DRAIN_FAILING"]
    assert worker.lease() == second
    worker.end(second)
    assert (worker.lease(), worker.store()["error"]) == (None, "")
    for _ in range(int(REST_US / LEASE_US)):
        worker.renew()
        bench.tick(LEASE_US / SECOND_US - 1)
    worker.renew()
    bench.tick(REST_US / LEASE_US)
    assert worker.lease() == first


def test_parts_that_do_not_exist_are_refused_and_change_nothing() -> None:
    bench = Bench()
    id = bench.save(1)
    worker = WorkerFake(bench)
    worker.lease()
    worker.begin(id, 2)
    for answer in (worker.begin(id, 3), worker.begin(id, 2, 2)):
        assert isinstance(answer, Failed)
        assert answer.code == "refused"
    answer = worker.say(BeginParts(URL, "a", id, 2), b"\xc1")
    assert isinstance(answer, Failed)
    assert answer.code == "peer"
    assert worker.take(id) == part(0)


@pytest.mark.parametrize("seed", range(20))
def test_in_any_order_of_takes_deaths_and_beginnings_each_part_has_one_holder(seed: int) -> None:
    rng = random.Random(seed)
    job = DrainJob(CheckpointId(RunName(RUN), Step(1), Generation(1, 1)))
    held: dict[tuple[str, int], int] = {}
    receipts: set[int] = set()
    for _ in range(300):
        worker, slot = rng.choice("abc"), rng.randrange(2)
        if worker not in job.workers:
            job.workers[worker] = 0
            job.begin(worker, 8, receipts)
        elif rng.random() < 0.1:
            job.leave(worker)
            held = {key: part for key, part in held.items() if key[0] != worker}
        else:
            done = held.pop((worker, slot), None)
            receipts |= {done} - {None}  # type: ignore[operator]
            turn = job.take(TakePart(URL, worker, job.checkpoint, slot, done))
            if turn.turn is Turn.PART:
                assert turn.part not in receipts
                assert turn.part not in held.values()
                held[worker, slot] = turn.part
        job.check()
    assert receipts == set(range(8)), f"seed {seed}"


# ------------------------------------------------------------------------ P9


def test_retention_waits_for_the_drain_and_then_takes_what_it_held_back() -> None:
    bench = Bench(keep=1)
    worker = WorkerFake(bench)
    ids = [bench.save(step) for step in (1, 2, 3)]
    assert steps(bench) == [1, 2, 3]
    for expected, left in zip(ids, ([2, 3], [3], [3]), strict=True):
        assert worker.lease() == expected
        worker.end(expected)
        assert steps(bench) == left


def test_a_store_that_is_forgotten_holds_nothing_back_and_one_that_is_served_is_not() -> None:
    bench = Bench(keep=1)
    worker = WorkerFake(bench)
    for step in (1, 2):
        bench.save(step)
    (refused,) = bench.tell(bench.session(Role.ADMIN), ForgetStore(URL))
    assert isinstance(refused, Failed)
    assert refused.code == "busy"
    bench.close(worker.session)
    bench.tick(GRACE_US / SECOND_US)
    assert bench.tell(bench.session(Role.ADMIN), ForgetStore(URL)) == [DrainNoted(LEASE_US)]
    assert steps(bench) == [2]
    (unknown,) = bench.tell(bench.session(Role.ADMIN), ForgetStore(URL))
    assert isinstance(unknown, Failed)
    assert unknown.code == "not_found"
    again = bench.tell(bench.session(Role.ADMIN), ForgetStore(URL, repeated=True))
    assert again == [DrainNoted(LEASE_US)], "who lost the answer hears that it is done"
    bench.restart(*bench.targets)
    assert bench.machine.drains.stores == {}


def unreached(bench: Bench) -> list[tuple[object, object]]:
    status = bench.ask("status")
    assert isinstance(status, dict)
    return [(one["url"], one["error"]) for one in status["stores"] if one["state"] == "unreached"]


def test_a_store_that_no_worker_could_open_is_told_and_holds_nothing_back() -> None:
    bench = Bench(keep=1)
    session = bench.session(Role.DRAIN)
    noted = [DrainNoted(LEASE_US)]
    assert bench.tell(session, TellTrouble(URL, "a", "no such bucket")) == noted
    assert unreached(bench) == [(URL, "no such bucket")]
    for step in (1, 2):
        bench.save(step)
    assert steps(bench) == [2], "nothing waits for it"
    assert bench.machine.drains.stores == {}
    WorkerFake(bench)
    assert unreached(bench) == []


def test_trouble_with_a_store_that_was_never_opened_is_forgotten_in_time_and_in_number() -> None:
    bench = Bench()
    session = bench.session(Role.DRAIN)
    for number in range(UNREACHED_COUNT_MAX + 2):
        bench.tell(session, TellTrouble(f"{URL}-{number}", "a", "no answer"))
    assert len(unreached(bench)) == UNREACHED_COUNT_MAX
    assert f"{URL}-0" not in dict(unreached(bench)), "the oldest goes"
    bench.tell(session, TellTrouble(f"{URL}-9", "a", ""))
    assert f"{URL}-9" not in dict(unreached(bench))
    bench.tick(UNREACHED_US / SECOND_US)
    assert unreached(bench) == []


def test_trouble_with_a_known_store_is_its_error_until_it_can_be_used_again() -> None:
    bench = Bench()
    worker = WorkerFake(bench)
    bench.save(1)
    worker.say(TellTrouble(URL, "a", "no answer"))
    assert (worker.store()["state"], worker.store()["error"]) == ("failing", "no answer")
    worker.say(TellTrouble(URL, "a", ""))
    assert (worker.store()["state"], worker.store()["error"]) == ("waiting", "")


def test_status_tells_backlog_age_parts_rate_and_end() -> None:
    bench = Bench()
    for step in (1, 2):
        bench.save(step)
    worker = WorkerFake(bench)
    id = worker.lease()
    assert id is not None
    worker.begin(id, 4, 0)
    worker.renew(id, written=5_000, rate=1_000.0)
    store = worker.store()
    shown = {name: store[name] for name in ("state", "backlog", "backlog_bytes", "draining")}
    assert shown == {
        "state": "draining", "backlog": 2, "backlog_bytes": 20_000, "draining": ["run@1"],
    }  # fmt: skip
    assert (store["oldest_undrained"], store["oldest_undrained_at_s"]) == ("run@1", 1.5)
    assert (store["parts_done"], store["parts"]) == (1, 4)
    assert (store["bytes_per_s"], store["end_in_s"]) == (1_000.0, 15.0)
    assert store["workers"] == ["a"]


def test_a_backlog_that_nobody_serves_is_a_named_fault() -> None:
    bench = Bench()
    bench.save(1)
    worker = WorkerFake(bench)
    bench.close(worker.session)
    bench.tick(70)
    status = bench.ask("status")
    assert isinstance(status, dict)
    assert [check["name"] for check in status["checks"]] == ["DRAIN_STOPPED"]
    assert worker.store()["state"] == "waiting"


def test_who_looked_at_a_store_before_another_told_of_it_looks_again() -> None:
    bench = Bench()
    id = bench.save(1)
    first, second = WorkerFake(bench), WorkerFake(bench, "b")
    seen = [worker.renew() for worker in (first, second)]
    assert all(isinstance(noted, DrainNoted) for noted in seen)
    versions = [noted.version for noted in seen if isinstance(noted, DrainNoted)]
    held = encode_stored([(id.step, id.generation)])
    told = TellStored(URL, "a", RunName(RUN), versions[0])
    assert isinstance(first.say(told, encode_stored([])), DrainNoted)
    stale = second.say(TellStored(URL, "b", RunName(RUN), versions[1]), held)
    assert isinstance(stale, Failed)
    assert stale.code == "busy"
    assert second.lease() == id, "it is not held"
    noted = second.renew()
    assert isinstance(noted, DrainNoted)
    again = TellStored(URL, "b", RunName(RUN), noted.version)
    assert isinstance(second.say(again, held), DrainNoted)
    assert first.lease() is None


def test_what_the_store_s_own_retention_takes_away_does_not_count_as_held() -> None:
    bench = Bench()
    old = bench.save(1)
    late = WorkerFake(bench, keep=1)
    assert late.lease() == old
    newer = bench.save(2)
    other = WorkerFake(bench, "b", keep=1)
    assert other.lease() == newer
    other.end(newer)
    late.end(old)  # The other worker has deleted it by now.
    assert bench.machine.drains.holding(newer) == (URL,)
    assert bench.machine.drains.holding(old) == ()


def test_steps_that_the_tier_keeps_no_more_still_count_for_every_nth() -> None:
    """Of 2 steps that are kept none would ever be the third since the last that was drained."""
    bench = Bench(keep=2)
    worker = WorkerFake(bench, every=3)
    drained = []
    for step in range(1, 9):
        bench.save(step)
        id = worker.lease()
        if id is not None:
            assert isinstance(worker.end(id), DrainNoted)
            drained.append(id.step)
    assert drained == [1, 4, 7]
