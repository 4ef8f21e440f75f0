"""Bugs that two coordinators alive must show: two of them are the code as it was (F13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ckpt.base.ids import TargetId
from ckpt.format.messages.targets import RegisterTarget, TargetRegistered
from ckpt.protocol.coordinator.cluster.vouching import Vouching
from ckpt.protocol.coordinator.confirming import Confirming
from ckpt.protocol.coordinator.keeping import deletion
from ckpt.protocol.coordinator.keeping.documents import store_document
from ckpt.protocol.coordinator.saving import committing
from ckpt.protocol.events import Session
from ckpt.protocol.target.machine import TargetMachine
from tests.landing import PLANTED, in_turn
from tests.sim.drain_world import small_items
from tests.sim.oracles import Violation
from tests.sim.test_two_coordinators import run_seed


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_items(monkeypatch)


def _obeys_anybody(self: TargetMachine, session: Session, message: TargetRegistered) -> None:
    """The newest word counts, whoever says it."""
    if session == self._coordinator:
        self.epoch, self._offered_term = message.epoch, message.term
        self._terms.load(message.term, message.coordinator)
        self._accept()


def _knows_of_no_other(self: Vouching, message: RegisterTarget) -> str:
    return ""


def _asks_nobody(self: Confirming, then: Callable[[], None]) -> None:
    then()


def _serves_at_once(self: Vouching, ids: set[TargetId], *, patient: bool) -> bool:
    return bool(ids)


def _fewer_copies(*arguments: Any, **more: Any) -> None:
    *document, copies, then = arguments
    store_document(*document, replace(copies, least=1), then, **more)


PLANTS: Mapping[str, tuple[int, tuple[tuple[object, str, object], ...]]] = {
    "targets-obey-a-lower-term": (109, (
        (TargetMachine, "_register", _obeys_anybody),
        (Vouching, "objection", _knows_of_no_other),
    )),
    "serves-before-targets-acknowledged": (5, (
        (Vouching, "_is_enough", _serves_at_once),
        (Vouching, "_are_few", lambda _self: False),
    )),
    "asks-nobody-whether-it-is-deposed": (26, ((Confirming, "confirm", _asks_nobody),)),
    "a-record-on-who-is-left": (26, (
        (committing, "store_document", _fewer_copies),
        (deletion, "store_document", _fewer_copies),
        (Confirming, "confirm", _asks_nobody),
    )),
}  # fmt: skip
"""By name: a seed that breaks a promise with it. The last two are how it was before."""


@pytest.mark.parametrize("name", in_turn([*PLANTS], every=PLANTED, first=2))
def test_a_planted_bug_is_found_by_the_seed_that_found_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seed, patches = PLANTS[name]
    run_seed(seed)
    for owner, attribute, planted in patches:
        monkeypatch.setattr(owner, attribute, planted)
    with pytest.raises(Violation):
        run_seed(seed)
