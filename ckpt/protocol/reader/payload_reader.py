"""Reads wanted bytes of one payload from its columns, whatever some of their targets do.

    stripe   PLANNED --all needed bytes here, manifest here--> FINISHING --checked--> done
                ^------------ a cell is wrong, a column or a block was lost ---+

Data columns are asked first and nothing is decoded. Parity replaces exactly what a column cannot
give: one that is absent, away, refusing, silent or slow in all its stripes, one with damaged blocks
in theirs.
Whatever is received is compared with a checksum made for it, whole cells with the manifest, decoded
cells always. Too few good columns for some place: `lost` when that is proved by what the targets
themselves say, else columns that are away are tried again until the timeout, then `unavailable`.

Invariants (`check`): bytes asked of a column stay within its window (or one cell); no byte is asked
twice at a time of one column; nothing is asked of a column that is not reachable; a stripe is
finished only when no byte of it is under way any more, so that nothing lands in memory that is
decoded or reused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from ckpt.base.ids import ColumnNumber
from ckpt.format.combs import shifted
from ckpt.protocol.events import Report, Ticked
from ckpt.protocol.reader.columns import (
    STRIKES_MAX,
    WRONG_CELLS_MAX,
    Effort,
    OpenQuestion,
    SourceColumn,
    find_ask,
    laggard,
    new_column,
)
from ckpt.protocol.reader.events import (
    AskAnswered,
    AskManifest,
    AskRanges,
    AskRefused,
    CancelAsk,
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
    ReadStatistics,
    ReadWish,
    Standing,
    StripeFinished,
)
from ckpt.protocol.reader.judgement import check_read, lost_place, statistics_of
from ckpt.protocol.reader.scratch import Scratch
from ckpt.protocol.reader.stripes import Stripe, by_stripe, plan_sparing, wanted_stripes
from ckpt.protocol.runs.run_sets import Owed, RunSet, minus, split, total, union

TICK_GAP_US_MAX = 500_000  # Shells tick every 100 ms; more is our own absence, not the targets'.
RANGES_MAX = 512  # Of one ask; ckpt.protocol.runs.run_sets.split says how a comb counts.


class PayloadReader:
    """I decide what to ask of which column. I expect every action to be performed and every answer
    fed back with its request's number. Afterwards I say ReadCompleted or ReadFailed, once.
    """

    def __init__(
        self,
        wish: ReadWish,
        requests: Iterator[int],
        now_us: int,
        is_direct: Callable[[int, int], bool] = lambda _stripe, _column: True,
        *,
        manifest_here: bool = False,
    ) -> None:
        """`is_direct(stripe, column)`: the cell needs no scratch memory, it has its place in the
        destination. `manifest_here`: an earlier read brought it."""
        layout = wish.layout
        assert len(wish.standings) == layout.code.n
        self.wish, self.done = wish, False
        self.columns = tuple(new_column(ColumnNumber(j), at) for j, at in enumerate(wish.standings))
        self._requests = requests
        self._now_us = self._tick_us = now_us
        self._own_us = 0
        self._out: list[ReaderAction] = []
        self._coming = wanted_stripes(layout, wish.spans)
        self._all_begun = False
        #: Begun and not done, ascending by number.
        self._stripes: dict[int, Stripe] = {}
        #: Numbers of those for which there are too few columns.
        self._stuck: set[int] = set()
        #: Numbers of complete stripes; those stay that wait for the manifest.
        self._ready: deque[int] = deque()
        self._manifest_here, self._manifest_asked = manifest_here, False
        self._scratch = Scratch(wish.limits.scratch_bytes, is_direct)
        self._stuck_since_us: int | None = None  # Stripes, or the manifest, lack columns.
        self._effort, self._spared = Effort(), wish.spared
        self._rebuilt_bytes = 0
        self.done_bytes = 0  # Wanted bytes that were handed out.

    # ----------------------------------------------------------------------- outside

    def begin(self) -> list[ReaderAction]:
        """The first actions."""
        return self._advance()

    def handle(self, event: ReaderEvent) -> list[ReaderAction]:
        """What to do about it. Events of void questions are ignored, all of them when done."""
        if self.done:
            return []
        self._now_us = max(self._now_us, event.now_us)
        match event:
            case RangesStored(_, request, runs):
                self._stored(request, runs)
            case RangesBroken(_, request, runs):
                self._broken(request, runs)
            case RangeErased(_, request, start, end, reason):
                self._erased(request, start, end, reason)
            case AskAnswered(_, request):
                self._answered(request)
            case AskRefused(_, request, code, message):
                self._refused(request, code, message)
            case ColumnLost(_, column, reason):
                self._lost(self.columns[column], reason)
            case ManifestRead(_, request):
                self._manifest_read(request)
            case ManifestWrong(_, request, reason):
                self._manifest_wrong(request, reason)
            case StripeFinished(_, number, wrong):
                self._finished(number, wrong)
            case Ticked():
                self._ticked()
        return self._advance()

    def note_turn(self, column: ColumnNumber, size: int, now_us: int) -> None:
        """The column's target gave this process bytes of another payload: it serves both."""
        self.columns[column].note_turn(now_us, size)

    def note_own_time(self, own_us: int) -> None:
        """So long since the last tick this process worked or starved: no target is charged that."""
        self._own_us += own_us

    def statistics(self) -> ReadStatistics:
        """As of now."""
        return statistics_of(self.wish, self.columns, self.done_bytes, self._rebuilt_bytes)

    def check(self) -> None:
        """Assert the invariants that the module states."""
        window_bytes = self.wish.limits.window_bytes + self.wish.layout.cell_bytes
        check_read(self.columns, self._stripes.values(), window_bytes)

    # ----------------------------------------------------------------------- bytes

    def _stored(self, request: int, runs: RunSet) -> None:
        found = self._take(request, runs)
        if found is None:
            return
        column, stripes, size = found
        j = column.number
        column.received_bytes += size
        column.served_bytes += size
        column.note_progress(self._now_us)
        column.retry_count = 0
        for stripe, parts in stripes:
            stripe.have[j] = union(stripe.have[j], parts)
            self._look(stripe)

    def _broken(self, request: int, runs: RunSet) -> None:
        found = self._take(request, runs)
        if found is None:
            return
        column, stripes, _ = found
        column.note_progress(self._now_us)
        column.strike_count += 1
        if column.strike_count > STRIKES_MAX:
            self._drop(column, Standing.AWAY, "its bytes come damaged", cut=True)
            return
        for stripe, parts in stripes:
            column.push(stripe.number, parts)
            self._look(stripe)

    def _erased(self, request: int, start: int, end: int, reason: str) -> None:
        found = self._take(request, ((start, end),))
        if found is None:
            return
        column, stripes, _ = found
        j = column.number
        column.note_progress(self._now_us)
        if not column.damaged_bytes:  # Once: a dead disk would have a word for each block.
            told = "damaged bytes are mended from parity"
            self._report(told, column=int(j), start=start, end=end, why=reason)
        column.damaged_bytes += end - start
        for stripe, parts in stripes:
            stripe.bad[j] = union(stripe.bad[j], parts)
            self._plan(stripe)

    def _take(
        self, request: int, runs: RunSet
    ) -> tuple[SourceColumn, list[tuple[Stripe, RunSet]], int] | None:
        """Cross the bytes out of their ask: the column, the parts of the cells of stripes that
        are not done, how many bytes; None when nobody asked."""
        ask = find_ask(self.columns, request)
        if ask is None or ask.owed is None:
            return None
        column, owed = ask.column, ask.owed
        if not owed.take(runs):
            self._drop(column, Standing.AWAY, "it sends what nobody asked for", cut=True)
            return None
        size = total(runs)
        column.outstanding_bytes -= size
        found = []
        for number, parts in by_stripe(self.wish.layout, runs):
            stripe = self._stripes.get(number)
            if stripe is not None:
                stripe.asked[column.number] = minus(stripe.asked[column.number], parts)
                found.append((stripe, parts))
        return column, found, size

    def _answered(self, request: int) -> None:
        ask = find_ask(self.columns, request)
        if ask is None or ask.owed is None:
            return
        if ask.owed:
            self._drop(ask.column, Standing.AWAY, "it leaves out what was asked", cut=True)
            return
        self._close_ask(request, ask)

    def _close_ask(self, request: int, ask: OpenQuestion) -> None:
        ask.column.note_progress(self._now_us)
        del ask.column.asks[request]

    # ----------------------------------------------------------------------- the manifest

    def _manifest_read(self, request: int) -> None:
        ask = find_ask(self.columns, request)
        if ask is None or ask.owed is not None:
            return
        self._close_ask(request, ask)
        self._manifest_asked, self._manifest_here = False, True
        self._stuck_since_us = None

    def _manifest_wrong(self, request: int, reason: str) -> None:
        ask = find_ask(self.columns, request)
        if ask is not None:
            self._drop(ask.column, Standing.ABSENT, f"its manifest is another: {reason}", cut=True)

    def _want_manifest(self) -> None:
        if self._manifest_here or self._manifest_asked:
            return
        usable = [column for column in self.columns if column.usable]
        if usable:
            column = min(usable, key=lambda c: (not c.asks, c.retry_count, c.number))
            request = next(self._requests)
            column.begin_ask(request, OpenQuestion(column, None), 0, self._now_us)
            self._manifest_asked = True
            self._out.append(AskManifest(request, column.number))

    # ----------------------------------------------------------------------- columns

    def _refused(self, request: int, code: str, message: str) -> None:
        ask = find_ask(self.columns, request)
        if ask is None:
            return
        # Only these say that the bytes are gone; the others may be better tomorrow.
        proved = code in ("not_found", "corrupt")
        standing = Standing.ABSENT if proved else Standing.AWAY
        # Bytes of its other asks may be landing where parity is decoded to next: no more of them.
        self._drop(ask.column, standing, message, cut=len(ask.column.asks) > 1)

    def _lost(self, column: SourceColumn, reason: str) -> None:
        if column.usable:
            self._drop(column, Standing.AWAY, reason, cut=False)

    def _drop(self, column: SourceColumn, standing: Standing, reason: str, *, cut: bool) -> None:
        """The column gives nothing from now on; plan again all that hoped for it."""
        assert column.usable
        if any(ask.owed is None for ask in column.asks.values()):
            self._manifest_asked = False
        column.leave(standing, reason, self._now_us)
        if cut:
            self._out.append(CutColumn(column.number, reason))
        self._report("a column is given up", column=int(column.number), why=reason)
        for stripe in list(self._stripes.values()):
            stripe.asked[column.number] = ()
            needs = minus(stripe.needed[column.number], stripe.have[column.number])
            if not stripe.finishing and (needs or stripe.stuck is not None):
                self._plan(stripe)
            self._look(stripe)

    def _ticked(self) -> None:
        gap_us = self._now_us - self._tick_us
        self._tick_us = self._now_us
        own_us = gap_us if gap_us > TICK_GAP_US_MAX else self._own_us
        self._own_us = 0
        for column in self.columns:
            column.charge(self._now_us)
            column.excuse(own_us, self._now_us)
        k, effort = self.wish.layout.code.k, self._effort.factor
        late = laggard(self.columns, self.wish.limits, self._now_us, k, effort)
        if late is not None:
            self._drop(late[0], Standing.AWAY, late[1], cut=True)

    # ----------------------------------------------------------------------- stripes

    def _plan(self, stripe: Stripe) -> None:
        """Decide again where the stripe's bytes come from, and queue what is not asked yet."""
        usable = [column.usable for column in self.columns]
        load = [column.outstanding_bytes + len(column.queue) for column in self.columns]
        self._spared = plan_sparing(stripe, self.wish.layout.code, usable, self._spared, load)
        if stripe.stuck is not None:
            self._stuck.add(stripe.number)
            return
        self._stuck.discard(stripe.number)
        for column in self.columns:
            j = column.number
            rest = minus(minus(stripe.needed[j], stripe.have[j]), stripe.asked[j])
            if rest:
                column.push(stripe.number, rest)
        self._look(stripe)

    def _look(self, stripe: Stripe) -> None:
        """Is it complete now?"""
        if stripe.complete and not stripe.finishing:
            stripe.finishing = True
            self._ready.append(stripe.number)

    def _finished(self, number: int, wrong: tuple[int, ...]) -> None:
        stripe = self._stripes.get(number)
        if stripe is None or not stripe.finishing:
            return
        if not wrong:
            self.done_bytes += stripe.wanted_bytes
            self._rebuilt_bytes += sum((p.end - p.start) * len(p.wanted) for p in stripe.parts)
            self._scratch.give_back(stripe)
            del self._stripes[number]
            return
        stripe.finishing = False
        liars = [j for j in wrong if j not in stripe.rebuilt]
        if not liars and stripe.whole_sources:
            self._fail("lost", f"stripe {number} decodes to wrong bytes", damaged=True)
            return
        # What was decoded is wrong and no source stands out: read them whole, then each is checked.
        stripe.whole_sources = stripe.whole_sources or not liars
        for j in liars or wrong:
            stripe.forget(j)
            self.columns[j].damaged_bytes += stripe.cell_bytes
            self.columns[j].wrong_count += 1
        self._report("cells are not what the manifest says", stripe=number, columns=str(wrong))
        self._plan(stripe)
        for j in liars:
            column = self.columns[j]
            if column.usable and column.wrong_count >= WRONG_CELLS_MAX:
                reason = "its cells are not what the manifest says"
                self._drop(column, Standing.ABSENT, reason, cut=True)

    # ----------------------------------------------------------------------- going on

    def _advance(self) -> list[ReaderAction]:
        """Begin stripes, finish them, ask for more; what every event ends with."""
        if not self.done:
            self._begin_stripes()
            self._finish_ready()
            self._judge_stuck()
        if not self.done:
            for column in self.columns:
                self._pump(column)
            if self._all_begun and not self._stripes:
                self._end(ReadCompleted())
        out, self._out = self._out, []
        return out

    def _begin_stripes(self) -> None:
        while not self._all_begun and len(self._stripes) < self.wish.limits.stripes_max:
            coming = next(self._coming, None)
            if coming is None:
                self._all_begun = True
                return
            number, wanted = coming
            stripe = self._stripes[number] = Stripe.of(self.wish.layout, number, wanted)
            self._effort.add(stripe.wanted_bytes, len(wanted) * stripe.cell_bytes)
            self._plan(stripe)
            if any(stripe.whole == spans for spans in stripe.needed) or stripe.parts:
                self._want_manifest()

    def _finish_ready(self) -> None:
        for _ in range(len(self._ready)):
            stripe = self._stripes[self._ready.popleft()]
            assert stripe.complete
            whole = stripe.received_whole()
            if self._manifest_here or not (stripe.parts or whole):
                checked = tuple(j for j in whole if j not in stripe.rebuilt)
                self._out.append(FinishStripe(stripe.number, stripe.parts, stripe.rebuilt, checked))
            else:
                self._want_manifest()
                self._ready.append(stripe.number)

    def _judge_stuck(self) -> None:
        """Too few columns for some place: proved lost, or wait for those that are away."""
        stuck = [self._stripes[number] for number in sorted(self._stuck)]
        manifest_stuck = bool(self._ready) and not (self._manifest_here or self._manifest_asked)
        if not stuck and not manifest_stuck:
            if all(c.retry_count == 0 for c in self.columns if c.usable):
                self._stuck_since_us = None
            return
        for stripe in stuck:
            lost = lost_place(self.columns, stripe, self.wish.layout.code.k)
            if lost:
                self._fail("lost", lost, damaged=True)
                return
        if manifest_stuck and all(c.standing is Standing.ABSENT for c in self.columns):
            self._fail("lost", "no column has the manifest that the index names", damaged=True)
            return
        self._wait_or_retry(stuck)

    def _wait_or_retry(self, stuck: list[Stripe]) -> None:
        if self._stuck_since_us is None:
            self._stuck_since_us = self._now_us
        away = [c for c in self.columns if c.standing is Standing.AWAY]
        waited_us = self._now_us - self._stuck_since_us
        if waited_us >= self.wish.limits.timeout_us or not any(c.has_address for c in away):
            named = "; ".join(f"column {c.number}: {c.reason}" for c in away)
            text = f"{self.wish.payload} is out of reach: {named}"
            self._fail("unavailable", text, damaged=False)
            return
        back = [c for c in away if c.has_address and c.retry_at_us <= self._now_us]
        for column in back:
            column.standing, column.reason = Standing.REACHABLE, ""
        if back:
            for stripe in stuck:
                self._plan(stripe)
            if self._ready:
                self._want_manifest()

    def _pump(self, column: SourceColumn) -> None:
        """Ask the column for as much as its window holds."""
        limits = self.wish.limits
        while column.usable and column.queue:
            room = limits.window_bytes - limits.ask_bytes
            if column.outstanding_bytes > max(0, room):
                return
            parts = self._next_parts(column)
            if not parts:
                return
            size = total(parts)
            request = next(self._requests)
            column.begin_ask(request, OpenQuestion(column, Owed(parts)), size, self._now_us)
            self._out.append(AskRanges(request, column.number, parts))

    def _next_parts(self, column: SourceColumn) -> RunSet:
        """Fragment bytes for one ask: the oldest stripes first."""
        parts: dict[int, RunSet] = {}
        size, count, j, offset = 0, 0, column.number, self.wish.layout.fragment_offset
        # Of narrow parts so many as lie in the cells of one ask of whole ones: a target's turns.
        limit = self.wish.limits.ask_bytes // self._effort.factor
        while column.queue and size < limit and count < RANGES_MAX:
            number, queued = column.queue[0]
            stripe = self._stripes.get(number)
            # Asked at every event, and mostly the answer: before what is wanted is looked at.
            if stripe is not None and not self._has_room(stripe, j):
                break
            column.pop()
            rest = () if stripe is None else stripe.rest(j, queued)
            if stripe is None or not rest:
                continue
            self._scratch.take(stripe, j)
            now, later = split(rest, limit - size, RANGES_MAX - count)
            if later:
                column.push(number, later)
            parts[number] = union(parts.get(number, ()), now)
            size += total(now)
            count += len(now)
            stripe.asked[j] = union(stripe.asked[j], now)
        return tuple([run for n, now in sorted(parts.items()) for run in shifted(now, offset(n))])

    def _has_room(self, stripe: Stripe, j: int) -> bool:
        return stripe.number == next(iter(self._stripes)) or self._scratch.has_room(stripe, j)

    def _fail(self, code: str, message: str, *, damaged: bool) -> None:
        self._end(ReadFailed(code, message, damaged))

    def _end(self, last: ReaderAction) -> None:
        for column in self.columns:
            self._out += [CancelAsk(request, column.number) for request in column.asks]
            column.asks.clear()
            column.outstanding_bytes = 0
        self.done = True
        self._out.append(last)

    def _report(self, text: str, **fields: str | int) -> None:
        self._out.append(
            Report("warning", text, (("payload", str(self.wish.payload)), *fields.items()))
        )
