"""Tables of ranks as they come, decoded a slice at a time: all ranks hand theirs over at once.

A small one is decoded within the event that brings it. A thousand ranks of large models take
seconds, in which leases are renewed and other jobs are served.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.errors import CkptError, Refused
from ckpt.base.units import KiB
from ckpt.format.checksum import Buffer
from ckpt.format.members import member_of_table
from ckpt.format.table import HomePiece, RankTable, TensorEntry
from ckpt.format.table_decoding import TableDecoder
from ckpt.plan.coverage import ENTRIES_AT_ONCE
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.homes import Homes
from ckpt.protocol.coordinator.saving.attempts import Attempt, Payload

AT_ONCE_BYTES = 4 * KiB
"""Largest document that is decoded at once: some hundred entries, half a millisecond."""

Decoded = Callable[[RankTable], None]
Failure = Callable[[CkptError], None]


class TableDecodes:
    """I decode what ranks certify and check it against what they opened."""

    def __init__(self, desk: Desk, homes: Homes) -> None:
        self._desk = desk
        self._homes = homes

    def begin(
        self, attempt: Attempt, payload: Payload, document: Buffer, then: Decoded, failed: Failure
    ) -> None:
        """`then` gets the table: now, where it is small, else slices later, by when the attempt may
        have ended. `failed` gets what is wrong with a large one.

        Raises Corrupt or Refused when something is wrong with a small one.
        """
        decode = _Decode(self._homes, attempt, payload, document)
        if len(document) > AT_ONCE_BYTES:
            self._desk.later(lambda: self._go_on(decode, then, failed))
            return
        while not decode.done:
            decode.go_on()
        then(decode.finish())

    def _go_on(self, decode: _Decode, then: Decoded, failed: Failure) -> None:
        """One slice."""
        try:
            decode.go_on()
            if decode.done:
                then(decode.finish())
                return
        except CkptError as error:
            failed(error)
            return
        self._desk.later(lambda: self._go_on(decode, then, failed))


class _Decode:
    """Of one table, all of whose bytes must lie in its payload or in homes that it named."""

    def __init__(self, homes: Homes, attempt: Attempt, payload: Payload, document: Buffer) -> None:
        self._homes = homes
        self._attempt = attempt
        self._payload = payload
        #: As it came, until its first slice: those that wait take no more room than that.
        self._document = document
        self._decoder: TableDecoder | None = None

    @property
    def done(self) -> bool:
        return self._decoder is not None and self._decoder.done

    def go_on(self) -> None:
        """One slice. Raises Corrupt or Refused."""
        if self._decoder is None:
            self._decoder, self._document = TableDecoder(self._document), b""
        self._check_pieces(self._decoder.go_on(ENTRIES_AT_ONCE))

    def finish(self) -> RankTable:
        """The rank's own, once it is done. Raises Refused."""
        assert self._decoder is not None
        payload, table = self._payload, self._decoder.table()
        own = (table.rank, table.world_size) == (payload.id.rank, self._attempt.world_size)
        if payload.member:
            own = member_of_table(payload.member, payload.id.rank, table) is not None
        if not own:
            raise _misfit(payload)
        return table

    def _check_pieces(self, entries: list[TensorEntry]) -> None:
        payload = self._payload
        pieces = [piece for entry in entries for piece in entry.pieces]
        away = [piece for piece in pieces if isinstance(piece, HomePiece)]
        here = [piece for piece in pieces if not isinstance(piece, HomePiece)] if away else pieces
        end = max([piece.payload_offset + piece.length for piece in here], default=0)
        if end > payload.layout.payload_bytes:
            raise _misfit(payload)
        homes = {home.generation for home in payload.homes}
        if not homes.issuperset(piece.home for piece in away):
            raise Refused(f"{payload.id}: the table refers to what its payload did not name")
        misfit = self._homes.misfit(payload.id, away)
        if misfit:
            raise Refused(f"{payload.id}: the table does not fit its homes: {misfit}")


def _misfit(payload: Payload) -> Refused:
    return Refused(f"{payload.id}: the table does not fit its payload")
