"""A target reads all that it keeps, past the page cache, before somebody needs it.

    resting --a file is due, somebody asked, or a reader met damage in it--> reading it, window by
    window --> resting
                 aside while columns are written or read, or the device fails

I take `scrub_percent` of the device's time at most, by what each read took. What is damaged is a
finding until its file is read again and found whole, or is dropped. Findings, the pass, the file
under way and the last reading of each are on stable storage, within NOTE_US; another process goes
on from there. A file that is dropped or replaced while it is read gives no alarm.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, Rank
from ckpt.base.units import US_PER_S
from ckpt.format.documents.file import document_name
from ckpt.format.messages.reading import Damage
from ckpt.format.messages.scrubbing import ScrubState
from ckpt.format.messages.targets import ROT_NAMED_MAX, Rot, ScrubReport
from ckpt.protocol.target.at_rest.file_check import FileCheck
from ckpt.protocol.target.at_rest.scrub_note import (
    SCRUB_FILE,
    ScrubNote,
    digest_of,
    encode_scrub_note,
    pack_readings,
    unpack_readings,
    whole_since_of,
)
from ckpt.protocol.target.at_rest.timetable import KnownFile, Timetable
from ckpt.protocol.target.core import (
    COLUMNS,
    DOCUMENTS,
    Completion,
    Core,
    Entry,
    SealedColumn,
    column_name,
)
from ckpt.protocol.target.disk_events import PASSING_ERRNOS, DiskFailed, ReadAt, ReleaseBulk
from ckpt.protocol.target.notes.note_file import NoteFile
from ckpt.protocol.target.reading.reads import Reads
from ckpt.protocol.target.space import Reservations

NOTE_US: Final = 60 * US_PER_S
"""Pause between two notes, while nothing is found and no pass begins or ends."""
RETRY_US: Final = 60 * US_PER_S
"""Pause before a file is tried again that could not be read for want of memory or descriptors."""
READ_US_MIN: Final = 100
"""A shorter read counts as one that took this long."""
BYTES_PER_US_MAX: Final = 8192
"""A faster read counts as one this fast: no clock shows how long a short one took."""
SAVED_TICKS: Final = 2
"""Ticks whose time may be saved up."""
TICK_US_MAX: Final = 200_000
ROT_OF_FILE_MAX: Final = 32
ROT_MAX: Final = 4096
"""Most findings that are kept; a device with more has other troubles."""


class Scrub:
    """I read files of one target at rest."""

    def __init__(self, core: Core, reservations: Reservations, reads: Reads) -> None:
        self._core = core
        self._reads = reads
        self._note_file = NoteFile(core, reservations, SCRUB_FILE, "the scrub's note")
        self._times = Timetable(core.limits.scrub_period_us)
        #: What is added to this process's time to have the wall clock's.
        self._epoch_us = 0
        #: What an earlier process read, by digest, and found, by file; while the directory is
        #: loaded.
        self._known: dict[bytes, int] | None = None
        self._known_rot: dict[str, list[Rot]] = {}
        #: Whether another process has scrubbed here.
        self._has_note = False
        #: The file that is read, and its check; None: none is.
        self._file: KnownFile | None = None
        self._check: FileCheck | None = None
        #: Whether the disk has been asked for a part of it.
        self._is_reading = False
        #: The device's time that may be taken now; below 0: what was taken ahead.
        self._saved_us = 0
        self._ticked_us: int | None = None
        #: Findings by file; at most ROT_MAX in all.
        self._rot: dict[str, tuple[Rot, ...]] = {}
        #: Of these, files whose damaged bytes a crash may bring back, whatever is read now.
        self._unsure: set[str] = set()
        #: When a note was begun last, whether there is something to note, and at once.
        self._noted_us = 0
        self._is_changed = self._is_urgent = False
        self._was_late = False
        #: When this process began.
        self._born_us = 0
        core.on_stored, core.on_gone = self._stored, self._gone
        core.on_suspect = self._suspected
        core.is_rotten = lambda entry: entry.file in self._rot
        core.on_unsure = lambda entry: self._unsure.add(entry.file)

    # ----------------------------------------------------------------------- life

    def load(self, note: ScrubNote | None, wall_us: int | None) -> None:
        """Before the files of the directory are taken over; `loaded` follows."""
        now_us = self._core.now_us
        self._epoch_us = 0 if wall_us is None else wall_us - now_us
        self._noted_us = self._born_us = now_us
        self._known, self._has_note = {}, note is not None
        if note is None:
            return
        for digest, at_s in unpack_readings(note.readings).items():
            self._known[digest] = self._here(at_s)
        for one in note.rot:
            self._known_rot.setdefault(_file_of(one), []).append(one)

    def loaded(self, note: ScrubNote | None) -> None:
        """Go on where an earlier process was."""
        self._known, self._known_rot, now_us = None, {}, self._core.now_us
        if note is None or not note.pass_began_s:
            return
        times, began_us = self._times, self._here(note.pass_began_s)
        times.began_us = began_us
        times.ended_us = self._here(note.pass_ended_s) if note.pass_ended_s else None
        whole_since_s = whole_since_of(note)
        times.whole_since_us = self._here(whole_since_s) if whole_since_s else None
        if note.is_running:
            times.go_on(began_us, now_us, is_asked=note.is_asked)
        file = times.get(note.file)
        if file is not None:
            self._begin(file, note.offset)
        self._count()

    def begin_pass(self) -> None:
        """Somebody asks: read all that is here now, from the first byte on."""
        self._file = self._check = None
        self._times.begin_pass(self._core.now_us, is_asked=True)
        self._note(at_once=True)
        self._count()

    def ticked(self) -> None:
        now_us = self._core.now_us
        if self._ticked_us is not None:
            span_us = min(now_us - self._ticked_us, TICK_US_MAX)
            share = self._core.limits.scrub_percent
            most = SAVED_TICKS * TICK_US_MAX * share // 100
            self._saved_us = min(self._saved_us + span_us * share // 100, most)
        self._ticked_us = now_us
        self._look_whether_late()
        self._go_on()
        self._write_note()

    @property
    def is_aside(self) -> bool:
        """Others use the device, or it fails."""
        core = self._core
        return core.counters.streams > 0 or not self._reads.is_idle or core.device.is_failing

    @property
    def is_at_work(self) -> bool:
        """A pass is under way, or a file is being read."""
        return self._times.now is not None or self._check is not None

    @property
    def report(self) -> ScrubReport:
        times, period_us = self._times, self._core.limits.scrub_period_us
        rot = [one for found in self._rot.values() for one in found]
        return ScrubReport(
            period_s=(period_us or 0) / US_PER_S,
            pass_began_s=self._wall_s(times.began_us),
            pass_ended_s=self._wall_s(times.ended_us),
            oldest_s=self._wall_s(times.oldest_us()),
            late_s=times.late_us(self._core.now_us) // US_PER_S,
            rot_count=len(rot),
            rot=tuple(rot[:ROT_NAMED_MAX]),
            whole_since_s=self._wall_s(times.whole_since_us),
        )

    @property
    def state(self) -> ScrubState:
        now, done = self._times.now, self._check.read_bytes if self._check is not None else 0
        return ScrubState(
            self.report,
            is_running=now is not None,
            is_asked=now is not None and now.is_asked,
            is_aside=self.is_aside,
            files_left=0 if now is None else now.files_left,
            bytes_left=0 if now is None else max(0, now.bytes_left - done),
            files=0 if now is None else now.files,
            bytes=0 if now is None else now.bytes,
        )

    def check(self) -> None:
        """Assert what is counted."""
        self._times.check()

    # ----------------------------------------------------------------------- files

    def _stored(self, entry: Entry) -> None:
        now_us, digest = self._core.now_us, digest_of(entry.file)
        if self._known is None:
            self._times.add(entry, digest, now_us, None)
            return
        read_us = self._known.get(digest)
        # When it was stored is not known: it is due.
        since_us = now_us - self._times.rest_us
        self._times.add(entry, digest, since_us, read_us, is_known=self._has_note)
        found = self._known_rot.get(entry.file)
        if found:
            self._rot[entry.file] = tuple(found)

    def _gone(self, entry: Entry) -> None:
        self._times.remove(entry)
        self._unsure.discard(entry.file)
        if self._rot.pop(entry.file, None) is not None:
            # A process after this one takes the next file of this name for damaged.
            self._note(at_once=True)
        if self._check is not None and self._check.entry is entry:
            self._file = self._check = None
        self._count()
        self._end_pass()

    def _suspected(self, entry: Entry) -> bool:
        """A reader met damage: what is known of it already is not read once more."""
        is_known = entry.file in self._rot or not self._core.holds(entry)
        return not is_known and self._times.suspect(entry.file)

    # ----------------------------------------------------------------------- reading

    def _go_on(self) -> None:
        """Ask for the next part, as far as time was saved for it."""
        if self._is_reading or self._saved_us <= 0 or self.is_aside:
            return
        if self._check is None:
            file = self._times.next(self._core.now_us)
            if file is None:
                return
            self._begin(file, 0)
        check = self._check
        assert check is not None
        assert check.wanted is not None
        offset, length = check.wanted
        self._is_reading = True
        op = self._core.expect(partial(self._took, check, self._core.now_us, length))
        self._core.out.append(ReadAt(op, check.file, offset, length, at_rest=True))

    def _begin(self, file: KnownFile, offset: int) -> None:
        found: Iterable[Damage] = ()
        if offset:
            found = [one.damage for one in self._rot.get(file.entry.file, ())]
        window = self._core.limits.read_piece_bytes
        self._file, self._check = file, FileCheck(file.entry, window, offset, found)
        if self._times.now is None and self._core.limits.scrub_period_us is not None:
            self._times.begin_pass(self._core.now_us, is_asked=False)

    def _took(self, check: FileCheck, asked_us: int, length: int, event: Completion) -> None:
        least_us = READ_US_MIN + length // BYTES_PER_US_MAX
        self._saved_us -= max(self._core.now_us - asked_us, least_us)
        self._is_reading = False
        data = event if isinstance(event, DiskFailed) else event.data
        if check is self._check:
            self._compare(check, data)
        self._core.out.append(ReleaseBulk(event.op))
        self._go_on()

    def _compare(self, check: FileCheck, data: DiskFailed | bytes | bytearray | memoryview) -> None:
        assert self._file is not None
        passing = isinstance(data, DiskFailed) and data.errno_name in PASSING_ERRNOS
        if passing or not self._core.holds(check.entry):
            self._times.later(self._file, self._core.now_us + RETRY_US)
            self._file = self._check = None
            return
        count, bytes_before = len(check.found), check.read_bytes
        check.took(data)
        self._core.counters.bytes_scrubbed += check.read_bytes - bytes_before
        self._is_changed = True
        if check.wanted is None:
            self._read_whole(check, self._file)
        elif len(check.found) > count:
            self._find(check.entry, check.found, is_whole=False)

    def _read_whole(self, check: FileCheck, file: KnownFile) -> None:
        self._file = self._check = None
        self._core.counters.files_scrubbed += 1
        self._find(check.entry, check.found, is_whole=True)
        self._times.read(file, self._core.now_us)
        self._end_pass()

    def _end_pass(self) -> None:
        if self._times.ended(self._core.now_us):
            self._note(at_once=True)
            self._count()

    # ----------------------------------------------------------------------- findings

    def _find(self, entry: Entry, damages: list[Damage], *, is_whole: bool) -> None:
        """What was found of a file; until it was read whole, what was known of it stays."""
        before = self._rot.pop(entry.file, ())
        found = dict.fromkeys(() if is_whole and entry.file not in self._unsure else before)
        found |= dict.fromkeys(_rot_of(entry, one) for one in damages)
        room = max(0, ROT_MAX - sum(map(len, self._rot.values())))
        kept = tuple(found)[: min(room, ROT_OF_FILE_MAX)]
        if kept:
            self._rot[entry.file] = kept
        new = [one for one in found if one not in before]
        for one in new[:ROT_NAMED_MAX]:
            damage = one.damage
            self._core.report(
                "error", "rot", file=entry.file, what=_what(entry), region=damage.region,
                start=damage.start, end=damage.end, why=damage.why,
            )  # fmt: skip
        self._core.counters.blocks_damaged += len(new)
        if kept != before:
            self._note(at_once=True)
            self._count()

    def _count(self) -> None:
        counters = self._core.counters
        counters.rot = sum(map(len, self._rot.values()))
        counters.scrub_ended_timestamp_seconds = self._wall_s(self._times.ended_us)

    def _look_whether_late(self) -> None:
        now_us = self._core.now_us
        late_us = self._times.late_us(now_us)
        late_s = late_us // US_PER_S
        self._core.counters.scrub_late_seconds = late_s
        if late_s and not self._was_late:
            period_s = (self._core.limits.scrub_period_us or 0) // US_PER_S
            why = "others use the device" if self.is_aside else "its share of the device is small"
            if now_us - late_us < self._born_us:
                why = "this process did not run when that was due"
            self._core.report("warning", "scrub is late", late_s=late_s, period_s=period_s, why=why)
        self._was_late = late_s > 0

    # ----------------------------------------------------------------------- notes

    def _note(self, *, at_once: bool) -> None:
        self._is_changed, self._is_urgent = True, self._is_urgent or at_once

    def _write_note(self) -> None:
        now_us = self._core.now_us
        rested = now_us - self._noted_us >= NOTE_US
        # A note that fails would be one more failure of a device that is tried by its probe.
        if self._note_file.is_writing or self._core.device.is_failing:
            return
        if not (self._is_urgent or (self._is_changed and rested)):
            return
        self._noted_us, self._is_changed, self._is_urgent = now_us, False, False
        self._note_file.write(encode_scrub_note(self._as_note()), self._written)

    def _written(self, is_durable: bool) -> None:
        """What could not be written is tried again when it has rested."""
        self._is_changed |= not is_durable

    def _as_note(self) -> ScrubNote:
        times, check = self._times, self._check
        readings = ((digest, self._wall_s(at_us)) for digest, at_us in times.readings())
        return ScrubNote(
            pass_began_s=self._wall_s(times.began_us),
            pass_ended_s=self._wall_s(times.ended_us),
            is_running=times.now is not None,
            is_asked=times.now is not None and times.now.is_asked,
            file=check.file if check is not None else "",
            offset=check.cells_end if check is not None else 0,
            rot=tuple(one for found in self._rot.values() for one in found),
            readings=pack_readings(readings),
            whole_since_s=self._wall_s(times.whole_since_us),
        )

    def _wall_s(self, at_us: int | None) -> int:
        return 0 if at_us is None else (at_us + self._epoch_us) // US_PER_S

    def _here(self, at_s: int) -> int:
        """In this process's time; not in the future, whatever a clock showed once."""
        return min(at_s * US_PER_S - self._epoch_us, self._core.now_us)


def _what(entry: Entry) -> str:
    if isinstance(entry, SealedColumn):
        return str(entry.header.column)
    return f"{entry.header.kind} of {entry.header.checkpoint}"


def _rot_of(entry: Entry, damage: Damage) -> Rot:
    if isinstance(entry, SealedColumn):
        id = entry.header.column
        return Rot(id.payload.checkpoint, damage, int(id.payload.rank), int(id.column))
    return Rot(entry.header.checkpoint, damage)


def _file_of(rot: Rot) -> str:
    if rot.rank is None or rot.column is None:
        return f"{DOCUMENTS}/{document_name(rot.damage.kind, rot.checkpoint)}"
    id = ColumnId(PayloadId(rot.checkpoint, Rank(rot.rank)), ColumnNumber(rot.column))
    return f"{COLUMNS}/{column_name(id)}"
