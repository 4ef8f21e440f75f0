"""The exploration proves itself: without a rule of the code it finds how a promise breaks, and says
by which steps; with it the same histories are clean.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from ckpt.base.ids import BootId, CheckpointId
from ckpt.format.messages.targets import DropColumn, DropGeneration, Dropped
from ckpt.protocol.coordinator.catalog import CheckpointDeleted, RowState
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.keeping.deletion import Deleter, _held_by
from ckpt.protocol.coordinator.keeping.judging import Judge
from ckpt.protocol.events import Session
from ckpt.protocol.target.documents import Documents
from tests.explore.beginnings import committed
from tests.explore.history import Scenario, back, delete, end, look, moment, wait, wipe
from tests.explore.search import Search
from tests.landing import PLANTED, in_turn
from tests.patches import patched

_MOVED = (end("t0"), wait(4))


def _drop_all_surplus(self: Adopter, checkpoint: KeptCheckpoint) -> None:
    """It is too much, is it not?"""
    for column, holders in sorted(checkpoint.surplus.items()):
        for id in sorted(holders):
            self._deleter.drop_column(self._members.targets[id], column)
        del checkpoint.surplus[column]


def _those_who_are_here(self: Judge, columns: object) -> tuple[BootId, ...]:
    """Who is away cannot answer."""
    return tuple(target.boot for target in self._members.live())


def _bury_at_once(self: Deleter, id: CheckpointId) -> None:
    """It is deleted, so who would need its tombstones?"""
    if self.gone.get(id) is RowState.DELETED and id not in self._closing:
        for target in self._members.all():
            if any(d.checkpoint == id for d in target.documents):
                self._remove_tombstone(target, id)


def _forget_at_once(self: Deleter, id: CheckpointId) -> None:
    """Who is away has nothing that matters."""
    checkpoint = self._checkpoints.get(id)
    here = self._members.live()
    held = any(id in _held_by(target) for target in here)
    if checkpoint is not None and not held and self.gone.get(id) is RowState.TOMBSTONED:
        self._checkpoints.forget(checkpoint)
        self.gone[id] = RowState.DELETED
        self._desk.persist((CheckpointDeleted(id),), lambda: self._bury(id))


_drop = Documents.drop
_dropped = Documents._dropped


def _answer_first(
    self: Documents, session: Session, request: int, message: DropGeneration | DropColumn
) -> None:
    """The disk will do it."""
    if isinstance(message, DropGeneration):
        self._core.send(session, request, Dropped(0))
        session = Session(-1)
    _drop(self, session, request, message)


def _answer_nobody_twice(self: Documents, session: Session, *rest: object) -> None:
    _dropped(self, session, *rest)  # type: ignore[arg-type]


_spread_tombstone = Deleter._spread_tombstone


def _tell_first(self: Deleter, checkpoint: KeptCheckpoint) -> None:
    """The catalog has it."""
    waiting, self._unspread[checkpoint.id] = self._unspread[checkpoint.id], []
    for tell in waiting:
        tell()
    _spread_tombstone(self, checkpoint)


_adopt = Membership._adopt


def _keep_proofs(self: Membership, target: object, *rest: object) -> None:
    """It is the same target, after all."""
    proved = target.proved  # type: ignore[attr-defined]
    _adopt(self, target, *rest)  # type: ignore[arg-type]
    target.proved = proved  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Plant:
    """One rule less, and where that shows."""

    name: str
    patches: tuple[tuple[type[object], str, Callable[..., object]], ...]
    scenario: Scenario
    says: str
    """Part of what is found."""


PLANTS = (
    Plant(
        "surplus-goes-while-a-column-lacks",
        ((Adopter, "_drop_surplus", _drop_all_surplus),),
        Scenario("", committed, (wipe("t1"), back("t0")), _MOVED),
        "was dropped on t0",
    ),
    Plant(
        "a-loss-is-proved-while-a-member-is-away",
        ((Judge, "_boots", _those_who_are_here),),
        Scenario("", committed, (wipe("t1"), wipe("t2"), look(), wait(4)), _MOVED),
        "is proved, and its columns are there",
    ),
    Plant(
        "tombstones-go-while-a-target-is-away",
        (
            (Deleter, "_bury", _bury_at_once),
            (Deleter, "_forget_when_dropped", _forget_at_once),
        ),
        Scenario("", committed, (delete(),), (end("t0"),)),
        "a catalog made of all targets has it",
    ),
    Plant(
        "a-drop-is-answered-before-it-is-durable",
        ((Documents, "drop", _answer_first), (Documents, "_dropped", _answer_nobody_twice)),
        Scenario("", committed, (delete(),)),
        "says that it dropped",
    ),
    Plant(
        "a-document-is-stored-after-its-drop",
        ((Documents, "_coming_of", lambda *_: []),),
        Scenario(
            "", committed, (wait(3), wipe("t0"), moment(), delete()),
            faults={"early": 1, "slow": 1}, most=2,
        ),
        "keeps something of",
    ),
    Plant(
        "a-deletion-is-answered-before-its-tombstones",
        ((Deleter, "_spread_tombstone", _tell_first),),
        Scenario("", committed, (delete(),)),
        "a catalog made of all targets has it",
    ),
    Plant(
        "the-proofs-of-an-earlier-boot-count",
        ((Membership, "_adopt", _keep_proofs),),
        Scenario("", committed, faults={"wipe": 1}),
        "counts on",
    ),
)  # fmt: skip


@pytest.mark.parametrize("plant", in_turn(PLANTS, every=PLANTED), ids=lambda plant: plant.name)
def test_without_a_rule_a_promise_breaks_and_the_way_there_is_named(plant: Plant) -> None:
    scenario = replace(plant.scenario, name=plant.name)
    committed()
    with ExitStack() as planted:
        for owner, name, replacement in plant.patches:
            planted.enter_context(patched(owner, name, replacement))
        found = Search(scenario).run()
    assert plant.says in found.text, found.text
    assert found.steps
    clean = Search(replace(scenario, most=min(1, scenario.most))).run()
    assert clean.wrong is None, clean.text
