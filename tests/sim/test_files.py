"""Histories of files: writers, commits by name, faults; then healing and the last checks."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from ckpt.format.members import Member
from ckpt.protocol.coordinator.image import CatalogRow
from ckpt.protocol.coordinator.saving.attempts import Attempt, Payload
from ckpt.protocol.coordinator.saving.members import Members
from ckpt.protocol.coordinator.saving.opening import Opening
from tests.landing import PLANTED, in_turn
from tests.sim.faults import FAULTS
from tests.sim.file_nodes import FileWorld
from tests.sim.histories import check_share, ends_of, run_each
from tests.sim.last_checks import check_no_leak, check_readable, let_orphans_go
from tests.sim.oracles import Violation
from tests.sim.restarts import check_restart
from tests.sim.world import RUN

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "300")) // 30
"""Of each half: a landing runs one."""
STEPS = (10, 20)


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, how each commit ended); raises Violation when a promise breaks."""
    world = FileWorld.build(seed)
    assert isinstance(world, FileWorld)
    rng = world.clock.rng
    world.start()
    size = rng.choice([0, 100, 20_000])
    world.write_files(RUN, STEPS, size)
    for _ in range(rng.choice([1, 2, 3])):
        world.clock.run(lambda: False, rng.choice([500, 5_000, 50_000, 500_000]))
        FAULTS[rng.choice(list(FAULTS))](world)
    world.clock.run(lambda: world.files_ended, 3_000_000)
    world.heal()
    world.end_files()
    world.clock.run(lambda: False, 4_000_000)
    let_orphans_go(world)
    for id, announced in world.oracles.announced.items():
        check_readable(world, id, announced)
    check_no_leak(world)
    check_restart(world)
    return world.clock.steps, [committer.outcome for committer in world.committers]


def test_an_equal_seed_gives_an_equal_run() -> None:
    assert run_seed(11) == run_seed(11)


@pytest.mark.parametrize("seed", [200, 776])
def test_a_history_that_once_broke_a_promise_keeps_it(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("begin", in_turn([0, SEEDS], every=6, first=2))
@pytest.mark.timeout(1500)
def test_no_history_of_files_breaks_a_promise(begin: int) -> None:
    check_share("files", ends_of(run_seed, SEEDS, begin))


def _reused_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart numbers begin anew."""
    real = Opening.recover

    def recover(self: Opening, row: CatalogRow) -> None:
        real(self, row)
        self._book.attempts[row.checkpoint].next_number = 0

    monkeypatch.setattr(Opening, "recover", recover)


def _unnamed_files_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit takes what is there, also what it does not name."""

    def close(self: Members, attempt: Attempt, wanted: tuple[Member, ...]) -> None:
        self._chosen(attempt, wanted)
        attempt.world_size = 1 + max(p.id.rank for p in attempt.payloads.values())
        attempt.closed = True

    monkeypatch.setattr(Members, "_close", close)


def _older_files_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two files of one name the first counts, whatever the commit names."""

    def chosen(self: Members, attempt: Attempt, wanted: tuple[Member, ...]) -> list[Payload]:
        first: dict[str, Payload] = {}
        for _, payload in sorted(attempt.payloads.items()):
            if payload.certified:
                first.setdefault(payload.member, payload)
        return [first[member.name] for member in wanted]

    monkeypatch.setattr(Members, "_chosen", chosen)


@pytest.mark.parametrize(
    ("plant", "begin"),
    in_turn(
        [(_reused_numbers, 53), (_unnamed_files_stay, 0), (_older_files_win, 7)], every=PLANTED
    ),
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation, match=r"P2|P10"):
        run_each(run_seed, 100, begin)
