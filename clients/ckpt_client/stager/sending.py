"""The way to the sender: commands in their order. Those of a payload that refers to homes wait for
the move of its bytes.

    StartPayload(refers) ── worker: what is stored moves together ──> sender.start, and what came
                            meanwhile for this payload: AddSpares, ReopenColumns, StopPayload
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ckpt.aio.clock import now_us
from ckpt.base.errors import CkptError
from ckpt.base.ids import PayloadId
from ckpt.base.units import MiB
from ckpt.plan.references import Move
from ckpt.protocol.stager.events import (
    AddSpares,
    PayloadFailed,
    PayloadStopped,
    ReopenColumns,
    StagerEvent,
    StartPayload,
    StopPayload,
)
from ckpt.transfer.payload_sender import PayloadSender, SenderResult
from ckpt_client.stager.arena import Half
from ckpt_client.stager.jobs import Jobs

MOVED_BYTES_MAX: Final = 4 * MiB
"""At once: no other thread of Python runs meanwhile."""

LaterCommand = AddSpares | ReopenColumns | StopPayload


class Sending:
    """I own the sender. I expect a payload's memory to stand unchanged until PayloadStopped."""

    def __init__(
        self,
        jobs: Jobs,
        make_sender: Callable[[], PayloadSender],
        handle: Callable[[StagerEvent], None],
    ) -> None:
        """`make_sender` is called with the first payload, when the secret must be there."""
        self._jobs = jobs
        self._make_sender = make_sender
        self._handle = handle
        #: Made by the first payload.
        self._sender: PayloadSender | None = None
        #: Payloads whose bytes a worker moves -> the commands that came meanwhile, in order.
        self._moving: dict[PayloadId, list[LaterCommand]] = {}

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that are readable when there are results."""
        return () if self._sender is None else (self._sender.wakeup_fd,)

    def start(self, action: StartPayload, half: Half, moves: Iterable[Move]) -> StagerEvent | None:
        """Encode and send the payload, once these moves have made it of the whole one. What
        happened at once: it may be that it cannot.
        """
        payload = action.plan.payload
        try:
            sender = self._started()
        except CkptError as error:
            return _failed(payload, error)
        if not action.refers:
            sender.start(action, half.memory, half.lendable)
            return None
        self._moving[payload] = []
        self._jobs.start(
            lambda: move_together(half.memory, moves),
            lambda _: self._moved(action, half),
            lambda error: self._not_moved(payload, error),
        )
        return None

    def withdraw(self, half: Half) -> None:
        """Let go of this memory, which is given up."""
        if self._sender is not None and half.lendable is not None:
            self._sender.withdraw(half.lendable)

    def command(self, action: LaterCommand) -> StagerEvent | None:
        """Pass a command to a payload that was started. What happened at once."""
        if action.payload not in self._moving:
            return self._perform(action)
        self._moving[action.payload].append(action)
        return None

    def results(self) -> list[SenderResult]:
        """What happened since the last call, in order."""
        return [] if self._sender is None else self._sender.results()

    def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def _moved(self, action: StartPayload, half: Half) -> None:
        self._started().start(action, half.memory, half.lendable)
        self._catch_up(action.plan.payload)

    def _not_moved(self, payload: PayloadId, error: CkptError) -> None:
        self._handle(_failed(payload, error))
        self._catch_up(payload)

    def _catch_up(self, payload: PayloadId) -> None:
        for later in self._moving.pop(payload):
            event = self._perform(later)
            if event is not None:
                self._handle(event)

    def _perform(self, action: LaterCommand) -> StagerEvent | None:
        sender = self._sender
        match action:
            case StopPayload(payload) if sender is None:
                return PayloadStopped(now_us(), payload)  # None was ever begun.
            case AddSpares(payload, column, spares) if sender is not None:
                sender.add_spares(payload, column, spares)
            case ReopenColumns(payload, columns, places) if sender is not None:
                sender.reopen(payload, columns, places)
            case StopPayload(payload) if sender is not None:
                sender.stop(payload)
        return None

    def _started(self) -> PayloadSender:
        if self._sender is None:
            self._sender = self._make_sender()
        return self._sender


def _failed(payload: PayloadId, error: CkptError) -> PayloadFailed:
    return PayloadFailed(now_us(), payload, error.code, error.message, error.hint)


def move_together(half: memoryview, moves: Iterable[Move]) -> None:
    """Perform them one after the other, in place; ascending, each towards lower offsets."""
    for move in moves:
        for done in range(0, move.length, MOVED_BYTES_MAX):
            size = min(MOVED_BYTES_MAX, move.length - done)
            source, destination = move.source + done, move.destination + done
            half[destination : destination + size] = half[source : source + size]
