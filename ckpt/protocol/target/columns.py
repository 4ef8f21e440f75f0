"""The life of a column on its target: begin, fragments under credit, seal, proof.

    BeginColumn -> WAITING --reservation free--> OPEN --SealColumn, whole--> SEALING --> sealed,
    proved
                      |                            |                            |
                      `--- abandon, session lost, taken over, disk or peer failed -> ENDING --writes
                           done--> gone; the aside file returns to its reservation, or is removed

Seal order: trailer A and B and the last header page, the first header page, length, sync, rename
into `columns/`, sync of the directory; only then the proof. A crash leaves the column whole or
absent. One that is damaged here is mended in the same way, over its name: a crash leaves the
damaged copy or the right one.

Invariants: one stream for a column, one for a reservation. What may be sent is credit.py's. A
checksum of the sender's is compared and never taken over. A file whose write or sync failed is
removed, never used again. Once SEALING, only the disk can stop it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import CheckpointId, ColumnId
from ckpt.base.limits import MANIFEST_BYTES_MAX
from ckpt.format.column import (
    FRAGMENTS_OFFSET,
    ColumnHeader,
    file_bytes,
    manifest_bytes_bound,
)
from ckpt.format.layout import Layout, blocks_of
from ckpt.format.messages.writing import BeginColumn, ColumnSealed, Fragment, SealColumn
from ckpt.native.sums import Sums, sums_of
from ckpt.protocol.events import Buffer, CloseSession, Session
from ckpt.protocol.target.core import (
    COLUMNS,
    Completion,
    Core,
    SealedColumn,
    column_name,
)
from ckpt.protocol.target.credit import Credit
from ckpt.protocol.target.disk_events import DiskFailed, ReleaseBulk, RemoveFile, WriteAt
from ckpt.protocol.target.open_streams import OpenStreams
from ckpt.protocol.target.reading.pieces import TableCache
from ckpt.protocol.target.space import Reservation, Reservations, ReservationState, disk_failure
from ckpt.protocol.target.stream import (
    Stream,
    StreamState,
    layout_of,
    seal_steps,
    sealed_header,
)


class Columns:
    """I receive columns. I hold the streams; nobody else changes them."""

    def __init__(self, core: Core, reservations: Reservations, tables: TableCache) -> None:
        self._core = core
        self._reservations = reservations
        self._tables = tables
        self._streams = OpenStreams()
        #: Where a seal failed that may have given its column a name: a crash may bring it back,
        #: until it is removed and its directory synced.
        self._failed_seals: dict[ColumnId, str] = {}
        self._credit = Credit(core)
        reservations.on_ready = self.admit
        reservations.on_lost = self._lost
        reservations.on_released = self._released

    # ----------------------------------------------------------------------- begin

    def begin(self, session: Session, request: int, message: BeginColumn) -> None:
        core = self._core
        if self._streams.get(session, request) is not None:
            core.out.append(CloseSession(session, "two streams under one request number"))
            return
        if core.is_over(message.column.payload.checkpoint, again=message.again):
            core.fail(session, request, "aborted", "this generation was dropped here")
            return
        try:
            layout = layout_of(message)
            needed = file_bytes(layout, manifest_bytes_bound(layout))
        except Refused as error:
            core.fail(session, request, error.code, error.message)
            return
        if message.column in core.removing or message.column in core.doomed:
            core.fail(session, request, "busy", "it is being removed", retry_after_us=100_000)
            return
        sealed = core.columns.get(message.column)
        if sealed is not None and not (message.again and core.is_rotten(sealed)):
            self._answer_sealed(session, request, layout, sealed)
            return
        reservation = self._reservations.get(message.reservation)
        if reservation is None or reservation.released:
            text = f"no reservation {message.reservation} stands on {core.identity.target}"
            core.fail(session, request, "refused", text, "reserve again")
            return
        if needed > reservation.file_bytes:
            text = f"the column needs {needed} bytes, {reservation.file_bytes} are reserved"
            core.fail(session, request, "refused", text)
            return
        self._open(session, request, message, layout, reservation)

    def _answer_sealed(
        self, session: Session, request: int, layout: Layout, sealed: SealedColumn
    ) -> None:
        """A repeated begin: the answer to the seal was lost on the way."""
        if sealed.header.layout == layout:
            self._core.send(session, request, ColumnSealed(self._core.proof(sealed)))
        else:
            self._core.fail(session, request, "refused", "sealed here with another shape")

    def _open(
        self, session: Session, request: int, message: BeginColumn, layout: Layout,
        reservation: Reservation,
    ) -> None:  # fmt: skip
        older = self._streams.newest(message.column)
        if older is not None:
            if older.state is StreamState.SEALING:
                text = "the column is being sealed"
                self._core.fail(session, request, "busy", text, retry_after_us=100_000)
                return
            self._fail(older, "aborted", "another stream took the column over")
        users = self._streams.users(reservation.id)
        if any(user.state is not StreamState.ENDING for user in users):
            self._core.fail(session, request, "busy", "another column uses the reservation")
            return
        stream = Stream(
            session, request, message, layout, reservation,
            block_crcs=np.zeros(layout.block_count, np.uint32),
            fragment_crcs=np.zeros(layout.stripe_count, np.uint32),
            received=bytearray(layout.stripe_count),
        )  # fmt: skip
        self._streams.add(stream)
        self._core.counters.streams_begun += 1
        self._core.counters.streams = len(self._streams)
        self.admit(reservation)

    def admit(self, reservation: Reservation) -> None:
        """Open the stream that waits for this reservation, when nobody uses it any more."""
        users = self._streams.users(reservation.id)
        if not users or users[0].state is not StreamState.WAITING:
            return
        if reservation.state is not ReservationState.READY:
            return
        stream = users[0]
        self._reservations.take(reservation)
        stream.state = StreamState.OPEN
        self._credit.join(stream)

    def asked(self, session: Session, request: int) -> None:
        """Answer a sender that asks whether this target lives."""
        self._credit.answer(session, request)

    def ticked(self) -> None:
        """Let senders that wait know that this target lives."""
        self._credit.ticked()

    # ----------------------------------------------------------------------- fragments

    def fragment(
        self, session: Session, request: int, message: Fragment, bulk: Buffer, sums: Sums | None
    ) -> None:
        """`sums`: what of the bulk's was taken as it landed; None: it is summed here."""
        stream = self._streams.get(session, request)
        if stream is None or stream.state is not StreamState.OPEN:
            return  # late: the stream has ended, and its sender knows
        layout, stripe = stream.layout, message.stripe
        if not 0 <= stripe < layout.stripe_count or len(bulk) != layout.cell_bytes_of(stripe):
            self._fail(
                stream, "refused", f"stripe {stripe} of {len(bulk)} bytes is not of the plan"
            )
            return
        if len(bulk) > stream.credit_bytes:
            self._core.out.append(CloseSession(session, "more bytes than its credit"))
            return
        self._credit.used(stream, len(bulk))
        if stream.received[stripe]:
            self._credit.freed(stream, len(bulk))
            return
        crc, blocks = sums or sums_of(bulk)
        if crc != message.crc:
            self._fail(stream, "corrupt", f"stripe {stripe} does not match its checksum on arrival")
            return
        first = stripe * blocks_of(layout.cell_bytes)
        stream.block_crcs[first : first + len(blocks)] = blocks
        stream.fragment_crcs[stripe] = crc
        stream.received[stripe] = 1
        stream.received_count += 1
        stream.arrived_bytes += len(bulk)
        self._write(stream, FRAGMENTS_OFFSET + layout.fragment_offset(stripe), bulk)

    def _write(self, stream: Stream, offset: int, bulk: Buffer) -> None:
        size = len(bulk)
        stream.write_count += 1
        self._core.pace.write_began(self._core.now_us)

        def written(event: Completion) -> None:
            self._core.pace.write_ended(self._core.now_us, size)
            self._core.out.append(ReleaseBulk(event.op))
            stream.write_count -= 1
            if isinstance(event, DiskFailed):
                self._damage(stream, "write the column", event)
            else:
                self._core.counters.fragments += 1
                self._core.counters.bytes_written += size
            self._credit.freed(stream, size)
            self._seal_when_written(stream)
            self._finish(stream)

        op = self._core.expect(written)
        self._core.out.append(WriteAt(op, stream.reservation.file, offset, bulk, keeps_bulk=True))

    # ----------------------------------------------------------------------- seal

    def seal(self, session: Session, request: int, message: SealColumn, bulk: Buffer) -> None:
        """Take the manifest, in ascending parts; the last one starts the seal."""
        stream = self._streams.get(session, request)
        if stream is None or stream.state is not StreamState.OPEN:
            return
        total, bound = message.manifest_bytes, manifest_bytes_bound(stream.layout)
        repeated = stream.manifest_bytes is not None and stream.manifest_bytes != total
        end = message.manifest_offset + len(bulk)
        if not 0 < total <= min(bound, MANIFEST_BYTES_MAX) or repeated or end > total:
            self._fail(stream, "refused", f"a manifest of {total} bytes does not fit the plan")
            return
        if message.manifest_offset != len(stream.manifest):
            self._fail(stream, "refused", "the parts of the manifest do not follow each other")
            return
        stream.manifest_bytes = total
        stream.manifest += bulk
        self._seal_when_written(stream)

    def _seal_when_written(self, stream: Stream) -> None:
        complete = (
            stream.manifest_bytes is not None and len(stream.manifest) == stream.manifest_bytes
        )
        if stream.state is not StreamState.OPEN or not complete or stream.write_count:
            return
        missing = stream.layout.stripe_count - stream.received_count
        if missing:
            self._fail(stream, "refused", f"{missing} stripes never came")
            return
        try:
            header = sealed_header(stream, self._core.identity.cluster)
            self._check_same(header)
        except CkptError as error:
            self._fail(stream, error.code, error.message)
            return
        stream.state = StreamState.SEALING
        self._core.chain(
            seal_steps(stream, header, f"{COLUMNS}/{column_name(stream.column)}"),
            lambda failure: self._sealed(stream, header, failure),
            began=lambda op: self._core.pace.seal_step_began(self._core.now_us, op),
            ended=lambda op: self._core.pace.seal_step_ended(self._core.now_us, op),
        )

    def _check_same(self, header: ColumnHeader) -> None:
        """What mends a column is that column, byte by byte. Raises Refused."""
        standing = self._core.columns.get(header.column)
        if standing is not None and standing.header != header:
            raise Refused("these are not the bytes of the column that is damaged here")

    def _sealed(self, stream: Stream, header: ColumnHeader, failure: DiskFailed | None) -> None:
        core = self._core
        name = column_name(stream.column)
        standing = core.columns.get(stream.column)
        if failure is not None and standing is not None:
            # Renamed or not, the name has the damaged copy or the right one, which was synced.
            core.on_unsure(standing)
            self._damage(stream, "mend the column", failure)
            self._finish(stream)
            return
        if failure is not None:
            # The rename may or may not have happened: neither name may survive.
            self._damage(stream, "seal the column", failure)
            stream.write_count += 1

            def removed(_event: Completion) -> None:
                stream.write_count -= 1
                self._finish(stream)

            file = self._failed_seals[stream.column] = f"{COLUMNS}/{name}"
            core.out.append(RemoveFile(core.expect(removed), file))
            return
        self._failed_seals.pop(stream.column, None)
        sealed = standing or SealedColumn(header, name, header.file_bytes)
        if standing is None:
            core.add_column(sealed)
        else:
            # Another file: what was known of the one before says nothing of it.
            core.on_gone(sealed)
            core.on_stored(sealed)
        self._tables.put(sealed, stream.block_crcs)
        core.counters.columns_sealed += 1
        self._reservations.consume(stream.reservation)
        core.send(stream.session, stream.request, ColumnSealed(core.proof(sealed)))
        self._leave(stream)

    # ----------------------------------------------------------------------- end

    def abandon(self, session: Session, request: int) -> None:
        stream = self._streams.get(session, request)
        if stream is not None:
            self._end(stream)

    def session_closed(self, session: Session) -> None:
        ending = self._streams.of_session(session)
        # What one of them frees is for others, not for those that end with it.
        for stream in ending:
            self._credit.forget(stream)
        for stream in ending:
            self._end(stream)

    def drop(self, checkpoint: CheckpointId, column: ColumnId | None = None) -> None:
        """End the streams of a generation, or of one column of it."""
        for stream in self._streams.of(checkpoint, column):
            self._fail(stream, "aborted", "the coordinator dropped it")

    def sealing(self, checkpoint: CheckpointId, only: ColumnId | None) -> bool:
        """Whether a seal of this generation, or of this column alone, is on the disk's way and
        cannot be stopped.
        """
        streams = self._streams.of(checkpoint, only)
        return any(stream.state is StreamState.SEALING for stream in streams)

    def sessions(self) -> Iterator[Session]:
        """Of each stream."""
        return self._streams.sessions()

    def sealing_now(self) -> frozenset[ColumnId]:
        """Columns whose seal is on the disk's way."""
        return frozenset(one.column for one in self._streams if one.state is StreamState.SEALING)

    def failed_seals(self, checkpoint: CheckpointId, only: ColumnId | None) -> dict[ColumnId, str]:
        """Columns of it, or this one alone, that nobody knows and that may have a name on disk."""
        return {
            id: file for id, file in self._failed_seals.items()
            if id.payload.checkpoint == checkpoint and only in (None, id)
        }  # fmt: skip

    def gone(self, columns: Iterable[ColumnId]) -> None:
        """Note that their names are removed, durably."""
        for id in columns:
            self._failed_seals.pop(id, None)

    def _fail(self, stream: Stream, code: str, message: str) -> None:
        """Tell the sender and end the stream, unless it is past stopping."""
        if stream.state in (StreamState.SEALING, StreamState.ENDING):
            return
        self._core.count_refusal(code)
        self._core.fail(stream.session, stream.request, code, message)
        self._end(stream)

    def _damage(self, stream: Stream, doing: str, event: DiskFailed) -> None:
        """The disk refused: this column is lost here, all others go on."""
        if not stream.damaged and stream.state is not StreamState.ENDING:
            failure = disk_failure(doing, event)
            self._core.count_refusal(failure.code)
            self._core.send(stream.session, stream.request, failure)
        if not stream.damaged:
            self._core.report(
                "error", "column refused", column=str(stream.column), error=event.errno_name
            )
        stream.damaged = True
        stream.state = StreamState.ENDING

    def _end(self, stream: Stream) -> None:
        if stream.state is StreamState.SEALING:
            return
        waiting = stream.state is StreamState.WAITING
        stream.state = StreamState.ENDING
        if waiting:
            self._leave(stream)
        else:
            self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        """When the last write of an ended stream is answered, its file and window are free."""
        if stream.state is not StreamState.ENDING or stream.write_count:
            return
        if self._streams.get(stream.session, stream.request) is None:
            return
        if stream.damaged or stream.reservation.released:
            self._reservations.discard(stream.reservation)
        else:
            self._reservations.put_back(stream.reservation)
        self._leave(stream)

    def _leave(self, stream: Stream) -> None:
        """Forget the stream; whoever waited for its reservation or its window comes next."""
        self._streams.remove(stream)
        self._core.counters.streams = len(self._streams)
        self._credit.leave(stream)
        if stream.damaged or stream.reservation.released:
            self._lost(stream.reservation)
        else:
            self.admit(stream.reservation)
        self._credit.water()

    def _lost(self, reservation: Reservation) -> None:
        """The reserved file failed or never came to be: nobody can use it any more."""
        for waiter in self._streams.users(reservation.id):
            self._fail(waiter, "failed", "the reserved space is gone")

    def _released(self, reservation: Reservation) -> None:
        """Nobody waits for what would be sealed there: its save has ended, or it went elsewhere."""
        for user in self._streams.users(reservation.id):
            self._fail(user, "aborted", "its space was given back")

    def check(self) -> None:
        """Assert the invariants that the module states."""
        self._credit.check()
        using = []
        for stream in self._streams:
            assert stream.received_count == stream.received.count(1)
            if stream.state is not StreamState.WAITING:
                using.append(stream.reservation.id)
        assert len(set(using)) == len(using)
