"""Whatever a peer with the secret says in one field, the coordinator goes on, and can be asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from ckpt.format.messages import Message
from ckpt.format.messages.asking import Ask
from ckpt.protocol.coordinator.catalog import Persist
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.reading.answers import StatusView
from ckpt.protocol.events import CloseSession
from ckptd.catalog.sqlite import create_catalog
from tests.ckptd.any_field import Everything, variants
from tests.landing import in_turn

SAYINGS = 50
CHANGES = (Persist, CloseSession)
"""After one of these the world is another one."""


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_catalog(tmp_path_factory.mktemp("catalog"), "c1", CatalogImage(0))


def heard(message: Message) -> Iterator[Message]:
    """Its variants as they come from a frame: what that does not take nobody hears."""
    for said in variants(message):
        with suppress(msgspec.ValidationError):
            yield msgspec.msgpack.decode(msgspec.msgpack.encode(said), type=type(message))


def test_all_sayings_are_swept(blank: Path) -> None:
    assert len(Everything(blank).sayings()) == SAYINGS


@pytest.mark.parametrize("number", in_turn(range(SAYINGS), every=6))
def test_no_field_of_a_message_stops_the_coordinator(blank: Path, number: int) -> None:
    world = Everything(blank)
    for message in heard(world.sayings()[number].message):
        said, mark = world.sayings()[number], world.bench.mark()
        try:
            world.bench.tell(said.session, message, said.bulk)
            check(world)
        except Exception as error:
            error.add_note(f"said: {message}")
            raise
        if any(isinstance(action, CHANGES) for action in world.bench.log[mark:]):
            world.bench.check_catalog()
            world = Everything(blank)


def check(world: Everything) -> None:
    """It goes on, and a command can read what it says."""
    world.bench.tick(1)
    msgspec.convert(world.bench.ask("status"), StatusView)
    world.bench.tell(world.admin, Ask("repair"))
    if world.ranks[1].plan is not None:
        world.ranks[1].certify()
    msgspec.convert(world.bench.ask("status"), StatusView)
