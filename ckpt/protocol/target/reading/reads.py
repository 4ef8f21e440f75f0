"""Reading at rest: whole blocks from the disk, verified, and only the wanted bytes sent.

A job is one question of one session. Jobs of a session run one after another, sessions take turns
piece by piece, workers' after all others'. A piece is one disk read of at most `read_piece_bytes`.

    question -> queued -> [block table loaded] -> pieces read, verified, sent -> answered

Invariants: bytes read for a session and not yet drained stay within its window, those of all within
the pool; sessions that hold nothing may have a piece beyond it, all together within the crowd's
share (read_turns.py). So what is read for a crowd of any size has one bound, which only one step
may pass by what it takes beyond a piece: a column's trailer (block table and manifest) is read at
once. The disk cannot be asked to stop: what it was asked for sessions that have closed counts until
it comes, and until then nobody has a piece beyond the pool. A byte is sent only when its block
matched the table and the table matched its own checksum. A block that fails is named, the rest goes
on: damage has the size of a block.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

from ckpt.base.ids import ColumnId
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.messages.lending import LendColumn, ReturnColumn
from ckpt.format.messages.reading import (
    ManifestData,
    RangeDamaged,
    RangesDone,
    ReadManifest,
    ReadRanges,
)
from ckpt.protocol.events import Buffer, CloseSession, Session, SessionOpened
from ckpt.protocol.runs.range_frames import range_frames
from ckpt.protocol.runs.run_sets import spans_of
from ckpt.protocol.runs.wire_runs import runs_of
from ckpt.protocol.target.core import Completion, Core, SealedColumn
from ckpt.protocol.target.disk_events import DiskFailed, ReadAt, ReleaseBulk
from ckpt.protocol.target.reading.loans import Loans
from ckpt.protocol.target.reading.pieces import (
    BlockTable,
    DiskPiece,
    TableCache,
    blocks_between,
    cut_pieces,
    runs_inside,
    runs_without,
)
from ckpt.protocol.target.reading.read_jobs import (
    CheckJob,
    Job,
    LendJob,
    ManifestJob,
    ReadQuestion,
    StreamJob,
)
from ckpt.protocol.target.reading.read_turns import Reader, ReadingSessions
from ckpt.protocol.target.reading.shared_reads import DiskRead, SharedReads, VerifiedBlocks
from ckpt.protocol.target.workers import Workers


def _everybody(_session: Session) -> bool:
    return True


class Reads:
    """I answer readers, piece by piece, fairly and within bounds."""

    def __init__(self, core: Core, tables: TableCache, workers: Workers) -> None:
        self._core = core
        self._tables = tables
        self._workers = workers

        self._readers = ReadingSessions(core.limits)
        #: The most that one step took: a trailer or a part of a document may be more than a piece.
        self._step_bytes_max = 0
        self._loans = Loans(core, self._readers, workers)
        self._shared = SharedReads(core.limits.read_keep_bytes)
        #: How many use the buffer of each operation: sessions with unsent frames, and `_shared`.
        #: The last one releases it.
        self._holders: Counter[int] = Counter()

    # ----------------------------------------------------------------------- questions

    def read_ranges(self, session: Session, request: int, message: ReadRanges) -> None:
        column = self._find(session, request, message.column)
        if column is None:
            return
        size = column.header.column_bytes
        runs = runs_of(message.ranges, size)
        if runs is None:
            self._core.fail(session, request, "refused", f"no ranges of {size} column bytes")
            return
        if not runs:
            self._core.send(session, request, RangesDone())
            return
        pieces = cut_pieces(column.header.layout, runs, self._core.limits.read_piece_bytes)
        self.queue(ReadQuestion(session, request, column, deque(pieces)))

    def read_manifest(self, session: Session, request: int, message: ReadManifest) -> None:
        column = self._find(session, request, message.column)
        if column is not None:
            self.queue(ManifestJob(session, request, column))

    def lend(self, session: Session, request: int, message: LendColumn) -> None:
        """Give a column's file to a reader of this host, which compares its blocks by itself."""
        column = self._find(session, request, message.column)
        if column is not None and self._loans.may_ask(session, request):
            self.queue(LendJob(session, request, column))

    def returned(self, session: Session, request: int, message: ReturnColumn) -> None:
        """The reader is done with a column, or does not want it any more."""
        self.cancel(session, request)
        self._loans.returned(session, request, message)

    def parts(self, start: int, end: int) -> deque[tuple[int, int]]:
        """[start, end) in pieces; one empty piece when there is nothing."""
        size = self._core.limits.read_piece_bytes
        spans = [(at, min(at + size, end)) for at in range(start, end, size)]
        return deque(spans or [(start, end)])

    def _find(self, session: Session, request: int, id: ColumnId) -> SealedColumn | None:
        column = self._core.columns.get(id)
        if column is None:
            text = f"{id} is not on {self._core.identity.target}"
            self._core.fail(session, request, "not_found", text)
        return column

    # ----------------------------------------------------------------------- turns

    def queue(self, job: Job) -> None:
        """Take the question in, or refuse when its session asks too many at once."""
        reader = self._readers.begin(job.session)
        limits = self._core.limits
        pieces = sum(len(each.pieces) for each in reader.jobs if isinstance(each, ReadQuestion))
        if len(reader.jobs) >= limits.read_jobs_max or pieces >= limits.read_pieces_max:
            self._core.fail(job.session, job.request, "busy", "too many questions at once")
            return
        self._core.counters.reads += 1
        reader.jobs.append(job)
        self._readers.wake(job.session)

    def cancel(self, session: Session, request: int) -> None:
        """Forget the question; what is under way is thrown away when it comes."""
        reader = self._readers.get(session)
        for job in list(reader.jobs) if reader is not None else ():
            if job.request == request:
                assert reader is not None
                self._readers.cancel(reader, job)

    def session_opened(self, event: SessionOpened) -> None:
        """Note who may be lent columns."""
        self._loans.opened(event)

    def session_closed(self, session: Session) -> None:
        """Nothing is sent any more: buffers of unsent frames are free."""
        self._loans.closed(session)
        self._let_go(self._readers.close(session, self._core.now_us))

    def drained(self, session: Session) -> None:
        """Note that all that was sent has left."""
        reader = self._readers.get(session)
        if reader is not None:
            self._let_go(self._readers.left(session, reader, self._core.now_us))

    def ticked(self, coordinator: Session | None) -> None:
        """Forget what was kept and nobody asked for; cut off who does not take what he was sent
        while others wait for its memory, but for the coordinator.
        """
        self._let_go(self._shared.expire(self._core.now_us))
        reason = "it does not take what it asked for, and others wait for the memory"
        for session in self._readers.find_slow(self._core.now_us):
            if session != coordinator:
                self._core.out.append(CloseSession(session, reason))

    def _let_go(self, operations: Sequence[int]) -> None:
        """One who used each of their buffers does so no more; the last one frees it."""
        for op in operations:
            self._holders[op] -= 1
            if not self._holders[op]:
                del self._holders[op]
                self._core.out.append(ReleaseBulk(op))

    def pump(self) -> None:
        """Ask the disk for as many pieces as the windows hold, one session after another; then for
        workers, while others are here within their share.
        """
        if not self._readers:
            return
        if not self._workers:
            self._take_turns(_everybody)
            return
        self._take_turns(lambda session: session not in self._workers)
        if self._is_used_by_others:
            self._take_turns(self._workers.may_read, self._workers.read)
        else:
            self._take_turns(self._workers.__contains__)

    @property
    def _is_used_by_others(self) -> bool:
        """Not by workers alone."""
        reads = (
            session not in self._workers and reader.is_reading
            for session, reader in self._readers.items()
        )
        return any(reads) or self._workers.are_beside_writers

    def _take_turns(
        self, may: Callable[[Session], bool], took: Callable[[int], None] = lambda _bytes: None
    ) -> None:
        """Of those that may, until nobody can have more."""
        limits, readers, passed_by = self._core.limits, self._readers, []
        while True:
            turn = readers.take()
            if turn is None:
                break
            session, reader = turn
            mine = reader.held_bytes
            if not may(session):
                passed_by.append(session)
            elif not mine or mine + limits.read_piece_bytes <= limits.read_window_bytes:
                taken = self._turn(reader)
                if taken is not None:
                    took(taken)
                    self._step_bytes_max = max(self._step_bytes_max, taken)
                    readers.wake(session)
        for session in passed_by:
            readers.wake(session)

    def _turn(self, reader: Reader) -> int | None:
        """One step of the session's first job that has one: bytes asked for, or None."""
        for job in reader.jobs:
            if isinstance(job, StreamJob):
                start, end = job.parts.popleft()
                if not job.parts:
                    reader.jobs.remove(job)
                job.fetch(job, start, end)
                return end - start
            if isinstance(job, CheckJob):
                return job.fetch(job)
            if isinstance(job, ManifestJob):
                return self._load(reader, job, partial(self._manifest_loaded, reader, job))
            if isinstance(job, LendJob):
                table = self._tables.get(job.column)
                if table is None:
                    return self._load(reader, job, partial(self._loans.give, reader, job))
                self._loans.give(reader, job, table)
                return 0
            if job.table is None:
                job.table = self._tables.get(job.column)
            if job.table is None:
                return self._load(reader, job, partial(self._tabled, job))
            if job.pieces:
                return self._read(reader, job, job.pieces.popleft())
            if not job.reading_count:
                self._answer(reader, job)
                return 0
            return None
        return None

    def _load(
        self, reader: Reader, job: ReadQuestion | ManifestJob | LendJob,
        then: Callable[[BlockTable | None, bytes], None],
    ) -> int | None:  # fmt: skip
        """Read the column's trailer; it counts like a piece while it is in a buffer."""
        if job.loading:
            return None
        job.loading, size = True, job.column.header.trailer_bytes
        self._readers.asked(reader, size)
        self._readers.memory.take(size)

        def loaded(table: BlockTable | None, manifest: bytes) -> None:
            self._readers.memory.give_back(size)
            self._readers.came(job.session, reader, size)
            then(table, manifest)

        self._tables.load(job.column, loaded)
        return size

    def _manifest_loaded(
        self, reader: Reader, job: ManifestJob, _table: BlockTable | None, manifest: bytes
    ) -> None:
        if job.cancelled:
            return
        at = reader.jobs.index(job)
        if not manifest:
            del reader.jobs[at]
            text = f"both trailers of {job.column.header.column} are damaged"
            self._core.fail(job.session, job.request, "corrupt", text)
            return

        def part(stream: StreamJob, start: int, end: int) -> None:
            answer = ManifestData(total_bytes=len(manifest), offset=start)
            self._core.send(job.session, job.request, answer, memoryview(manifest)[start:end])
            stream.kept_bytes -= end - start
            self._readers.keep(reader, start - end)
            self._readers.gave_copy(reader, end - start, self._core.now_us)

        # In its place: no other one is loaded before this one has left.
        reader.jobs[at] = StreamJob(
            job.session, job.request, self.parts(0, len(manifest)), part, len(manifest)
        )
        self._readers.keep(reader, len(manifest))

    def _tabled(self, job: ReadQuestion, table: BlockTable | None, _manifest: bytes) -> None:
        job.table, job.loading = table, False
        reader = self._readers.get(job.session)
        if job.cancelled or reader is None:
            return
        if table is None:
            reader.jobs.remove(job)
            text = f"both trailers of {job.column.header.column} are damaged"
            self._core.fail(job.session, job.request, "corrupt", text)
        self.pump()

    # ----------------------------------------------------------------------- pieces

    def _read(self, reader: Reader, job: ReadQuestion, piece: DiskPiece) -> int:
        """Give the piece from a read that is kept, wait for one under way, or ask the disk."""
        core = self._core
        read = self._shared.find(job.column, piece)
        if read is not None and read.found is not None:
            before = reader.held_bytes
            self._give(reader, job, piece, read, read.found)
            self._let_go(self._shared.used(read, piece, core.now_us))
            self._finish_if_read(reader, job)
            return reader.held_bytes - before
        if read is None:
            read = self._ask_disk(job, piece)
        size = piece.end - piece.start
        job.reading_count += 1
        self._readers.asked(reader, size)
        read.takers.append((job, piece))
        return size

    def _ask_disk(self, job: ReadQuestion, piece: DiskPiece) -> DiskRead:
        assert job.table is not None, "it was asked for first"
        read = self._shared.begin(job.column, piece)
        self._readers.memory.take(read.size)
        read.op = self._core.expect(partial(self._read_done, read, job.table))
        offset = FRAGMENTS_OFFSET + piece.start
        self._core.out.append(ReadAt(read.op, job.column.file, offset, read.size))
        return read

    def _read_done(self, read: DiskRead, table: BlockTable, event: Completion) -> None:
        core = self._core
        self._readers.memory.give_back(read.size)
        takers: list[tuple[Reader, ReadQuestion, DiskPiece]] = []
        for job, piece in read.takers:
            job.reading_count -= 1
            reader = self._readers.find(job.session)
            self._readers.came(job.session, reader, piece.end - piece.start)
            if not job.cancelled and self._readers.get(job.session) is reader:
                takers.append((reader, job, piece))
        self._holders[read.op] = 1
        if isinstance(event, DiskFailed):
            self._shared.end(read)
            self._read_failed(read, [(job, piece) for _, job, piece in takers], event)
        else:
            core.counters.bytes_read += read.size
            found = VerifiedBlocks(read, event.data, table)
            core.counters.blocks_damaged += len(found.bad)
            for reader, job, piece in takers:
                self._give(reader, job, piece, read, found)
            self._keep(read, found)
        for reader, job, _ in takers:
            self._finish_if_read(reader, job)

    def _finish_if_read(self, reader: Reader, job: ReadQuestion) -> None:
        if not job.pieces and not job.reading_count and job in reader.jobs:
            self._answer(reader, job)

    def _read_failed(
        self, read: DiskRead, takers: Sequence[tuple[ReadQuestion, DiskPiece]], event: DiskFailed
    ) -> None:
        """A failed read of several blocks is tried again block by block, each a group of its own,
        to find the bad ones.
        """
        layout = read.column.header.layout
        alone = len(list(blocks_between(layout, read.start, read.end))) == 1
        self._core.counters.blocks_damaged += alone
        for job, piece in takers:
            if alone:
                for start, end in spans_of(piece.wanted):
                    self._damage(job, start, end, event.errno_name)
                continue
            again = [
                DiskPiece(~block.number, block.start, block.end, wanted)
                for block in blocks_between(layout, piece.start, piece.end)
                if (wanted := runs_inside(piece.wanted, block.start, block.end))
            ]
            job.pieces.extendleft(reversed(again))
        self._let_go((read.op,))

    def _keep(self, read: DiskRead, found: VerifiedBlocks) -> None:
        """For those who want other parts of it, if all is well."""
        if read.others_may_want() and not found.bad:
            self._let_go(self._shared.keep(read, found, self._core.now_us))
        else:
            self._shared.end(read)
            self._let_go((read.op,))

    def _give(
        self,
        reader: Reader,
        job: ReadQuestion,
        piece: DiskPiece,
        read: DiskRead,
        found: VerifiedBlocks,
    ) -> None:
        """Send what is good of each run that the piece wants."""
        good = piece.wanted
        if found.bad:
            good, damaged = runs_without(piece.wanted, found.bad)
            for start, end in damaged:
                self._damage(job, start, end, "checksum")
        held = False
        for message, bulk, is_copy in range_frames(good, found):
            self._core.counters.bytes_given += len(bulk)
            self._core.send(job.session, job.request, message, bulk)
            if is_copy:
                self._readers.gave_copy(reader, len(bulk), self._core.now_us)
            held = held or not is_copy
        if held:
            self._readers.gave_buffer(reader, read.op, read.size, self._core.now_us)
            self._holders[read.op] += 1

    def _damage(self, job: ReadQuestion, start: int, end: int, reason: str) -> None:
        answer = RangeDamaged(start=start, end=end, reason=reason)
        self._core.send(job.session, job.request, answer)
        # A dead disk would fill the log, block by block.
        if self._core.on_suspect(job.column):
            self._core.report(
                "warning", "damaged bytes", column=str(job.column.header.column), start=start,
                end=end, why=reason,
            )  # fmt: skip

    # ----------------------------------------------------------------------- answers

    def _answer(self, reader: Reader, job: ReadQuestion) -> None:
        reader.jobs.remove(job)
        self._core.send(job.session, job.request, RangesDone())

    def end(self, job: CheckJob) -> None:
        """Note that a question is answered, not cancelled."""
        self._readers.find(job.session).jobs.remove(job)

    @property
    def is_idle(self) -> bool:
        """Whether nobody has asked for anything that is not sent."""
        return not any(reader.is_reading for _, reader in self._readers.items())

    def read_part(
        self, job: StreamJob | CheckJob, file: str, offset: int, length: int,
        deliver: Callable[[Buffer | DiskFailed], bool], *, at_rest: bool = False,
    ) -> None:  # fmt: skip
        """Read a part from a file; `deliver` sends it and says whether its bytes are in a frame
        now.
        """
        reader = self._readers.find(job.session)
        self._readers.asked(reader, length)
        self._readers.memory.take(length)

        def done(event: Completion) -> None:
            self._readers.memory.give_back(length)
            self._readers.came(job.session, reader, length)
            gone = job.cancelled or self._readers.get(job.session) is not reader
            if not gone and deliver(event if isinstance(event, DiskFailed) else event.data):
                self._core.counters.bytes_read += length
                self._readers.gave_buffer(reader, event.op, length, self._core.now_us)
                self._holders[event.op] += 1
            else:
                self._core.out.append(ReleaseBulk(event.op))

        op = self._core.expect(done)
        self._core.out.append(ReadAt(op, file, offset, length, at_rest=at_rest))

    def check(self) -> None:
        """Assert the invariants that the module states."""
        self._readers.check()
        limits = self._core.limits
        step = max(limits.read_piece_bytes, self._step_bytes_max)
        for _, reader in self._readers.items():
            assert reader.held_bytes <= limits.read_window_bytes + step
        most = limits.read_pool_bytes + limits.read_crowd_bytes - limits.read_piece_bytes + step
        assert self._readers.memory.bytes <= most
