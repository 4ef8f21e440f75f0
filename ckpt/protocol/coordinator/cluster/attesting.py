"""Whether the columns that a certificate names are still on their targets.

A file that was replaced, given up or abandoned is dropped from its targets; only the coordinator
that dropped it remembers. After a restart its writer may present proofs that were true once, of
targets that have not started again since. So a certificate in a recovered attempt is believed only
after its targets have looked.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.ids import ColumnId, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.targets import Attest, Attested
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk, Reply

PATIENCE_US = 2_000_000
"""A target that does not answer in time is asked no more; what it holds it lists when it comes."""


class Attestation:
    """I ask every target once. `done` gets the proofs that stand, and how many columns are gone."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        proofs: tuple[ColumnProof, ...],
        done: Callable[[list[ColumnProof], int], None],
    ) -> None:
        self._desk = desk
        self._members = members
        self._proofs = proofs
        self._done = done
        self._standing: list[ColumnProof] = []
        self._gone = 0
        self._open_questions = 1

    def begin(self) -> None:
        """Ask all targets; may call `done` before it returns."""
        asked: dict[TargetId, list[ColumnId]] = {}
        for proof in self._proofs:
            asked.setdefault(proof.target, []).append(proof.column)
        for id, columns in sorted(asked.items()):
            target = self._members.targets.get(id)
            if target is not None and target.session is not None:
                self._open_questions += 1
                question = Attest(self._members.term, tuple(columns))
                reply = self._reply(id)
                self._desk.ask(target.session, question, reply, patience_us=PATIENCE_US)
        self._one_answered()

    def _reply(self, target: TargetId) -> Reply:
        return lambda message, _bulk: self._answered(target, message)

    def _answered(self, target: TargetId, message: Message) -> None:
        if isinstance(message, Attested):
            here = {proof.column for proof in message.proofs if proof.target == target}
            of_target = [proof for proof in self._proofs if proof.target == target]
            self._standing += [proof for proof in of_target if proof.column in here]
            self._gone += sum(proof.column not in here for proof in of_target)
        self._one_answered()

    def _one_answered(self) -> None:
        self._open_questions -= 1
        if not self._open_questions:
            self._done(self._standing, self._gone)
