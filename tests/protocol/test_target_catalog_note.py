"""What a target keeps of how far the catalog had come, and says when it registers."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CatalogPosition, Epoch
from ckpt.format.messages.hello import Role
from ckpt.format.messages.targets import LeaseRenewed, RegisterTarget
from ckpt.protocol.events import SessionOpened
from ckpt.protocol.target.notes.catalog_note import NOTE_US, decode_note, encode_note
from ckpt.testing.disk import Fault
from tests.protocol.target_world import COORDINATOR, WRITER, TargetWorld


@pytest.mark.parametrize("position", [CatalogPosition(0, 0), CatalogPosition(7, 1 << 40)])
def test_a_note_is_read_as_it_was_written(position: CatalogPosition) -> None:
    assert decode_note(encode_note(position)) == position


def test_a_note_that_is_damaged_anywhere_says_nothing() -> None:
    note = encode_note(CatalogPosition(3, 9))
    for number in range(len(note)):
        harmed = bytearray(note)
        harmed[number] ^= 1
        assert decode_note(bytes(harmed)) is None
    assert decode_note(note[:-1]) is None
    assert decode_note(b"") is None


def told(world: TargetWorld, term: int, ticket: int) -> None:
    world.tell(COORDINATOR, LeaseRenewed(Epoch(9), CatalogPosition(term, ticket)))


def registered_with(world: TargetWorld) -> CatalogPosition | None:
    """What its next life says."""
    again = TargetWorld(world.disk, boot=12, term=0)
    again.feed(SessionOpened(again.now_us, COORDINATOR, Role.COORDINATOR, ""))
    (register,) = again.messages(COORDINATOR)
    assert isinstance(register, RegisterTarget)
    return register.catalog


def test_the_first_word_of_a_coordinator_is_kept_at_once_and_said_by_the_next_life() -> None:
    world = TargetWorld()
    assert registered_with(world) is None
    told(world, 1, 5)
    assert registered_with(world) == CatalogPosition(1, 5)
    told(world, 2, 1)
    assert registered_with(world) == CatalogPosition(2, 1)


def test_later_words_are_kept_when_the_disk_has_rested_and_never_an_older_one() -> None:
    world = TargetWorld()
    told(world, 1, 5)
    told(world, 1, 6)
    assert registered_with(world) == CatalogPosition(1, 5)
    world.tick(us=NOTE_US)
    told(world, 1, 7)
    world.tick(us=NOTE_US)
    told(world, 1, 4)
    assert registered_with(world) == CatalogPosition(1, 7)


def test_a_note_that_cannot_be_written_is_written_later() -> None:
    world = TargetWorld()
    world.disk.faults.append(Fault("sync"))
    told(world, 1, 5)
    assert registered_with(world) is None
    world.tick(us=NOTE_US)
    told(world, 1, 5)
    assert registered_with(world) == CatalogPosition(1, 5)


def test_nobody_but_the_dialed_coordinator_is_believed() -> None:
    world = TargetWorld()
    world.tell(WRITER, LeaseRenewed(Epoch(9), CatalogPosition(9, 9)))
    assert registered_with(world) is None
