"""What an object store has need not wait for a reader: what the tier lost of it is found here.

    committed, k columns of some payload are not there    --doubted--> the judge asks the holders
    proved lost, all of it has k columns again as listed  --each column read whole--> committed

Both are looked at when the map has changed, of checkpoints alone that a store has: for these it
costs nobody a step. What was lost comes back when a target that was not asked, or has found its
files after all, has its columns. The payload that was proved lost is read first: where it still is,
nothing else is read. The same boots are asked once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.ids import BootId, CheckpointId, ColumnId, ColumnNumber, PayloadId
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.reading import ByteRange, ColumnVerified, VerifyColumn
from ckpt.protocol.coordinator.catalog import CheckpointFound, RowState
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import CheckpointDoubted
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.judging import WHOLE, most_bad
from ckpt.protocol.events import Buffer

LOOK_US: Final = 30 * US_PER_S
"""Pause between two looks without a new map."""
LOOK_AGAIN_US: Final = US_PER_S


@dataclass(slots=True)
class _Return:
    """A checkpoint that may be there again: one payload of it is read after the other."""

    checkpoint: KeptCheckpoint
    left: list[PayloadId]
    """The one that is read next is the last."""
    open_questions: int = 0
    bad: dict[ColumnNumber, tuple[ByteRange, ...]] = field(default_factory=dict)


class Doubter:
    """I look on every tick; one checkpoint at a time is read."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        checkpoints: Checkpoints,
        holding: Callable[[CheckpointId], tuple[str, ...]],
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._holding = holding
        #: When that was looked at last, under which version of the map.
        self._looked = (-LOOK_US, -1)
        self._return: _Return | None = None
        #: The boots of all that were here when a checkpoint was read last in vain.
        self._asked: dict[CheckpointId, tuple[BootId, ...]] = {}

    def tick(self) -> None:
        now, (seen_us, version) = self._desk.now_us, self._looked
        wait_us = LOOK_US if version == self._members.version else LOOK_AGAIN_US
        if now - seen_us < wait_us or self._desk.full is not None:
            return
        self._looked = now, self._members.version
        for checkpoint in list(self._stored()):
            if checkpoint.state is RowState.COMMITTED:
                self._doubt(checkpoint)
            elif self._return is None and self._counts_again(checkpoint):
                self._begin(checkpoint)
        known = {id: boots for id, boots in self._asked.items() if self._checkpoints.get(id)}
        self._asked = known

    def _stored(self) -> Iterator[KeptCheckpoint]:
        states = (RowState.COMMITTED, RowState.DAMAGED)
        known = (one for one in self._checkpoints.all() if one.state in states)
        return (one for one in known if self._holding(one.id))

    def _doubt(self, checkpoint: KeptCheckpoint) -> None:
        if self._checkpoints.is_about_to_be_placed(checkpoint):
            return
        if self._checkpoints.redundancy(checkpoint).targets < 0:
            self._desk.tell(CheckpointDoubted(checkpoint.id))

    def _counts_again(self, checkpoint: KeptCheckpoint) -> bool:
        if self._asked.get(checkpoint.id) == self._boots():
            return False
        return self._checkpoints.readable(checkpoint)

    def _boots(self) -> tuple[BootId, ...]:
        return tuple(target.boot for target in self._members.live())

    # ----------------------------------------------------------------------- is it there?

    def _begin(self, checkpoint: KeptCheckpoint) -> None:
        self._asked[checkpoint.id] = self._boots()
        payloads = [
            PayloadId(one.id, rank)
            for one in (checkpoint, *self._checkpoints.homes_of(checkpoint))
            for rank in sorted(one.placement or ())
        ]
        payloads.sort(key=lambda payload: str(payload) in checkpoint.reason)
        self._return = _Return(checkpoint, payloads)
        self._next(self._return)

    def _next(self, coming: _Return) -> None:
        if not coming.left:
            self._found(coming)
            return
        payload = coming.left.pop()
        holder = self._checkpoints.get(payload.checkpoint)
        if holder is None or holder.placement is None or not self._is_lost(coming):
            self._return = None
            return
        coming.bad.clear()
        coming.open_questions = 1
        for j, id in enumerate(holder.placement[payload.rank].columns):
            number = ColumnNumber(j)
            target = self._members.targets.get(id) if id is not None else None
            if target is None or target.session is None:
                coming.bad[number] = WHOLE
                continue
            coming.open_questions += 1
            question = VerifyColumn(ColumnId(payload, number))
            self._desk.ask(target.session, question, self._verifier(coming, holder, number))
        self._one_answered(coming, holder)

    def _verifier(
        self, coming: _Return, holder: KeptCheckpoint, number: ColumnNumber
    ) -> Callable[[Message, Buffer], None]:
        def answered(message: Message, _bulk: Buffer) -> None:
            match message:
                case ColumnVerified(missing=False, damaged=damaged):
                    coming.bad[number] = damaged
                case ColumnVerified():
                    coming.bad[number] = WHOLE
                case _:
                    coming.bad[number] = WHOLE
                    # It may say more another time.
                    self._asked.pop(coming.checkpoint.id, None)
            self._one_answered(coming, holder)

        return answered

    def _one_answered(self, coming: _Return, holder: KeptCheckpoint) -> None:
        coming.open_questions -= 1
        if coming.open_questions:
            return
        if most_bad(coming.bad.values()) > holder.code.m:
            self._return = None
        else:
            self._next(coming)

    @staticmethod
    def _is_lost(coming: _Return) -> bool:
        """It was not deleted meanwhile."""
        return coming.checkpoint.state is RowState.DAMAGED

    def _found(self, coming: _Return) -> None:
        checkpoint = coming.checkpoint

        def durable() -> None:
            self._return = None
            if checkpoint.state is RowState.DAMAGED:
                checkpoint.state, checkpoint.reason = RowState.COMMITTED, ""
                self._desk.report("warning", "checkpoint is found", checkpoint=str(checkpoint.id))

        if checkpoint.state is RowState.DAMAGED:
            self._desk.persist((CheckpointFound(checkpoint.id),), durable)
        else:
            self._return = None
