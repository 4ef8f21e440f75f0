"""Boxes that pass through memory of bounded size: every byte once, and no slot before its turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckpt.base.errors import Aborted
from ckpt.plan.boxes import volume_of
from ckpt_client.load.batches import ALIGN_BYTES, Batch, WholeBox, batches
from ckpt_client.load.ring import Ring

Bytes = npt.NDArray[np.uint8]

shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
wholes = st.builds(WholeBox, shapes, st.sampled_from((1, 2, 4, 8, 16)))
slot_sizes = st.integers(1, 12).map(lambda n: n * ALIGN_BYTES)


@dataclass
class LateDevice:
    """A device that copies as late as it may, in order: a slot that is filled again too soon, or a
    load that does not wait, leaves wrong bytes in its memory."""

    lost: bool = False
    queued: deque[tuple[Bytes, Bytes]] = field(default_factory=deque)
    through: int = 0
    """Copies that were done."""

    def copy_in(self, sources: Sequence[Bytes], targets: Sequence[Bytes]) -> LatePoint:
        self.queued.extend(zip(sources, targets, strict=True))
        return LatePoint(self, self.through + len(self.queued))

    def run_to(self, count: int) -> None:
        if self.lost:
            raise Aborted("the device is gone")
        while self.through < count:
            source, target = self.queued.popleft()
            target[...] = source
            self.through += 1


@dataclass
class LatePoint:
    """See ckpt_client.accelerator.StreamPoint."""

    device: LateDevice
    count: int

    @property
    def passed(self) -> bool:
        return self.device.through >= self.count

    def wait(self) -> None:
        self.device.run_to(self.count)


def filled(box: WholeBox, seed: int) -> Bytes:
    """A box's items as so many bytes each."""
    size = volume_of(box.shape) * box.item_bytes
    content = np.random.default_rng(seed).integers(0, 255, size, np.uint8)
    return content.reshape(*box.shape, box.item_bytes)


def parts(piece_start: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(piece_start, shape, strict=True))


def pass_through(
    boxes: Sequence[WholeBox], found: Sequence[Batch], slots: int, slot_bytes: int
) -> tuple[list[Bytes], int]:
    """What the late device's memory holds afterwards, and how many slots there were."""
    device = LateDevice()
    made: list[Bytes] = []

    def make() -> Bytes:
        made.append(np.zeros(slot_bytes, np.uint8))
        return made[-1]

    ring = Ring(make, slots)
    content = [filled(box, number) for number, box in enumerate(boxes)]
    memory = [np.zeros_like(each) for each in content]
    for batch in found:
        slot = ring.take()
        sources, targets = [], []
        for piece in batch:
            where = parts(piece.start, piece.shape)
            view = slot[piece.first : piece.end].reshape(*piece.shape, boxes[piece.box].item_bytes)
            view[...] = content[piece.box][where]
            sources.append(view)
            targets.append(memory[piece.box][where])
        ring.sent(device.copy_in(sources, targets))
    ring.wait_copied()
    return memory, len(made)


@given(st.lists(wholes, max_size=12), slot_sizes, st.integers(1, 4))
@example([WholeBox((), 8), WholeBox((0, 3), 4), WholeBox((3, 50), 16)], ALIGN_BYTES, 2)
def test_every_byte_arrives_through_few_slots(
    boxes: list[WholeBox], slot_bytes: int, slots: int
) -> None:
    found = list(batches(boxes, slot_bytes))
    memory, made = pass_through(boxes, found, slots, slot_bytes)
    for number, box in enumerate(boxes):
        assert np.array_equal(memory[number], filled(box, number))
    assert made == min(slots, len(found))


@given(st.lists(wholes, max_size=12), slot_sizes)
def test_pieces_are_disjoint_whole_and_in_their_slot(
    boxes: list[WholeBox], slot_bytes: int
) -> None:
    seen = [np.zeros(box.shape, np.int64) for box in boxes]
    for batch in batches(boxes, slot_bytes):
        end = 0
        for piece in batch:
            assert piece.first % ALIGN_BYTES == 0
            assert end <= piece.first < piece.end <= slot_bytes
            assert piece.end - piece.first == volume_of(piece.shape) * boxes[piece.box].item_bytes
            seen[piece.box][parts(piece.start, piece.shape)] += 1
            end = piece.end
    assert all((counts == 1).all() for counts in seen)


@given(st.lists(wholes, max_size=12), slot_sizes)
def test_a_box_that_fits_stays_whole(boxes: list[WholeBox], slot_bytes: int) -> None:
    pieces = [piece for batch in batches(boxes, slot_bytes) for piece in batch]
    for number, box in enumerate(boxes):
        if 0 < volume_of(box.shape) * box.item_bytes <= slot_bytes:
            assert [piece.shape for piece in pieces if piece.box == number] == [box.shape]


def test_rows_that_are_larger_than_a_slot_are_cut_further() -> None:
    found = [piece for batch in batches([WholeBox((2, 40), 4)], 64) for piece in batch]
    assert [(piece.start, piece.shape) for piece in found] == [
        ((0, 0), (1, 16)), ((0, 16), (1, 16)), ((0, 32), (1, 8)),
        ((1, 0), (1, 16)), ((1, 16), (1, 16)), ((1, 32), (1, 8)),
    ]  # fmt: skip


def test_a_slot_that_was_not_sent_is_handed_out_again() -> None:
    """A read that failed left it, and begins again."""
    made: list[Bytes] = []

    def make() -> Bytes:
        made.append(np.zeros(64, np.uint8))
        return made[-1]

    ring = Ring(make, 2)
    assert ring.take() is ring.take()
    assert len(made) == 1


def test_a_device_that_keeps_up_needs_one_slot() -> None:
    device = LateDevice()
    made: list[Bytes] = []

    def make() -> Bytes:
        made.append(np.zeros(64, np.uint8))
        return made[-1]

    ring = Ring(make, 4)
    for _ in range(9):
        point = device.copy_in([ring.take()], [np.zeros(64, np.uint8)])
        ring.sent(point)
        device.run_to(point.count)
    assert len(made) == 1


def test_a_device_that_is_lost_ends_the_load_that_waits_for_it() -> None:
    device = LateDevice()
    ring = Ring(lambda: np.zeros(64, np.uint8), 1)
    ring.sent(device.copy_in([ring.take()], [np.zeros(64, np.uint8)]))
    device.lost = True
    with pytest.raises(Aborted, match="gone"):
        ring.take()
    with pytest.raises(Aborted, match="gone"):
        ring.wait_copied()
    ring.close()


def test_closing_waits_for_copies_under_way() -> None:
    device = LateDevice()
    ring = Ring(lambda: np.ones(64, np.uint8), 2)
    target = np.zeros(64, np.uint8)
    ring.sent(device.copy_in([ring.take()], [target]))
    assert not target.any()
    ring.close()
    assert target.all()


def test_the_first_slots_are_made_before_anybody_takes_it() -> None:
    made: list[int] = []
    is_made = threading.Event()

    def make() -> Bytes:
        made.append(threading.get_ident())
        is_made.set()
        return np.zeros(64, np.uint8)

    device, ring = LateDevice(), Ring(make, 3)
    ring.make_ahead(2)
    assert is_made.wait(60)
    for _ in range(2):
        ring.sent(device.copy_in([ring.take()], [np.zeros(64, np.uint8)]))
    assert len(made) == 2
    assert threading.get_ident() not in made
    ring.take()
    assert made[2:] == [threading.get_ident()]
    ring.close()


def test_what_was_made_ahead_waits_while_a_slot_is_free() -> None:
    device, ring = LateDevice(), Ring(lambda: np.zeros(64, np.uint8), 2)
    ring.make_ahead(2)
    first = ring.take()
    point = device.copy_in([first], [np.zeros(64, np.uint8)])
    ring.sent(point)
    device.run_to(point.count)
    assert ring.take() is first
    ring.close()


def test_a_slot_that_could_not_be_made_ahead_is_raised_to_who_takes_it() -> None:
    def make() -> Bytes:
        raise Aborted("no locked memory")

    ring = Ring(make, 2)
    ring.make_ahead(1)
    with pytest.raises(Aborted, match="no locked memory"):
        ring.take()
    ring.close()


def test_closing_waits_for_a_slot_that_is_being_made() -> None:
    begun, may_go_on, made = threading.Event(), threading.Event(), []

    def make() -> Bytes:
        begun.set()
        assert may_go_on.wait(60)
        made.append(np.zeros(64, np.uint8))
        return made[0]

    ring = Ring(make, 2)
    ring.make_ahead(1)
    assert begun.wait(60)
    closing = threading.Thread(target=ring.close)
    closing.start()
    may_go_on.set()
    closing.join(60)
    assert len(made) == 1
    assert not closing.is_alive()
