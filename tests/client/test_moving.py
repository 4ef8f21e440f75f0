"""What a stager does in a half: looks at a few pages, moves what is stored together, sends it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace as changed

from ckpt.base.errors import Aborted
from ckpt.base.ids import Generation, Home, Step
from ckpt.base.units import KiB, MiB
from ckpt.format.messages.saving import BoxQuery
from ckpt.format.table import RankTable
from ckpt.plan.references import Move, base_of, find_references
from ckpt.protocol.stager.events import (
    PayloadSealed,
    PayloadStopped,
    StagerEvent,
    StartPayload,
    StopPayload,
)
from ckpt.transfer.payload_sender import PayloadSender, SenderOptions, SenderResult
from ckpt_client.save.packing import PackingPlan, plan_packing
from ckpt_client.save.state import flatten
from ckpt_client.stager.arena import Half
from ckpt_client.stager.declaration import Declaration, read_declaration
from ckpt_client.stager.fingerprint import Fingerprinter, fingerprint_boxes
from ckpt_client.stager.jobs import Jobs
from ckpt_client.stager.sending import MOVED_BYTES_MAX, LaterCommand, Sending, move_together
from tests.aio.netkit import SECRET
from tests.client.test_packing import _declaration, _staged
from tests.transfer.targetkit import targets
from tests.transfer.test_payload_sender import Arena, assert_holds, payload_of, start_of
from tests.waiting import wait_until

HOME = Home(Step(1), Generation(1, 1))


def staged(state: object) -> tuple[PackingPlan, memoryview, Declaration]:
    packing = plan_packing(flatten(state), 0, 1)
    half = _staged(packing)
    return packing, half, read_declaration(_declaration(packing, half))


def test_moves_over_themselves_keep_every_byte() -> None:
    size = 3 * MOVED_BYTES_MAX
    half = bytearray(Random(1).randbytes(size))
    moves = (Move(100, 60, 5_000), Move(6_000, 5_100, 2 * MOVED_BYTES_MAX + 7))
    wanted = [bytes(half[move.source : move.source + move.length]) for move in moves]
    move_together(memoryview(half), moves)
    for move, data in zip(moves, wanted, strict=True):
        assert half[move.destination : move.destination + move.length] == data


def test_of_tensors_that_changed_a_few_pages_are_read_and_no_fingerprint_is_made() -> None:
    before = {"a": np.zeros(MiB, "u1"), "b": np.zeros(MiB, "u1"), "small": np.zeros(9)}
    packing, half, declaration = staged(before)
    first = Fingerprinter(half, declaration)
    table = first.table(None, warn=False, refer=True)
    assert [bool(entry.fingerprint) for entry in table.entries] == [True, True, False]
    base = base_of(table, HOME, packing.layout.payload_bytes, {})

    def compared(state: object) -> tuple[bool, RankTable]:
        _, half, declaration = staged(state)
        prints = Fingerprinter(half, declaration)
        same = prints.compare(base, first.samples, ())
        return same, prints.table(first.samples, warn=False, refer=True)

    same, table = compared({**before, "a": np.ones(MiB, "u1"), "b": np.ones(MiB, "u1")})
    assert not same
    assert not any(entry.fingerprint for entry in table.entries)
    hidden = np.zeros(MiB, "u1")
    hidden[100 * KiB] = 1
    same, table = compared({**before, "a": hidden, "b": np.ones(MiB, "u1")})
    assert not same, "its pages are the same, its fingerprint is not"
    assert [bool(entry.fingerprint) for entry in table.entries] == [True, False, False]
    assert compared(before)[0]


def test_what_was_moved_out_of_a_half_cannot_be_compared_with_other_ranks() -> None:
    state = {"frozen": np.ones((100, 1000)), "trained": np.zeros(100)}
    packing, half, declaration = staged(state)
    table = Fingerprinter(half, declaration).table(None, warn=True, refer=True)
    base = base_of(table, HOME, packing.layout.payload_bytes, {})
    found = find_references(base, table, (), packing.layout.payload_bytes, len(packing.document))
    assert found is not None
    move_together(half, found.moves)
    moved = replace(declaration, table=found.table)
    trained = BoxQuery("trained", (0,), (100,))
    assert fingerprint_boxes(half, moved, [trained]) == (table.entries[1].fingerprint,)
    with pytest.raises(Aborted, match="frozen is to be compared with another rank's") as caught:
        fingerprint_boxes(half, moved, [BoxQuery("frozen", (0, 0), (1, 1000))])
    assert "the next save stores it" in caught.value.hint


class Desk:
    """A sender with real workers and targets; what it tells is noted."""

    def __init__(self) -> None:
        self.jobs = Jobs()
        self.told: list[StagerEvent | SenderResult] = []
        options = SenderOptions(secret=SECRET, name="test", cluster="cluster-a")
        self.sending = Sending(self.jobs, lambda: PayloadSender(options), self.told.append)

    def close(self) -> None:
        self.jobs.close()
        self.sending.close()

    def start(self, action: StartPayload, half: Half, moves: list[Move]) -> None:
        """As the stager does: what it hears at once it handles next."""
        self._note(self.sending.start(action, half, moves))

    def command(self, action: LaterCommand) -> None:
        self._note(self.sending.command(action))

    def _note(self, event: StagerEvent | None) -> None:
        if event is not None:
            self.told.append(event)

    def has_moved(self) -> bool:
        self.jobs.finish()
        return not self.jobs.pending

    def heard(self, kind: type) -> list[StagerEvent | SenderResult]:
        self.told += self.sending.results()
        return [one for one in self.told if isinstance(one, kind)]


def test_a_payload_is_sent_as_its_moves_have_made_it() -> None:
    desk = Desk()
    arena = Arena("2+1", 700_000)
    half = bytearray(arena.payload + bytes(100_000))
    half[300_000:] = bytes(64_000) + half[300_000:736_000]  # It lies further on.
    with targets(3) as made:
        start = changed(
            start_of(1, arena, [target.place(j) for j, target in enumerate(made)]), refers=True
        )
        desk.start(start, Half(memoryview(half), -1), [Move(364_000, 300_000, 400_000)])
        assert desk.heard(PayloadSealed) == [], "not before it has moved"
        wait_until(desk.has_moved, "the move")
        wait_until(lambda: bool(desk.heard(PayloadSealed)), "the columns")
        sealed = desk.heard(PayloadSealed)[-1]
        assert_holds(sealed, made, arena)  # type: ignore[arg-type]
        desk.command(StopPayload(payload_of(1)))
        wait_until(lambda: bool(desk.heard(PayloadStopped)), "the end")
        desk.close()


def test_what_is_said_of_a_payload_waits_until_it_has_moved() -> None:
    desk = Desk()
    arena = Arena("2+1", 700_000)
    with targets(3) as made:
        start = changed(
            start_of(1, arena, [target.place(j) for j, target in enumerate(made)]), refers=True
        )
        desk.start(start, Half(memoryview(arena.map), -1), [])
        desk.command(StopPayload(payload_of(1)))
        assert desk.jobs.pending == 1
        assert desk.heard(PayloadStopped) == [], "a worker may be at its bytes"
        wait_until(desk.has_moved, "the move")
        wait_until(lambda: bool(desk.heard(PayloadStopped)), "the end")
        desk.close()


def test_a_payload_that_cannot_be_moved_fails_and_is_stopped() -> None:
    desk = Desk()
    arena = Arena("2+1", 700_000)
    readonly = memoryview(arena.payload)
    start = changed(start_of(1, arena, []), refers=True)
    desk.start(start, Half(readonly, -1), [Move(64, 0, 10)])
    desk.command(StopPayload(payload_of(1)))
    wait_until(desk.has_moved, "the move")
    wait_until(lambda: bool(desk.heard(PayloadStopped)), "the end")
    assert [type(one).__name__ for one in desk.told] == ["PayloadFailed", "PayloadStopped"]
    desk.close()
