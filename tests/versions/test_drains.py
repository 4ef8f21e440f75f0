"""F25: workers that say and hear what 0.1.0 does drain beside today's, and in their place."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import pytest

from ckpt.base.errors import CkptError
from ckpt.format.messages import MESSAGE_TYPES, Message
from ckpt.format.messages.drains import (
    BeginParts,
    DrainLeased,
    DrainNoted,
    EndDrain,
    LeaseDrain,
    OpenStore,
    PartTaken,
    RenewDrain,
    TakePart,
    TellStored,
)
from ckpt.protocol.events import Session
from tests.landing import in_turn
from tests.sim.drain_faults import Cell, Scene
from tests.sim.drain_node import DrainNode
from tests.sim.drain_world import small_items
from tests.sim.faults import Strike
from tests.sim.test_drain_faults import History
from tests.versions.specimens import fields_of

FOLDER: Final = Path(__file__).parent / "v0_1_0"
ROWS: Final = [json.loads(line) for line in (FOLDER / "messages.jsonl").read_text().splitlines()]
FIELDS: Final = {
    row["name"]: fields_of(bytes.fromhex(row["meta"])).keys()
    for row in ROWS
    if row["fields"] == "all"
}
"""What each message of 0.1.0 has."""
KINDS: Final = {kind.__name__: kind for kind in MESSAGE_TYPES.values()}
SAID: Final = frozenset(
    {
        OpenStore, TellStored, LeaseDrain, DrainLeased, BeginParts, TakePart,
        PartTaken, RenewDrain, EndDrain, DrainNoted,
    }
)  # fmt: skip
"""In every drain."""
SEEDS: Final = 9
PARTS: Final = 3
"""Of the seeds: each landing tries one part with one crowd of workers."""


def as_first_version(message: Message) -> Message:
    """What is left of it when a process of 0.1.0 says it, or hears it."""
    name = type(message).__name__
    fields = fields_of(msgspec.msgpack.encode(message))
    known = {field: value for field, value in fields.items() if field in FIELDS[name]}
    return msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=KINDS[name])


class FirstVersion(DrainNode):
    """A worker of 0.1.0, as far as messages go."""

    heard: ClassVar[Counter[type[Message]]] = Counter()
    """Said or heard by all of them."""

    def _ask(
        self,
        message: Message,
        then: Callable[[Message], None],
        bulk: bytes = b"",
        failed: Callable[[CkptError], None] | None = None,
    ) -> None:
        self.heard[type(message)] += 1
        super()._ask(as_first_version(message), then, bulk, failed)

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        self.heard[type(message)] += 1
        super().received(session, request, as_first_version(message), bulk)


def upgraded(scene: Scene) -> Strike | None:
    """A worker is ended in the middle of a drain, and a process of the other version comes."""
    worker, world = scene.worker, scene.world
    assert worker is not None
    worker.crash()
    world.restart_workers()
    other = type(world.workers[-1])
    return lambda: other is not type(worker)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_items(monkeypatch)


WORKERS: Final = (
    (FirstVersion,),
    (FirstVersion, DrainNode),
    (DrainNode, FirstVersion, FirstVersion),
)


@pytest.mark.parametrize(("kinds", "part"), in_turn([*product(WORKERS, range(PARTS))], every=9))
def test_workers_of_the_first_version_drain_once_and_whole(
    kinds: tuple[type[DrainNode], ...], part: int
) -> None:
    FirstVersion.heard.clear()
    upgrades = 0
    for seed in range(part, SEEDS, PARTS):
        history = History(seed, Cell(upgraded, at_drain=True), evicts=seed % 2 == 1)
        history.world.worker_kinds = kinds
        upgrades += history.run()
    assert FirstVersion.heard.keys() >= SAID
    assert len(kinds) == 1 or upgrades > 0
