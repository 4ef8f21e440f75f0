"""A payload in columns, targets that misbehave as told, and virtual time: what drives a
PayloadReader in tests."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, PayloadId, Rank, RunName, Step
from ckpt.erasure.code import Code
from ckpt.erasure.codec import CODE_VERSION, MATRIX_ID, codec_for
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.combs import combs_of
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, encode_manifest
from ckpt.protocol.events import Report, Ticked
from ckpt.protocol.reader.events import (
    AskAnswered,
    AskManifest,
    AskRanges,
    AskRefused,
    ColumnLost,
    CutColumn,
    FinishStripe,
    ManifestRead,
    ManifestWrong,
    RangeErased,
    RangesBroken,
    RangesStored,
    ReadCompleted,
    ReaderAction,
    ReaderEvent,
    ReadFailed,
    ReadLimits,
    ReadWish,
    Standing,
    StripeFinished,
)
from ckpt.protocol.reader.payload_reader import PayloadReader
from ckpt.protocol.runs.run_sets import RunSet, is_plain, spans_of
from ckpt.transfer.assembly import Assembly, Checks
from ckpt.transfer.landings import Landings

BLOCK = 512
"""Size of damage here; a divisor of every cell."""
PAYLOAD = PayloadId(CheckpointId(RunName("run"), Step(7), Generation(1, 2)), Rank(3))


@dataclass
class Columns:
    """One payload, encoded."""

    layout: Layout
    payload: bytes
    columns: list[bytearray]
    manifest: bytes

    @classmethod
    def make(cls, code: Code, payload_bytes: int, cell_bytes: int, seed: int) -> Columns:
        layout = Layout(code, payload_bytes, cell_bytes)
        payload = random.Random(seed).randbytes(payload_bytes)
        padded = bytearray(payload.ljust(layout.padded_bytes, b"\0"))
        columns = [bytearray(layout.column_bytes) for _ in range(code.n)]
        crcs = np.zeros((layout.stripe_count, code.n), np.uint32)
        codec = codec_for(code)
        for stripe in range(layout.stripe_count):
            size, at = layout.cell_bytes_of(stripe), layout.fragment_offset(stripe)
            cells = [memoryview(column)[at : at + size] for column in columns]
            for j in range(code.k):
                start = layout.cell_offset(stripe, j)
                cells[j][:] = padded[start : start + size]
            codec.encode(cells[: code.k], cells[code.k :])
            crcs[stripe] = [crc32(cell) for cell in cells]
        manifest = RankManifest(
            PAYLOAD, LaunchNumber(1), code, MATRIX_ID, CODE_VERSION, payload_bytes, cell_bytes,
            crcs, np.array([crc32(column) for column in columns], np.uint32),
        )  # fmt: skip
        return cls(layout, payload, columns, encode_manifest(manifest))


@dataclass
class Behaviour:
    """What a column's target does."""

    kind: str = "good"
    """good, absent, away, suspect, dead, silent, slow, not_found, busy, stale, other."""
    damaged: set[int] = field(default_factory=set)
    """Numbers of blocks of the column."""
    wire_errors: int = 0
    """So many of its ranges arrive broken."""
    silent_after: int | None = None
    """It goes silent after so many asks."""
    delay_us: int = 300
    back_at_us: int | None = None
    """A dead one lives again from then on."""
    busy_until_us: int = 0
    """Until then its target brings bytes of another payload at every tick."""

    @property
    def standing(self) -> Standing:
        known = {kind.value: kind for kind in Standing}
        return known.get(self.kind, Standing.REACHABLE)

    @property
    def gives_bytes(self) -> bool:
        return self.kind in ("good", "slow", "suspect") and self.silent_after is None


class Reading:
    """One read from begin to end. After `run`: `last`, `memory`, `reader`, `cut`."""

    def __init__(
        self, data: Columns, behaviours: list[Behaviour], spans: list[tuple[int, int]],
        *, seed: int = 0, limits: ReadLimits | None = None, checks: Checks | None = None,
        sociable: float = 0.0, spared: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """sociable: how probably a range shares the frame of the one before it."""
        self.data = data
        self.behaviours = behaviours
        self.now_us = 0
        self.random, self.sociable = random.Random(seed), sociable
        self.memory = np.zeros(len(data.payload), np.uint8)
        landings = Landings()
        for start, end in spans:
            landings.add_range(start, self.memory[start:end])
        self.spans = spans
        digest = xxh3_128(data.manifest)
        self.assembly = Assembly(data.layout, landings, digest, checks)
        wish = ReadWish(
            PAYLOAD, data.layout, landings.ranges(), tuple(b.standing for b in behaviours),
            limits or ReadLimits(), frozenset(spared),
        )  # fmt: skip
        self.reader = PayloadReader(wish, itertools.count(1), 0, self.assembly.is_direct)
        self.heap: list[tuple[int, int, int | None, ReaderEvent]] = []
        self.order = itertools.count()
        self.last: ReadCompleted | ReadFailed | None = None
        self.cut: list[tuple[int, str]] = []
        self.asked: list[AskRanges] = []
        self.reports: list[Report] = []
        self.ask_counts = [0] * len(behaviours)
        self.column_of: dict[int, int] = {}

    def run(self, events_max: int = 200_000) -> ReadCompleted | ReadFailed:
        self.do(self.reader.begin())
        self.later(100_000, Ticked(0), None)
        for _ in range(events_max):
            if self.last is not None:
                return self.last
            at, _, _, event = heapq.heappop(self.heap)
            self.now_us = max(self.now_us, at)
            self.do(self.reader.handle(self.arrive(event)))
            self.reader.check()
            if isinstance(event, Ticked):
                self.later(100_000, Ticked(0), None)
                for column, how in zip(self.reader.columns, self.behaviours, strict=True):
                    if self.now_us < how.busy_until_us:
                        self.reader.note_turn(column.number, 1 << 20, self.now_us)
        raise AssertionError(f"not done after {events_max} events at {self.now_us / 1e6:.1f} s")

    def later(self, delay_us: int, event: ReaderEvent, column: int | None) -> None:
        at = self.now_us + delay_us
        heapq.heappush(self.heap, (at, next(self.order), column, event))

    def arrive(self, event: ReaderEvent) -> ReaderEvent:
        """The event as of now; bytes land when they arrive."""
        match event:
            case RangesStored(_, request, runs):
                j, spans = self.column_of[request], spans_of(runs)
                column = self.data.columns[j]
                content = b"".join(bytes(column[start:end]) for start, end in spans)
                if self.behaviours[j].kind == "stale":
                    content = bytes(byte ^ 0x5A for byte in content)
                crc = crc32(content)
                if self.behaviours[j].wire_errors:
                    self.behaviours[j].wire_errors -= 1
                    content = bytes([content[0] ^ 1]) + content[1:]
                if not self.store(j, runs, content, crc):
                    return RangesBroken(self.now_us, request, runs)
                return RangesStored(self.now_us, request, runs)
            case ManifestRead(_, request):
                other = self.behaviours[self.column_of[request]].kind == "other"
                document = self.data.manifest[:-1] + b"!" if other else self.data.manifest
                try:
                    self.assembly.take_manifest(document)
                except Corrupt as error:
                    return ManifestWrong(self.now_us, request, str(error))
                return ManifestRead(self.now_us, request)
            case Ticked():
                return Ticked(self.now_us)
            case AskAnswered(_, request):
                return AskAnswered(self.now_us, request)
            case RangeErased(_, request, start, end, reason):
                return RangeErased(self.now_us, request, start, end, reason)
            case AskRefused(_, request, code, message):
                return AskRefused(self.now_us, request, code, message)
            case ColumnLost(_, column, reason):
                return ColumnLost(self.now_us, column, reason)
            case _:
                return event

    def do(self, actions: list[ReaderAction]) -> None:
        for action in actions:
            match action:
                case Report():
                    self.reports.append(action)
                case AskRanges(request, column, _):
                    self.asked.append(action)
                    self.column_of[request] = column
                    self.answer_ranges(action, self.behaviours[column])
                case AskManifest(request, column):
                    self.column_of[request] = column
                    self.answer_manifest(request, column)
                case CutColumn(column, reason):
                    self.cut.append((column, reason))
                    # Nothing that is under way arrives any more.
                    self.heap = [entry for entry in self.heap if entry[2] != column]
                    heapq.heapify(self.heap)
                case FinishStripe(stripe):
                    wrong = self.assembly.finish(action)
                    self.later(10, StripeFinished(self.now_us, stripe, wrong), None)
                case ReadCompleted() | ReadFailed():
                    assert self.last is None
                    self.last = action
                case _:
                    continue

    def _no_answer(self, request: int, column: int, how: Behaviour) -> bool:
        self.ask_counts[column] += 1
        if how.silent_after is not None and self.ask_counts[column] > how.silent_after:
            return True
        if how.back_at_us is not None and self.now_us >= how.back_at_us:
            return False
        match how.kind:
            case "silent":
                return True
            case "dead":
                self.later(200, ColumnLost(0, self.reader.columns[column].number, "cut"), column)
                return True
            case "not_found" | "busy":
                self.later(200, AskRefused(0, request, how.kind, how.kind), column)
                return True
            case _:
                return False

    def answer_ranges(self, ask: AskRanges, how: Behaviour) -> None:
        if self._no_answer(ask.request, ask.column, how):
            return
        delay = 0
        together: list[tuple[int, int]] = []
        for start, end, bad in self.answers(ask, how):
            joins = not bad and len(together) < 20 and self.random.random() < self.sociable
            if together and not joins:
                delay = self.bring(ask, how, delay, together)
            if bad:
                delay += how.delay_us * self.random.randint(1, 3)
                self.later(delay, RangeErased(0, ask.request, start, end, "checksum"), ask.column)
            else:
                together.append((start, end))
        if together:
            delay = self.bring(ask, how, delay, together)
        self.later(delay + 1, AskAnswered(0, ask.request), ask.column)

    def answers(self, ask: AskRanges, how: Behaviour) -> Iterator[tuple[int, int, bool]]:
        """What is wanted, and whether it is bad."""
        for at, last in spans_of(ask.runs):
            while at < last:
                bad = at // BLOCK in how.damaged
                end = min(last, (at // BLOCK + 1) * BLOCK)
                while end < last and (end // BLOCK in how.damaged) == bad:
                    end = min(last, end + BLOCK)
                yield at, end, bad
                at = end

    def bring(
        self, ask: AskRanges, how: Behaviour, delay: int, together: list[tuple[int, int]]
    ) -> int:
        """They come in one frame."""
        delay += how.delay_us * self.random.randint(1, 3)
        runs = combs_of(np.array(together, np.int64))
        self.later(delay, RangesStored(0, ask.request, runs), ask.column)
        together.clear()
        return delay

    def store(self, column: int, runs: RunSet, content: bytes, crc: int) -> bool:
        came, view = crc32(content), memoryview(bytearray(content))
        if len(runs) > 1 or not is_plain(runs):
            return self.assembly.store_apart(column, runs, view, came, crc)
        self.assembly.land(column, runs[0][0], len(content))[:] = view
        return self.assembly.store(column, runs[0][0], len(content), came, crc)

    def answer_manifest(self, request: int, column: int) -> None:
        how = self.behaviours[column]
        if not self._no_answer(request, column, how):
            self.later(how.delay_us, ManifestRead(0, request), column)

    # ----------------------------------------------------------------------- the oracle

    def right(self) -> bool:
        """All wanted bytes are what was written."""
        payload = np.frombuffer(self.data.payload, np.uint8)
        return all(
            np.array_equal(self.memory[start:end], payload[start:end]) for start, end in self.spans
        )

    def readable(self, helpful: list[bool]) -> bool:
        """Every byte of every stripe under a wanted one is good in k of the helpful columns."""
        layout = self.data.layout
        stripes = {c.stripe for start, end in self.spans for c in layout.cells(start, end)}
        for stripe in stripes:
            begin = layout.fragment_offset(stripe)
            for at in range(begin, begin + layout.cell_bytes_of(stripe), BLOCK):
                good = sum(
                    helps and at // BLOCK not in how.damaged
                    for helps, how in zip(helpful, self.behaviours, strict=True)
                )
                if good < layout.code.k:
                    return False
        return True
