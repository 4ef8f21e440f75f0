"""Tables of ranks as they come, decoded a slice at a time: all ranks hand theirs over at once.

A small one is decoded within the event that brings it. A thousand ranks of large models take
longer, and leases are renewed and other jobs are served meanwhile. Of those that are like another,
nearly all of a model's, only the numbers are taken: a tenth of the work, and of the memory.

    alone     --read as arrays--> nearly all entries are taken as they came; a rule is broken, or
                                  many are odd --> entry by entry
    looked at --no usual form--------------------------> decoded entry by entry
              --the first of its form------------------> the same, and makes the form
              --its form is being made--> waits --.
              --its form is known--> packed <-----'      --a rule is broken--> entry by entry
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ckpt.base.errors import CkptError, Refused
from ckpt.base.units import KiB
from ckpt.format.array_table import ArrayTable
from ckpt.format.checksum import Buffer
from ckpt.format.members import member_of_table
from ckpt.format.packed_table import (
    PackedTable,
    Table,
    TableForm,
    form_digest,
    table_arrays,
)
from ckpt.format.table import HomePiece, RankTable, TensorEntry
from ckpt.format.table_decoding import TableDecoder
from ckpt.native.tables import TableArrays
from ckpt.plan.coverage import ENTRIES_AT_ONCE
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.homes import Homes
from ckpt.protocol.coordinator.saving.attempts import Attempt, Payload

AT_ONCE_BYTES = 4 * KiB
"""Largest document that is decoded at once: some hundred entries, half a millisecond."""

FORM_BYTES_MIN = 512
"""Smallest document whose form is looked for: to decode some entries costs less."""

WAITS_MAX = 3
"""Forms that a table waits for. It is like each of them, but of those that had a fault, or have
several boxes of a tensor, none may be its own.
"""

Decoded = Callable[[Table], None]
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
        have ended. `failed` gets what is wrong with it.
        """

        def decoded(table: Table) -> None:
            try:
                then(table)
            except CkptError as error:
                failed(error)

        fit, is_small = _Fit(self._homes, attempt, payload), len(document) <= AT_ONCE_BYTES
        if payload.member or len(document) < FORM_BYTES_MIN:  # A file has one entry.
            begin = partial(self._go_on, _Decode(fit, document), decoded, failed)
        elif attempt.world_size == 1:  # It has nobody to share a form with.
            begin = partial(self._read, fit, document, decoded, failed)
        else:
            begin = partial(self._look, _Look(fit, document), decoded, failed)
        if is_small:
            begin()
        else:
            self._desk.later(begin)

    def _read(self, fit: _Fit, document: Buffer, then: Decoded, failed: Failure) -> None:
        """As arrays: all at once, some milliseconds for a hundred thousand entries."""
        try:
            arrays = table_arrays(document)
            table = ArrayTable.of(arrays) if arrays is not None else None
        except CkptError as error:
            failed(error)
            return
        if table is None:
            self._go_on(_Decode(fit, document), then, failed)
            return
        problem = fit.owner_problem(table) or fit.pieces_problem(table.here_end(), table.away())
        if problem is not None:
            failed(problem)
        else:
            then(table)

    def _look(self, look: _Look, then: Decoded, failed: Failure) -> None:
        """Whether its form is known."""
        try:
            packed = look.packed()
        except CkptError as error:
            failed(error)
            return
        again = partial(self._desk.later, partial(self._look, look, then, failed))
        if packed is not None:
            then(packed)
        elif look.goes_alone:
            self._go_on(_Decode(look.fit, look.document), then, failed)
        elif look.begins_form(again):
            self._make_form(look, then, failed)

    def _make_form(self, look: _Look, then: Decoded, failed: Failure) -> None:
        """Of the first table that has it."""

        def ended(form: TableForm | None) -> None:
            for waiting in look.forms.end(look.digest, form):
                waiting()

        def decoded(table: Table) -> None:
            assert isinstance(table, RankTable)
            form = look.form_of(table)
            ended(form)
            then(look.first_of(form, table))

        def missed(error: CkptError) -> None:
            failed(error)
            ended(None)

        decode = _Decode(look.fit, look.document)
        # A large one has a slice to itself; others of a small one find it decoded when they look.
        begin = self._go_on if look.entries <= ENTRIES_AT_ONCE else self._later
        begin(decode, decoded, missed)

    def _later(self, decode: _Decode, then: Decoded, failed: Failure) -> None:
        self._desk.later(lambda: self._go_on(decode, then, failed))

    def _go_on(self, decode: _Decode, then: Decoded, failed: Failure) -> None:
        """One slice; it is all of a small one."""
        try:
            decode.go_on()
            table = decode.finish() if decode.done else None
        except CkptError as error:
            failed(error)
            return
        if table is not None:
            then(table)
        else:
            self._later(decode, then, failed)


class _Fit:
    """Whether a table is its payload's own, and all of its bytes lie there or in homes that the
    payload named.
    """

    def __init__(self, homes: Homes, attempt: Attempt, payload: Payload) -> None:
        self._homes = homes
        self.attempt = attempt
        self._payload = payload

    def owner_problem(self, table: Table) -> Refused | None:
        """What is wrong with whose it is."""
        payload = self._payload
        own = (table.rank, table.world_size) == (payload.id.rank, self.attempt.world_size)
        if payload.member:
            own = (
                isinstance(table, RankTable)
                and member_of_table(payload.member, payload.id.rank, table) is not None
            )
        return None if own else self._misfit()

    def pieces_problem(self, here_end: int, away: Sequence[HomePiece]) -> Refused | None:
        """What is wrong with pieces: of those in the payload, where the last one ends; of others
        the last ones of each home, or all.
        """
        payload = self._payload
        if here_end > payload.layout.payload_bytes:
            return self._misfit()
        homes = {home.generation for home in payload.homes}
        if not homes.issuperset(piece.home for piece in away):
            return Refused(f"{payload.id}: the table refers to what its payload did not name")
        misfit = self._homes.misfit(payload.id, away)
        if misfit:
            return Refused(f"{payload.id}: the table does not fit its homes: {misfit}")
        return None

    def _misfit(self) -> Refused:
        return Refused(f"{self._payload.id}: the table does not fit its payload")


class _Look:
    """At a large document of one rank among several."""

    def __init__(self, fit: _Fit, document: Buffer) -> None:
        self.fit = fit
        self.forms = fit.attempt.forms
        """The attempt's, also when it has ended meanwhile."""
        self.document = document
        """As it came: those that wait for their turn take no more room than that."""
        self.goes_alone = False
        """It has not the usual form, does not fit its payload, or has waited in vain."""
        self.digest = b""
        """Of its form; empty before the first look."""
        self._arrays: TableArrays | None = None
        self._waits = 0

    def packed(self) -> PackedTable | None:
        """None where its form is not known, or something is wrong with it. Raises Corrupt."""
        arrays = self._arrays = table_arrays(self.document)
        if arrays is None:
            self.goes_alone = True
            return None
        self.digest = form_digest(arrays)
        tried = (form.pack(arrays) for form in self.forms.candidates(self.digest))
        packed = next((one for one in tried if one is not None), None)
        if packed is None:
            self.goes_alone = self._waits >= WAITS_MAX
            return None
        problem = self.fit.owner_problem(packed)
        problem = problem or self.fit.pieces_problem(packed.here_end(), packed.away())
        self.goes_alone = problem is not None
        return packed if problem is None else None

    def begins_form(self, again: Callable[[], None]) -> bool:
        """Whether it makes its form; `again` is done once another has made it."""
        assert self._arrays is not None
        begins = self.forms.begin(self.digest, self._arrays, again)
        if not begins:
            self._waits += 1
            # As it came, it takes a tenth of the room.
            self._arrays = None
        return begins

    @property
    def entries(self) -> int:
        """Of a table that makes its form."""
        assert self._arrays is not None
        return len(self._arrays.axes_each)

    def form_of(self, table: RankTable) -> TableForm:
        """What others may share of this one, which was decoded."""
        assert self._arrays is not None
        return TableForm(table, self._arrays)

    def first_of(self, form: TableForm, table: RankTable) -> PackedTable:
        """As the others of its form."""
        assert self._arrays is not None
        return form.pack_first(table, self._arrays)


class _Decode:
    """Of one table, entry by entry."""

    def __init__(self, fit: _Fit, document: Buffer) -> None:
        self._fit = fit
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
        table = self._decoder.table()
        problem = self._fit.owner_problem(table)
        if problem is not None:
            raise problem
        return table

    def _check_pieces(self, entries: list[TensorEntry]) -> None:
        pieces = [piece for entry in entries for piece in entry.pieces]
        away = [piece for piece in pieces if isinstance(piece, HomePiece)]
        here = [piece for piece in pieces if not isinstance(piece, HomePiece)] if away else pieces
        end = max([piece.payload_offset + piece.length for piece in here], default=0)
        problem = self._fit.pieces_problem(end, away)
        if problem is not None:
            raise problem
