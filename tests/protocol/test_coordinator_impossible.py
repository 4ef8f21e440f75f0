"""What no honest peer says is refused, and changes nothing: no number stops the coordinator."""

from __future__ import annotations

from math import inf, nan

import msgspec
import pytest
from msgspec.structs import replace

from ckpt.base.ids import (
    BootId,
    CheckpointId,
    Generation,
    LaunchNumber,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.messages import Message
from ckpt.format.messages.drains import (
    BeginParts,
    DrainNoted,
    EndDrain,
    OpenStore,
    RenewDrain,
    TellStored,
    encode_parts,
    encode_stored,
)
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.loading import ConfirmLoad, LoadBegan, LoadConfirmed, Resolve, Resolved
from ckpt.format.messages.preempting import GuardStanding
from ckpt.format.messages.saving import OpenPayload
from ckpt.format.messages.targets import RegisterTarget, RenewLease, ScrubReport
from ckpt.protocol.coordinator.catalog import Persist
from ckpt.protocol.coordinator.keeping.drain_jobs import PARTS_MAX
from ckpt.protocol.coordinator.keeping.draining import LEASE_US
from ckpt.protocol.coordinator.reading.answers import StatusView
from ckpt.protocol.events import CloseSession
from tests.calls import counted
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake, team
from tests.protocol.test_coordinator_draining import URL, WorkerFake, part

NO_COLUMN = 1 << 63
"""The first number that a column of a SQL table does not take."""
HUGE = (1 << 64) - 1
"""The last that a frame takes."""


def refused(bench: Bench, answers: list[Message], mark: int) -> bool:
    """It was, and nothing was stored for it."""
    (failed,) = answers
    is_stored = any(isinstance(action, Persist) for action in bench.log[mark:])
    return isinstance(failed, Failed) and failed.code == "refused" and not is_stored


def status(bench: Bench) -> StatusView:
    """As a command reads it."""
    return msgspec.convert(bench.ask("status"), StatusView)


# --------------------------------------------------------------------------- workers that drain


@pytest.mark.parametrize(
    "policy", [{"every": 0}, {"every": -1}, {"every": NO_COLUMN}, {"keep": 0}, {"keep": HUGE}]
)
def test_a_store_s_counts_are_such_as_can_be_kept(policy: dict[str, int]) -> None:
    bench = Bench()
    session, mark = bench.session(Role.DRAIN), bench.mark()
    opened = OpenStore(URL, "a", **policy)  # type: ignore[arg-type]
    assert refused(bench, bench.tell(session, opened), mark)
    assert status(bench).stores == ()


@pytest.mark.parametrize("step", [-1, NO_COLUMN, HUGE])
@pytest.mark.parametrize("generation", [Generation(1, 1), Generation(1, NO_COLUMN)])
def test_a_store_holds_no_generation_that_cannot_be(step: int, generation: Generation) -> None:
    bench = Bench()
    worker = WorkerFake(bench)
    mark = bench.mark()
    found = encode_stored([(Step(step), generation)])
    assert refused(bench, bench.tell(worker.session, TellStored(URL, "a", RUN), found), mark)
    ended = EndDrain(URL, "a", CheckpointId(RUN, Step(step), generation))
    assert refused(bench, bench.tell(worker.session, ended), mark)


def test_a_store_holds_nothing_of_what_is_no_run() -> None:
    bench = Bench()
    worker = WorkerFake(bench)
    told = TellStored(URL, "a", RunName("run@1"))
    mark = bench.mark()
    one = encode_stored([(Step(1), Generation(1, 1))])
    assert refused(bench, bench.tell(worker.session, told, one), mark)


@pytest.mark.parametrize(("count", "done"), [(-1, ()), (PARTS_MAX + 1, ()), (2, (2,)), (2, (-1,))])
def test_a_plan_that_cannot_be_is_refused_and_the_right_one_counts_then(
    count: int, done: tuple[int, ...]
) -> None:
    bench = Bench()
    id = bench.save(1)
    worker = WorkerFake(bench)
    assert worker.lease() == id
    mark = bench.mark()
    begun = bench.tell(worker.session, BeginParts(URL, "a", id, count), encode_parts(done))
    assert refused(bench, begun, mark)
    assert isinstance(worker.begin(id, 4), DrainNoted)
    assert worker.take(id) == part(0)


def test_a_worker_has_drained_nothing_that_was_not_leased_and_is_not_here() -> None:
    """It is mistaken: the store would be said to hold what it does not."""
    bench = Bench()
    id = bench.save(1)
    worker, noted = WorkerFake(bench), DrainNoted(LEASE_US)
    mark = bench.mark()
    for error in ("", "why"):
        failed = worker.end(CheckpointId(RUN, Step(7), Generation(1, 7)), error)
        assert isinstance(failed, Failed)
        assert failed.code == "not_found", "it looks at the store again, and says what is there"
    assert not [action for action in bench.log[mark:] if isinstance(action, Persist)]
    assert (worker.store()["drained"], worker.store()["error"]) == (0, "")
    bench.restart(*bench.targets)
    late = WorkerFake(bench)
    assert late.end(id) == noted, "of the coordinator before it had a lease"
    assert late.end(id) == noted
    assert late.store()["drained"] == 1


@pytest.mark.parametrize("rate", [nan, inf, -inf])
def test_a_rate_that_is_none_is_not_shown(rate: float) -> None:
    bench = Bench()
    id = bench.save(1)
    worker = WorkerFake(bench)
    assert worker.lease() == id
    worker.renew(id, 5, 1.5)
    assert status(bench).stores[0].bytes_per_s == 1.5
    (noted,) = bench.tell(worker.session, replace(RenewDrain(URL, "a", id, 5), bytes_per_s=rate))
    assert isinstance(noted, DrainNoted)
    assert status(bench).stores[0].bytes_per_s == 0.0


# --------------------------------------------------------------------------- ranks that load


class Readers:
    """Ranks of a launch that load the newest step."""

    def __init__(self, bench: Bench, count: int = 2) -> None:
        self.bench = bench
        self.id = bench.save(1)
        self.sessions = [bench.session() for _ in range(count)]
        for rank, session in enumerate(self.sessions):
            (joined,) = bench.tell(session, JoinLaunch(RUN, "load", Rank(rank), count, f"p/{rank}"))
            assert isinstance(joined, LaunchJoined)
            self.launch = joined.launch

    def resolve(self, rank: int, turn: int = 0) -> list[Message]:
        asked = Resolve(RUN, None, self.launch, Rank(rank), len(self.sessions), turn=turn)
        return self.bench.tell(self.sessions[rank], asked)

    def confirm(self, rank: int, turn: int = 0) -> list[Message]:
        asked = ConfirmLoad(RUN, self.launch, Rank(rank), turn, self.id, SECOND_US)
        return self.bench.tell(self.sessions[rank], asked)


@pytest.mark.parametrize("turn", [-1, 1 << 31, NO_COLUMN, HUGE])
def test_a_turn_that_cannot_be_is_refused_and_the_launch_keeps_its_rounds(turn: int) -> None:
    bench = Bench()
    readers = Readers(bench)
    assert isinstance(readers.resolve(0)[0], Resolved)
    mark = bench.mark()
    assert refused(bench, readers.resolve(1, turn), mark)
    assert refused(bench, readers.confirm(1, turn), mark)
    assert isinstance(readers.resolve(1)[0], Resolved)
    assert readers.confirm(1) == [LoadConfirmed()]


def test_who_has_no_rank_of_the_launch_holds_nobody_up() -> None:
    bench = Bench()
    readers = Readers(bench)
    readers.resolve(0)
    bench.tell(readers.sessions[1], LoadBegan(RUN, readers.launch, Rank(2), 0))
    assert readers.confirm(0) == [LoadConfirmed()]
    readers.resolve(1)
    bench.tell(readers.sessions[1], LoadBegan(RUN, readers.launch, Rank(1), 0))
    assert readers.confirm(1) == [LoadConfirmed()], "this one was settled"


@pytest.mark.parametrize("rank", [-1, 2, HUGE])
def test_a_rank_that_its_launch_does_not_have_loads_nothing_with_it(rank: int) -> None:
    """It would be one of those that have come for a checkpoint, which was let go for it."""
    bench = Bench()
    readers = Readers(bench)
    mark = bench.mark()
    asked = Resolve(RUN, None, readers.launch, Rank(rank), 2)
    assert refused(bench, bench.tell(readers.sessions[0], asked), mark)
    said = ConfirmLoad(RUN, readers.launch, Rank(rank), 0, readers.id, SECOND_US)
    assert refused(bench, bench.tell(readers.sessions[0], said), mark)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    ("id", "step"),
    [
        (CheckpointId(RUN, Step(1), Generation(NO_COLUMN, 1)), None),
        (CheckpointId(RUN, Step(-1), Generation(1, 1)), None),
        (CheckpointId(RunName("other"), Step(1), Generation(1, 1)), None),
        (CheckpointId(RUN, Step(2), Generation(1, 1)), Step(1)),
    ],
)
def test_a_launch_has_loaded_nothing_that_cannot_be_what_it_asked_for(
    id: CheckpointId, step: Step | None, stored: bool
) -> None:
    """What an object store has is taken for known, and stored, as its reader says it."""
    bench = Bench()
    readers = Readers(bench)
    mark = bench.mark()
    turn = 0 if step is None else 1
    said = ConfirmLoad(RUN, readers.launch, Rank(0), turn, id, SECOND_US, step, stored)
    assert refused(bench, bench.tell(readers.sessions[0], said), mark)


@pytest.mark.parametrize("reads", [False, True])
def test_who_says_the_same_again_and_again_is_noted_once(reads: bool) -> None:
    bench = Bench()
    bench.save(1)

    def calls_at_its_end(times: int) -> int:
        session = bench.session()
        joining = JoinLaunch(RUN, "again", Rank(0), 1, f"p/{times}", reads=reads)
        for _ in range(times):
            joined = bench.tell(session, joining)[-1]
        assert isinstance(joined, LaunchJoined)
        bench.tell(session, Resolve(RUN, None, joined.launch, Rank(0), 1))
        for _ in range(times):
            bench.tell(session, LoadBegan(RUN, joined.launch, Rank(0), 0))
        return counted(lambda: bench.close(session))[1]

    assert calls_at_its_end(100) < 2 * calls_at_its_end(1)


# --------------------------------------------------------------------------- ranks that save


@pytest.mark.parametrize("number", [0, -1, -NO_COLUMN, HUGE])
def test_a_launch_that_nobody_numbered_is_none(number: int) -> None:
    """0 is that of files: a rank's attempt in it would commit without the others."""
    bench = Bench()
    joining = JoinLaunch(RUN, None, Rank(0), 2, "p", LaunchNumber(number))
    mark = bench.mark()
    assert refused(bench, bench.tell(bench.session(Role.STAGER), joining), mark)


def test_files_are_no_launch_also_after_a_restart() -> None:
    bench = Bench()
    writer = bench.session(Role.STAGER)
    file = OpenPayload(RUN, Step(1), LaunchNumber(0), Rank(0), 0, "p", 1000, member="f")
    bench.tell(writer, file)
    bench.restart(*bench.targets)
    joining = JoinLaunch(RUN, None, Rank(0), 64, "p", LaunchNumber(0))
    mark = bench.mark()
    assert refused(bench, bench.tell(bench.session(Role.STAGER), joining), mark)


def test_a_certificate_whose_words_no_record_has_room_for_is_refused() -> None:
    bench = Bench()
    rank = RankFake(bench)
    rank.open(1)
    rank.seal_all()
    mark = bench.mark()
    long = replace(rank.certificate(), slowest_target=TargetId("t" * 5000))
    assert refused(bench, rank.certify(long), mark)
    rank.certify()
    assert len(rank.commits()) == 1


@pytest.mark.parametrize("field", ["reached", "stop", "saves"])
@pytest.mark.parametrize("step", [-1, NO_COLUMN, HUGE])
def test_a_guard_at_no_step_stops_nobody(field: str, step: int) -> None:
    bench = Bench()
    ranks = team(bench, 2)
    standings = [GuardStanding(RUN, rank.launch, rank.rank, "SIGTERM") for rank in ranks]
    bench.tell(ranks[0].session, standings[0])
    bench.tell(ranks[1].session, standings[1])
    mark = bench.mark()
    bad = replace(standings[0], holds=True, **{field: Step(step)})
    assert refused(bench, bench.tell(ranks[0].session, bad), mark)
    assert bench.to(ranks[1].session, mark) == []


# --------------------------------------------------------------------------- targets


def registration(bench: Bench, **fields: object) -> RegisterTarget:
    made = RegisterTarget(
        TargetId("t9"), BootId(9), "t9:1", "", "p/r/h9/d9", "d/t9", 1, 1 << 40, 1 << 40, 0, 0
    )
    return replace(made, **fields)


@pytest.mark.parametrize(
    "field",
    [
        {"target": ""}, {"target": "t" * 65}, {"boot": 0}, {"boot": -1}, {"incarnation": b"short"},
        {"directory": "/" * 8193}, {"address": "h" * 8193}, {"place": "p" * 8193},
        {"domain": "p/r/h/" + "d" * 8193},
    ],
)  # fmt: skip
def test_a_target_that_cannot_be_is_not_taken_in(field: dict[str, object]) -> None:
    bench = Bench()
    session, mark = bench.session(Role.TARGET), bench.mark()
    assert refused(bench, bench.tell(session, registration(bench, **field)), mark)
    bench.tick(1)
    assert len(status(bench).targets) == len(bench.targets)


@pytest.mark.parametrize("period_s", [nan, inf, -inf])
def test_a_scrub_s_period_that_is_no_number_leaves_the_status_readable(period_s: float) -> None:
    bench = Bench()
    target = bench.targets[TargetId("t0")]
    assert target.session is not None
    report = ScrubReport(period_s, 1, 2, 3, late_s=5)
    renewal = RenewLease(target.id, target.boot, 1 << 40, 0, scrub=report)
    bench.tell(target.session, renewal)
    found = status(bench)
    shown = found.targets[0].scrub
    assert shown is not None
    assert (shown.period_s, shown.late_s) == (0.0, 5)
    assert "SCRUB_LATE" in {one.name for one in found.checks}
    assert not [action for action in bench.log if isinstance(action, CloseSession)]
