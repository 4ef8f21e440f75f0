"""While a payload streams: spares for its columns, then its certificate with the rank's table.

A certificate is a moment, not a state to rely on: its proofs are checked here and counted at
commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ckpt.base.errors import CkptError, Refused
from ckpt.base.limits import TABLE_BYTES_MAX, TARGET_ID_BYTES_MAX
from ckpt.format.checksum import xxh3_128
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import (
    BoxesCompared,
    Certified,
    Certify,
    RequestSpares,
    SparesNamed,
)
from ckpt.format.messages.writing import ColumnProof
from ckpt.format.packed_table import Table
from ckpt.protocol.coordinator.cluster.attesting import Attestation
from ckpt.protocol.coordinator.saving.attempts import ENDED, Attempt, Payload
from ckpt.protocol.coordinator.saving.committing import Committer
from ckpt.protocol.coordinator.saving.context import SavingContext
from ckpt.protocol.coordinator.saving.decoding import TableDecodes
from ckpt.protocol.coordinator.saving.ending import Ending, discarded
from ckpt.protocol.coordinator.saving.space.spare_search import Homeless
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.proofs import check_proof

CertifyingRequest = RequestSpares | Certify | BoxesCompared


@dataclass(frozen=True, slots=True)
class _Asked:
    """A payload's certificate, whose table is whole; and who waits for the answer."""

    session: Session
    request: int
    attempt: Attempt
    payload: Payload
    message: Certify
    table_digest: bytes
    """Of its document."""

    @property
    def known_table(self) -> Table | None:
        """A stager that came back says the same: what was made of it stays."""
        payload = self.payload
        return payload.table if payload.table_digest == self.table_digest else None


class Certifying:
    """I take what stagers say of a payload that has its plan."""

    def __init__(
        self, context: SavingContext, committer: Committer, ending: Ending, secret: bytes
    ) -> None:
        self._desk = context.desk
        self._book = context.book
        self._members = context.members
        self._reservations = context.reservations
        self._decodes = TableDecodes(context.desk, context.homes)
        self._cluster = context.policy.cluster
        self._committer = committer
        self._ending = ending
        self._secret = secret

    def handle(
        self, session: Session, request: int, message: CertifyingRequest, bulk: Buffer
    ) -> None:
        """Raises Refused for what fits no plan."""
        match message:
            case RequestSpares():
                self._request_spares(session, request, message)
            case Certify():
                self._certify(session, request, message, bulk)
            case BoxesCompared():
                self._compared(message)

    def _request_spares(self, session: Session, request: int, message: RequestSpares) -> None:
        """More places for one column of an open payload."""
        found = self._book.find(message.payload)
        if found is None or found[0].state in ENDED:
            self._ending.tell_end_of(session, request, message.payload)
            return
        _, payload = found
        if payload.allotment is None:
            payload.allotment = self._reservations.empty_allotment(payload.layout)
        for target in message.failed:
            payload.allotment.refused.setdefault(target, Failed("unavailable", "failed its stager"))
        payload.allotment.note_held(message.held)
        self._reservations.more_spares(
            payload.allotment,
            message.column,
            lambda places: self._desk.send(session, request, SparesNamed(payload.id, places)),
            None if message.stays else Homeless(message.failed, len(message.held)),
        )

    def _certify(self, session: Session, request: int, message: Certify, bulk: Buffer) -> None:
        """A payload has enough sealed columns.

        Parts of its table come ascending, the last with all proofs.
        """
        found = self._book.find(message.payload)
        if found is None or found[0].state in ENDED:
            self._ending.tell_end_of(session, request, message.payload)
            return
        attempt, payload = found
        if not self._book.speaks(attempt, payload, session):
            return
        payload.away_since_us = None
        if not self._take_table(payload, message, bulk):
            return
        self._check_certify(attempt, payload, message)
        document, payload.table_bytes = payload.table_bytes, bytearray()
        asked = _Asked(session, request, attempt, payload, message, xxh3_128(document))
        known = asked.known_table
        if known is not None:
            self._count(asked, known)
            return

        def decoded(table: Table) -> None:
            if not self._is_over(asked):
                self._count(asked, asked.known_table or table)

        def failed(error: CkptError) -> None:
            self._desk.fail(session, request, error)

        self._decodes.begin(attempt, payload, document, decoded, failed)

    def _count(self, asked: _Asked, table: Table) -> None:
        """Those proofs that count; where they may be older than a restart, their targets say."""
        attempt, payload, proofs = asked.attempt, asked.payload, asked.message.proofs
        is_decided = attempt.record is not None  # Nothing of it is left out any more.
        if is_decided or not (attempt.recovered and attempt.of_members):
            self._accept(asked, table, proofs)
            return

        def looked(standing: list[ColumnProof], gone: int) -> None:
            if self._is_over(asked):
                return
            if len(proofs) - gone < payload.layout.code.floor:
                self._ending.drop_file(attempt, payload)
                self._desk.fail(asked.session, asked.request, discarded(payload.id))
            else:
                self._accept(asked, table, standing)

        Attestation(self._desk, self._members, proofs, looked).begin()

    def _is_over(self, asked: _Asked) -> bool:
        """Whether what it belongs to ended meanwhile. Who asked hears how, if it is here still: a
        stager that came back asks again.
        """
        attempt, payload = asked.attempt, asked.payload
        if not attempt.has(payload):
            self._desk.fail(asked.session, asked.request, discarded(payload.id))
            return True
        if attempt.state in ENDED and payload.session == asked.session:
            self._ending.tell_end_of(asked.session, asked.request, payload.id)
        return attempt.state in ENDED

    def _accept(self, asked: _Asked, table: Table, standing: Iterable[ColumnProof]) -> None:
        """From here on it is certified; of its proofs those count that stand."""
        payload, message = asked.payload, asked.message
        payload.proofs = {proof.column.column: proof for proof in message.proofs}
        for proof in standing:
            self._note_proof(proof)
        for target in message.slow:
            self._members.note_slow(target)
        payload.certify = message
        payload.table, payload.table_digest = table, asked.table_digest
        payload.certified_us = self._desk.now_us
        if payload.session == asked.session:
            self._desk.send(asked.session, asked.request, Certified(payload.id))
        self._committer.proceed(asked.attempt)

    def _take_table(self, payload: Payload, message: Certify, bulk: Buffer) -> bool:
        """Collect a part; True when the table is whole."""
        if not 0 <= message.table_bytes <= TABLE_BYTES_MAX:
            raise Refused(f"{payload.id}: table of {message.table_bytes} bytes is out of bounds")
        if message.table_offset == 0:
            payload.table_bytes.clear()
        if message.table_offset != len(payload.table_bytes):
            raise Refused(f"{payload.id}: table part at {message.table_offset} is out of order")
        payload.table_bytes += bulk
        return len(payload.table_bytes) >= message.table_bytes

    def _check_certify(self, attempt: Attempt, payload: Payload, message: Certify) -> None:
        layout = payload.layout
        same = (message.code, message.payload_bytes, message.cell_bytes) == (
            str(layout.code),
            layout.payload_bytes,
            layout.cell_bytes,
        )
        document_end = message.document_offset + message.document_bytes
        same = same and 0 <= message.document_offset <= document_end <= layout.payload_bytes
        if not same or message.launch != attempt.launch:
            raise Refused(f"{payload.id}: certify does not fit what was opened")
        if len(message.slowest_target.encode()) > TARGET_ID_BYTES_MAX:
            raise Refused(f"{payload.id}: its slowest target has no target's name")
        for proof in message.proofs:
            fits = (proof.code, proof.payload_bytes) == (message.code, message.payload_bytes)
            column_exists = 0 <= proof.column.column < layout.code.n
            if proof.column.payload != payload.id or not fits or not column_exists:
                raise Refused(f"{payload.id}: proof of {proof.column} does not belong here")
            if proof.manifest_digest != message.manifest_digest:
                raise Refused(f"{payload.id}: {proof.column} was sealed with another manifest")
            if not check_proof(proof, self._cluster, self._secret):
                raise Refused(f"{payload.id}: the proof of {proof.column} is not its target's")

    def _note_proof(self, proof: ColumnProof) -> None:
        """What a stager brings counts like what the target tells itself: under its current boot
        only, and not of what it is about to drop.
        """
        if self._members.accepts(proof.target, proof.boot):
            target = self._members.targets[proof.target]
            if proof.column not in target.dropping:
                target.proved.add(proof)

    def _compared(self, message: BoxesCompared) -> None:
        """Fingerprints of overlaps; late ones are ignored."""
        found = self._book.find(message.payload)
        if found is not None:
            self._committer.compared(*found, message)
