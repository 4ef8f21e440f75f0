"""What the parts of a target's machine share: its words, its output, its disk operations.

The parts (space, columns, reads, documents) hold a reference to the one Core and call each other
through it. A disk operation is an action with a number and a continuation that is called with its
completion; a chain is several of them, one after another, that ends at the first failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from ckpt.base.ids import BootId, CheckpointId, ColumnId, RunName, TargetId
from ckpt.base.limits import PAGE_BYTES, READ_BYTES, SCRUB_PERCENT
from ckpt.base.units import KiB, MiB
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import ColumnHeader
from ckpt.format.documents.file import DocumentHeader
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.events import Buffer, CloseSession, Report, Send, Session
from ckpt.protocol.proofs import make_proof, proof_key
from ckpt.protocol.target.counters import Counters
from ckpt.protocol.target.device import DeviceHealth
from ckpt.protocol.target.disk_events import (
    DiskAction,
    DiskDone,
    DiskFailed,
    LendFile,
    ProbeFile,
    ReleaseBulk,
    RemoveFile,
    SyncDirectory,
)
from ckpt.protocol.target.pace import Pace, StepHeard

TargetAction = DiskAction | ReleaseBulk | LendFile | Send | CloseSession | Report

COLUMNS = "columns"
DOCUMENTS = "documents"
STAGING = "staging"
ASIDE = "aside"
ABSENCE_US = 600_000
"""A target ticks far more often: a longer silence of everything is not charged to its device."""
DIRECTORIES = (COLUMNS, DOCUMENTS, STAGING, ASIDE)

META_BUDGET_BYTES = 48 * KiB
"""Most bytes of a list in one reply, below the frame's limit."""
PROOF_BYTES_MAX = 420
"""Most bytes of one encoded proof, its run's name not counted."""
ATTEST_COLUMNS_MAX = 64
"""Columns that one Attest may ask about, so that the answer fits one frame."""


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """Who this process is. `boot` is fresh random bits; the rest stands in `target.toml` and
    flags.
    """

    cluster: str
    target: TargetId
    boot: BootId
    domain: str
    address: str = ""
    unix: str = ""
    directory: str = ""
    pid: int = 0
    incarnation: bytes = b""
    """Of the directory; empty: it has none."""
    place: str = ""
    """Of the directory on this machine, as it runs now."""
    wire: str = ""
    """How its connections are guarded, as it was started with."""


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """Bounds on memory and space."""

    stream_credit_bytes: int = 16 * MiB
    """Most fragment bytes that one stream may have under way."""
    credit_pool_bytes: int = 64 * MiB
    """And all streams together."""
    read_piece_bytes: int = READ_BYTES
    """One disk read, and the largest bulk that is sent."""
    read_window_bytes: int = 8 * MiB
    """Read for one session and not yet sent."""
    read_pool_bytes: int = 32 * MiB
    """And for all sessions together."""
    read_crowd_bytes: int = 8 * MiB
    """Beyond that, for first pieces of sessions that hold nothing, however many there are."""
    read_keep_bytes: int = 24 * MiB
    """Read and kept for a moment, where more of it may be wanted; not counted in the pool."""
    read_jobs_max: int = 1024
    """Questions of one session that may wait."""
    read_pieces_max: int = 65_536
    """Disk reads that these may be cut into, which bounds their memory; one alone may have more."""
    scrub_period_us: int | None = None
    """All that lies here is read at rest at least so often; None: only when somebody asks."""
    scrub_percent: int = SCRUB_PERCENT
    """Most of the device's time for that."""
    table_cache_bytes: int = 16 * MiB
    capacity_bytes: int | None = None
    """What this target may use of its device, where that is less than the device."""

    def __post_init__(self) -> None:
        assert self.read_piece_bytes <= self.read_window_bytes <= self.read_pool_bytes


@dataclass(slots=True)
class SealedColumn:
    """A column file that is on stable storage."""

    header: ColumnHeader
    name: str
    """Within `columns/`."""
    file_bytes: int

    @property
    def file(self) -> str:
        return f"{COLUMNS}/{self.name}"


@dataclass(slots=True)
class StoredDocument:
    """A document file that is on stable storage."""

    header: DocumentHeader
    kind: DocumentKind
    name: str
    """Within `documents/`."""

    @property
    def file(self) -> str:
        return f"{DOCUMENTS}/{self.name}"


Entry = SealedColumn | StoredDocument


@lru_cache(maxsize=1024)
def _digest_of(run: RunName) -> str:
    return xxh3_128(run.encode()).hex()


@lru_cache(maxsize=4096)
def column_name(column: ColumnId) -> str:
    """The file's name: the run's name only as a digest, so that it is never used as a path."""
    payload = column.payload
    checkpoint = payload.checkpoint
    run = _digest_of(checkpoint.run)
    return f"{run}-{checkpoint.step}-{checkpoint.generation}-{payload.rank}-{column.column}"


Completion = DiskDone | DiskFailed
Step = Callable[[int], DiskAction]
"""Makes one action of a chain from its operation number."""
Stuck = dict[str, DiskFailed]
"""Files that are there still, each with why it was not removed."""
Removed = Callable[[Stuck, DiskFailed | None], None]
"""Hears these, and what the device refused: then all others may be there still as well."""
DocumentKey = tuple[DocumentKind, CheckpointId]


class Core:
    """I hold what is sealed here and collect the actions of one `handle`.

    Only the parts change me.
    """

    def __init__(self, identity: TargetIdentity, secret: bytes, limits: TargetLimits) -> None:
        self.identity = identity
        self.limits = limits
        self.now_us = 0
        self.out: list[TargetAction] = []
        self.counters = Counters()
        self.pace = Pace()
        self.refusals: Counter[str] = Counter()
        """Columns refused, by the code of the answer."""
        self.columns: dict[ColumnId, SealedColumn] = {}
        #: The same, by generation.
        self._columns_of: dict[CheckpointId, dict[ColumnId, SealedColumn]] = {}
        self.documents: dict[DocumentKey, StoredDocument] = {}
        self.unread: dict[str, str] = {}
        """Names within `columns/` of what the start could not read and left there, each with the
        errno's name."""
        self.dropped: dict[CheckpointId, None] = {}
        """Generations that were dropped since boot (bounded); their streams may not begin again."""
        self.doomed: set[ColumnId] = set()
        """Columns that drops wait to remove."""
        self.removing: dict[ColumnId, None] = {}
        """Columns whose files go: they may not begin until that is durable. Documents keeps it."""
        self.replacing: dict[DocumentKey, None] = {}
        """Documents whose file a later one is about to replace, or has: until that is durable, what
        is read of it may be of either. Documents keeps it."""
        self.on_stored: Callable[[Entry], None] = lambda _entry: None
        """Called when a file counts from now on. Scrub sets it."""
        self.on_gone: Callable[[Entry], None] = lambda _entry: None
        """Called when it does no more. Scrub sets it."""
        self.on_suspect: Callable[[Entry], bool] = lambda _entry: True
        """Called when a reader met damage in it; says whether that is news. Scrub sets it."""
        self.on_unsure: Callable[[Entry], None] = lambda _entry: None
        """Called when a mended file may have the name, and a crash may undo it. Scrub sets it."""
        self.on_probe_failed: Callable[[], None] = lambda: None
        """Called when the device is still not well. DeadDevice sets it."""
        self.is_rotten: Callable[[Entry], bool] = lambda _entry: False
        """Whether damage is known in it. Scrub sets it."""
        self.bytes_used = 0
        self.device = DeviceHealth()
        self.key = proof_key(secret, identity.target, identity.boot)
        """Of this boot, under which it vouches for what it holds."""
        #: What to do when the disk answers each operation; every one is answered exactly once.
        self._operations: dict[int, Callable[[Completion], None]] = {}
        self._operation_count = 0

    # ----------------------------------------------------------------------- output

    def send(self, session: Session, request: int, message: Message, bulk: Buffer = b"") -> None:
        self.out.append(Send(session, request, message, bulk))

    def fail(
        self, session: Session, request: int, code: str, message: str, hint: str = "",
        retry_after_us: int | None = None,
    ) -> None:  # fmt: skip
        """Answer a request that was not done."""
        self.send(session, request, Failed(code, message, hint, retry_after_us))

    def fail_unread(self, session: Session, request: int, file: str, errno_name: str) -> None:
        """Answer who asked for a file of which nothing can be said now."""
        self.fail(session, request, "unavailable", f"{file} cannot be read now: {errno_name}")

    def report(self, level: str, text: str, **values: str | int | float) -> None:
        self.out.append(Report(level, text, tuple(values.items())))

    def count_refusal(self, code: str) -> None:
        """Count a column that had begun and was refused with this code."""
        self.counters.columns_refused += 1
        self.refusals[code] += 1

    def proof(self, column: SealedColumn) -> ColumnProof:
        """The proof by which this process vouches for a column."""
        header, identity = column.header, self.identity
        return make_proof(
            self.key, identity.cluster, column=header.column, target=identity.target,
            boot=identity.boot, code=str(header.code), payload_bytes=header.payload_bytes,
            column_crc=header.column_crc, manifest_digest=header.manifest_digest,
        )  # fmt: skip

    # ----------------------------------------------------------------------- disk

    def turn_to(self, now_us: int) -> None:
        """Another event. Where not even a tick came for long this process stood still."""
        if now_us - self.now_us >= ABSENCE_US:
            self.pace.excuse(now_us - self.now_us)
        self.now_us = now_us

    def expect(self, then: Callable[[Completion], None]) -> int:
        """A new operation number; `then` is called with its completion."""
        self._operation_count += 1
        self._operations[self._operation_count] = then
        return self._operation_count

    def complete(self, event: Completion) -> None:
        """Handle an answer of the disk."""
        if isinstance(event, DiskFailed):
            self.counters.disk_failures += 1
            self.device.failed(event)
        then = self._operations.pop(event.op, None)
        assert then is not None, f"operation {event.op} was answered twice or never asked"
        then(event)
        self.pace.disk_answered(self.now_us, event.op)

    @property
    def operations_open(self) -> int:
        return len(self._operations)

    def chain(
        self, steps: Sequence[Step], then: Callable[[DiskFailed | None], None],
        began: StepHeard = lambda _op: None, ended: StepHeard = lambda _op: None,
    ) -> None:  # fmt: skip
        """Do the steps in turn; `then` gets None or the first failure, the others each number."""
        rest = iter(steps)

        def next_step(event: Completion | None) -> None:
            if event is not None:
                ended(event.op)
            if isinstance(event, DiskFailed):
                then(event)
                return
            step = next(rest, None)
            if step is None:
                then(None)
            else:
                op = self.expect(next_step)
                self.pace.step_began(self.now_us, op, self.operations_open - 1)
                began(op)
                self.out.append(step(op))

        next_step(None)

    def remove_files(self, columns: Sequence[str], documents: Sequence[str], then: Removed) -> None:
        """Remove all that can be, durably. Documents say what the columns are: they stay as long as
        one of these.
        """
        # What a start set aside may have had this name: a crash must not bring it back either.
        renamed = self.counters.set_aside > 0
        names = {COLUMNS: columns, DOCUMENTS: documents}
        folders = [folder for folder, files in names.items() if files or renamed]

        def removed(stuck: Stuck, failure: DiskFailed | None) -> None:
            if failure is not None:
                then(stuck, failure)
                return
            syncs = [partial(SyncDirectory, directory=folder) for folder in folders]
            self.chain(syncs, partial(then, stuck))

        def columns_removed(stuck: Stuck, failure: DiskFailed | None) -> None:
            if stuck:
                removed(stuck, failure)
            else:
                self._remove_each(documents, removed)

        self._remove_each(columns, columns_removed)

    def _remove_each(self, names: Sequence[str], then: Removed) -> None:
        """In turn; nothing more is tried after a refusal that is the device's own."""
        stuck: Stuck = {}

        def remove_from(index: int) -> None:
            if index == len(names):
                then(stuck, None)
                return

            def ended(failure: DiskFailed | None) -> None:
                if failure is not None:
                    stuck[names[index]] = failure
                if failure is None or failure.is_of_one_file:
                    remove_from(index + 1)
                else:
                    then(stuck, failure)

            self.chain([partial(RemoveFile, file=names[index])], ended)

        remove_from(0)

    def probe(self, file: str) -> None:
        """Try the device with a small file, whose way is that of a column as far as it goes."""

        def probed(event: Completion) -> None:
            self.device.probed(event.now_us, event if isinstance(event, DiskFailed) else None)
            if not self.device.is_failing:
                self.report("info", "the device is well again")
            else:
                self.on_probe_failed()

        self.out.append(ProbeFile(self.expect(probed), file, bytes(PAGE_BYTES)))

    # ----------------------------------------------------------------------- content

    def columns_of(self, checkpoint: CheckpointId) -> list[SealedColumn]:
        """Of this generation, ascending."""
        return [column for _, column in sorted(self._columns_of.get(checkpoint, {}).items())]

    def add_column(self, column: SealedColumn) -> None:
        id = column.header.column
        self.columns[id] = column
        self._columns_of.setdefault(id.payload.checkpoint, {})[id] = column
        self.bytes_used += column.file_bytes
        self.on_stored(column)

    def remove_column(self, column: SealedColumn) -> None:
        """Forget the column, if it is still the one that is known under its id."""
        id = column.header.column
        if self.columns.get(id) is column:
            del self.columns[id]
            of_checkpoint = self._columns_of[id.payload.checkpoint]
            del of_checkpoint[id]
            if not of_checkpoint:
                del self._columns_of[id.payload.checkpoint]
            self.bytes_used -= column.file_bytes
            self.on_gone(column)

    def add_document(self, document: StoredDocument) -> None:
        """A later document of the same name has replaced the earlier one's file."""
        key = (document.kind, document.header.checkpoint)
        earlier = self.documents.get(key)
        if earlier is not None:
            self.remove_document(earlier)
        self.documents[key] = document
        self.bytes_used += document.header.file_bytes
        self.on_stored(document)

    def remove_document(self, document: StoredDocument) -> None:
        key = (document.kind, document.header.checkpoint)
        if self.documents.get(key) is document:
            del self.documents[key]
            self.bytes_used -= document.header.file_bytes
            self.on_gone(document)

    def holds(self, entry: Entry) -> bool:
        """Whether the file is what it should be: neither dropped nor replaced."""
        if isinstance(entry, SealedColumn):
            return self.columns.get(entry.header.column) is entry
        key = (entry.kind, entry.header.checkpoint)
        return self.documents.get(key) is entry and key not in self.replacing

    def is_over(self, checkpoint: CheckpointId, *, again: bool) -> bool:
        """Whether no column of it may begin: it was dropped, or is deleted and not made again for
        later ones.
        """
        deleted = (DocumentKind.TOMBSTONE, checkpoint) in self.documents
        return checkpoint in self.dropped or (deleted and not again)

    def note_dropped(self, checkpoint: CheckpointId) -> None:
        """Remember, within bounds, that nothing of this generation may begin again."""
        self.dropped[checkpoint] = None
        if len(self.dropped) > 4096:
            del self.dropped[next(iter(self.dropped))]
