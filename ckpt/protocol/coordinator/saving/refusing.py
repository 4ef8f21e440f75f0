"""Which attempt a rank's refusal ends: the one that its save would have been in, and no later one.

The n-th save of a step by one rank meets the n-th of every other. A coordinator that has led from
the launch's beginning knows that from what each attempt has of whom. Another one hears a refusal
again which its predecessor may have carried out, and compares how often each rank has saved the
step (`nth`): a refusal of an earlier save than the attempt's is late, and ends an attempt of its
own, which nobody else joins. An attempt that was found in the catalog does not say which save it
is: its refusals wait until a peer comes back to it. Where a rank's number is not known, the order
of coming decides.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.ids import CheckpointId
from ckpt.format.messages.saving import OpenPayload
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.saving.abandoned import RETURN_US
from ckpt.protocol.coordinator.saving.attempts import ENDED, Attempt, AttemptBook, Payload
from ckpt.protocol.coordinator.saving.ending import Ending

Elsewhere = Callable[[Payload, OpenPayload], None]


class Refusing:
    """I carry out refusals. Each is a payload of the attempt that it seems to be for, so that its
    rank's next save meets another one.
    """

    def __init__(self, desk: Desk, book: AttemptBook, ending: Ending, elsewhere: Elsewhere) -> None:
        """elsewhere: opens an attempt for a refusal that is late for the one that it waited in, and
        refuses that.
        """
        self._desk = desk
        self._book = book
        self._ending = ending
        self._elsewhere = elsewhere
        #: Refusals of attempts that were found in the catalog, and of which no peer has come.
        self._waiting: dict[CheckpointId, list[tuple[Payload, OpenPayload]]] = {}

    def refuse(self, attempt: Attempt, payload: Payload, message: OpenPayload) -> None:
        """A rank staged nothing, and was entered in an attempt that has not ended."""
        waiting = self._waiting.get(attempt.checkpoint, [])
        nobody = len(attempt.payloads) == len(waiting) + 1
        if attempt.recovered and nobody and message.nth:
            self._waiting[attempt.checkpoint] = [*waiting, (payload, message)]
        else:
            self._ending.refuse(attempt, message)

    def came(self, attempt: Attempt, peer: Payload) -> None:
        """A payload is there, by which refusals that wait see whether it is theirs."""
        for payload, message in self._waiting.pop(attempt.checkpoint, ()):
            if attempt.state in ENDED:
                return  # Its payloads hear how it ended.
            if is_late(message, peer.nth):
                self._book.let_go(payload)
                del attempt.payloads[payload.id.rank]
                attempt.left.pop(payload.id.rank, None)
                self._elsewhere(payload, message)
            else:
                self._ending.refuse(attempt, message)

    def tick(self) -> None:
        """Attempts to which nobody comes back end by their refusals."""
        for checkpoint in list(self._waiting):
            attempt = self._book.attempts.get(checkpoint)
            if attempt is None or attempt.state in ENDED:
                del self._waiting[checkpoint]
            elif self._desk.now_us - attempt.opened_us >= RETURN_US:
                self._ending.refuse(attempt, self._waiting.pop(checkpoint)[0][1])


def is_late(message: OpenPayload, nth: int) -> bool:
    """Whether a refusal is of an earlier save of the step than the one with that number."""
    return 0 < message.nth < nth


def is_past(attempt: Attempt, message: OpenPayload) -> bool:
    """Whether an attempt is a later save of the step than the one that is refused: all who can
    count say so.
    """
    known = [payload.nth for payload in attempt.payloads.values() if payload.nth]
    return bool(known) and is_late(message, min(known))
