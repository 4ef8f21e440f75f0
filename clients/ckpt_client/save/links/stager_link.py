"""The trainer's end of its stager: start it, stage into its memory, hear what became of each save.

No thread: whoever waits reads the socket, one at a time, and notes what arrives for all. Packets
are few and small, so nothing is lost while nobody reads.
A Ctrl-C may strike between any two steps: see `StagerLine` and `AskedSave`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt.aio.descriptors import closed_outside
from ckpt.base.errors import Aborted, CkptError, Refused, Unavailable, error_from_wire
from ckpt.base.units import US_PER_S
from ckpt_client.local.detach import is_stopped, start_detached
from ckpt_client.save.copying import NUMPY, Copier, HalfWriter
from ckpt_client.save.handle import Save
from ckpt_client.save.links.asked import AskedSave, stager_ended
from ckpt_client.save.links.mapped_halves import MappedHalves, SentHalf
from ckpt_client.save.packing import PackingPlan
from ckpt_client.stager import wire
from ckpt_client.stager.line import Received, StagerLine, descriptor_of, line_pair, no_descriptor

START_TIMEOUT_S = 60.0
LINE_TIMEOUT_S = 2.0
"""A stager that does not answer within this is not kept for another store, nor taken over."""
PATIENCE_S = 10.0
"""A longer wait for a stager is logged, with its reason: for a stopped one it would never end."""
LOOK_S = 1.0
"""How often who leaves the reading to another thread looks whether that one still does."""
_CLOSED: Final = wire.Prepared(
    Aborted.code, "the store was closed before its staging memory was prepared"
)
_log = logging.getLogger("ckpt.save")
#: Every link of this process. A forked child closes its copies of their sockets.
_links: weakref.WeakSet[StagerLink] = weakref.WeakSet()


class StagerLink:
    """I speak with one stager.

    I am thread safe; saves of one rank are staged one after the other.
    """

    def __init__(self, attach: wire.Attach, log: Path) -> None:
        """Start a stager and wait until it is up. Raises Unavailable."""
        begun = time.monotonic()
        ours, theirs = line_pair()
        with theirs:
            try:
                number = theirs.fileno()
                start_detached(attach.command(number), log=log, pass_fds=(number,))
            except BaseException:
                ours.close()
                raise
        self._line = StagerLine(ours)
        self.attach = attach
        self._log = log
        self._rank = attach.rank
        #: Guards everything below. Of C, and so taken and let go in one step.
        self._lock = threading.RLock()
        #: Notified when a packet came, and when a reader has stopped.
        self._news = threading.Condition(self._lock)
        #: The thread that reads the socket, or 0. Only one does; the others wait for `_news`.
        self._reader = 0
        #: Why nothing more comes: the stager ended, or this link was closed. Set once.
        self._dead: CkptError | None = None
        self._halves = MappedHalves()
        #: The half that the next save may write into before it is granted.
        self._open: int | None = None
        #: By number, as they were asked for.
        self._asked: dict[int, AskedSave] = {}
        #: Save -> the half it was granted, until `wait_half` takes it.
        self._granted: dict[int, int] = {}
        #: Save -> why it gets no half, until `wait_half` takes it.
        self._refused: dict[int, wire.SaveRefused] = {}
        #: Saves that were handed over and have not ended, by number.
        self._pending: dict[int, Save] = {}
        #: Saves that ended with an error, until `take_error` has looked whether anyone heard of it.
        self._failed: list[Save] = []
        #: Saves that committed with warnings, until `take_warned` takes them.
        self._warned: list[Save] = []
        #: Run -> how many seconds its last committed save took.
        self._durations_s: dict[str, float] = {}
        #: Held while memory is prepared; where an ask or a Prepare is sent: what an ask takes was
        #: announced at that moment.
        self._prepare_turn, self._asking_turn = threading.Lock(), threading.Lock()
        #: The answer to the last Prepare; None until it comes: what is announced may give way.
        self._prepared: wire.Prepared | None = wire.Prepared()
        self.pid = 0
        """The stager's, once it is up."""
        #: Whether the stager serves a store of this process: not while it is parked.
        self._attached = False
        #: Whether a warning said that the stager is stopped, since its last packet.
        self._stop_told = False
        _links.add(self)
        try:
            self._send(attach)
            if not self.wait_until(lambda: self._attached, START_TIMEOUT_S):
                raise Unavailable("the stager did not come up in time", hint=f"see {log}")
        except BaseException:
            self.close()
            raise
        self.started_s = time.monotonic() - begun

    @property
    def alive(self) -> bool:
        """Whether the stager was there when last heard of; checks for its end without waiting."""
        self.take_news()
        return self._dead is None

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    # ----------------------------------------------------------------------- staging

    def prepare(
        self, half_bytes: int, packing: PackingPlan | None = None, copier: Copier = NUMPY
    ) -> None:
        """Have both halves faulted in at this size, as far as the cap allows, and ready for copies
        of this plan. Saves may be staged meanwhile. Raises NoSpace, Refused, Aborted.
        """
        with self._prepare_turn:
            with self._asking_turn:
                with self._lock:
                    self._prepared = None if self._attached else _CLOSED
                if self._prepared is None:
                    self._send(wire.Prepare(half_bytes))
            self.wait_until(lambda: self._prepared is not None, None)
            with self._lock:
                answer, halves = self._prepared, self._halves.all()
            assert answer is not None
            if answer.code:
                raise error_from_wire(answer.code, answer.message)
            for half in halves:
                if packing is not None and len(half.memory) >= packing.layout.half_bytes:
                    half.make_ready(packing, copier)

    def ask_half(
        self,
        number: int,
        run: str,
        step: int,
        half_bytes: int,
        when_full: str,
        owner: object | None = None,
    ) -> HalfWriter | None:
        """Ask for memory to stage into; what was announced may be written at once, before
        `wait_half` tells which it is.

        owner: when it is gone, the memory is given back ahead of the next ask.
        """
        self.take_news()
        with self._asking_turn:
            for asked in list(self._asked.values()):
                if asked.is_lost:
                    self.give_back(asked.number, "the save was interrupted")
            with self._lock:
                self._halves.made_s.clear()
                taken, self._open = None if self._prepared is None else self._open, None
                half = self._halves.find(taken) if taken is not None else None
                if half is None or len(half.memory) < half_bytes:
                    taken = half = None
                ref = None if owner is None else weakref.ref(owner)
                self._asked[number] = AskedSave(number, run, step, ref)
            self._send(wire.AskHalf(number, run, step, half_bytes, when_full, taken))
        return half

    def wait_half(self, number: int) -> tuple[HalfWriter, float] | None:
        """The memory that was asked for, and the seconds that its first touch cost this call; None
        when the policy skips this save. Raises what refused it.
        """
        begun = time.monotonic()

        def answered() -> bool:
            return number in self._granted or number in self._refused

        if not self.wait_until(answered, PATIENCE_S):
            self._tell_wait()
            self.wait_until(answered, None)
        waited_s = time.monotonic() - begun
        with self._lock:
            refusal = self._refused.pop(number, None)
            if refusal is None:
                granted = self._granted.pop(number)
                half = self._halves.find(granted)
                assert half is not None, "a half is sent before it is granted"
                return half, min(waited_s, self._halves.made_s.get(granted, 0.0))
        if refusal.code == "skipped":
            return None
        raise error_from_wire(refusal.code, refusal.message, refusal.hint)

    def drop(self, number: int) -> None:
        """Give back the memory that was asked for: nothing was staged."""
        self._end_asked(number, wire.DropStaging(number))

    def refuse(self, number: int, run: str, step: int, why: str) -> None:
        """Refuse the step: nothing will be staged, and the ranks that saved it hear why."""
        self._end_asked(number, wire.RefuseStep(number, run, step, wire.cut_text(why)))

    def give_back(self, number: int, why: str) -> None:
        """Refuse or drop what was asked for, unless it was handed over, refused or dropped."""
        asked = self._asked.get(number)
        if asked is not None:
            self._end_asked(number, asked.giving_back(self.attach.world_size, why))

    def _end_asked(self, number: int, message: wire.FromTrainer) -> None:
        """Of several that end the same save only the first is sent."""
        asked = self._asked.get(number)
        with suppress(CkptError):
            if asked is None or not asked.sent:
                self._send(message, None if asked is None else asked.sent)
            self._asked.pop(number, None)

    def hand_over(self, save: Save, message: wire.HandOver) -> None:
        """Hand the save over to the stager; `save` hears how it ends."""
        number = message.save
        asked = self._asked[number]
        try:
            with self._lock:
                self._pending[number] = save
            self._send(message, asked.sent)
            self._asked.pop(number, None)
        except BaseException as error:
            if not asked.sent:
                self._pending.pop(number, None)
            if isinstance(error, CkptError):
                save.mark_told()
            raise

    def tell(self, message: wire.FromTrainer) -> None:
        """Of a save that is asked for, what nobody answers."""
        self._send(message)

    def note_failed(self, save: Save, error: CkptError) -> None:
        """Note that a save which was staged beside the training never came to its hand-over."""
        with self._lock:
            save.fail(error)
            self._failed.append(save)
            self._news.notify_all()

    def take_error(self) -> CkptError | None:
        """The oldest error that was not raised yet."""
        self.take_news()
        with self._lock:
            while self._failed:
                error = self._failed.pop(0).take_error()
                if error is not None:
                    return error
        return None

    def take_warned(self) -> list[Save]:
        """Saves that committed with warnings, since the last call; call `take_error` first."""
        with self._lock:
            warned, self._warned = self._warned, []
        return warned

    def last_duration_s(self, run: str) -> float | None:
        """Seconds from the call of the run's last committed save to its commit; None before one."""
        self.take_news()
        with self._lock:
            return self._durations_s.get(run)

    def close(self) -> None:
        """Leave the stager alone; it finishes what it has and goes when idle."""
        self.give_up()
        with self._lock:
            self._line.close()
            self._halves.clear()

    def give_up(self) -> None:
        """Tell all who wait for the stager that the store was closed."""
        with self._lock:
            self._end(Aborted("the store was closed before the outcome was known"))
            if self._line.is_ours:
                self._line.shut()

    def park(self) -> bool:
        """`close`, but keep the connection for another store. False when it is closed after all:
        the stager does not answer, or saves are under way, whose halves another store would have to
        wait for.
        """
        parked = False
        with suppress(CkptError):
            if not self._pending:
                self._send(wire.Detach())
                parked = self.wait_until(lambda: not self._attached, LINE_TIMEOUT_S)
        if not parked:
            self.close()
            return False
        with self._lock:
            self._failed.clear()
            self._warned.clear()
            self._asked.clear()
        return True

    def attach_again(self) -> bool:
        """Give this stager to another store. False, and closed, when it has gone or does not
        answer.
        """
        attached = False
        with suppress(CkptError):
            self._send(self.attach)
            attached = self.wait_until(lambda: self._attached, LINE_TIMEOUT_S)
        if not attached:
            self.close()
        return attached

    def abandon(self) -> None:
        """In a forked child: the socket is the parent's, and no other thread is there."""
        self._line.abandon()
        self._halves.abandon()
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._dead = Refused(
            "this save was made by another process, this is a forked child of it",
            hint="wait for it there, and open a store in the child",
        )

    # ----------------------------------------------------------------------- listening

    def take_news(self) -> None:
        """Read what is there already; the stager's end counts as news."""
        self.wait_until(lambda: self._dead is not None, 0.0)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Read until `ready()` (True), the time is over (False), or the stager is gone (raises)."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        quiet_since_s, heard, me = time.monotonic(), True, threading.get_ident()
        while True:
            now_s = time.monotonic()
            if heard:
                quiet_since_s = now_s
            elif now_s - quiet_since_s >= PATIENCE_S:
                self._tell_stop()
                quiet_since_s = now_s
            left_s = PATIENCE_S if deadline_s is None else max(0.0, deadline_s - now_s)
            with self._lock:
                self._take_in()
                if ready():
                    return True
                if self._dead is not None:
                    raise self._dead
                if not (heard or left_s):
                    return False
                # Who finds himself as the reader was interrupted there.
                reads = self._reader in (0, me)
                if reads:
                    self._reader = me
                else:
                    heard = self._news.wait(min(left_s, PATIENCE_S, LOOK_S))
            if reads:
                heard = self._read(min(left_s, PATIENCE_S))
            elif not heard:  # The reader may have been interrupted, and be elsewhere.
                heard = self._line.receive(0.0)

    def _read(self, timeout_s: float) -> bool:
        """As the one reader; False when nothing came in time."""
        try:
            return self._line.receive(timeout_s)
        finally:
            with self._lock:
                self._reader = 0
                self._news.notify_all()

    def _tell_wait(self) -> None:
        """A save stands still, mostly for memory that is taken."""
        self._tell_stop()
        under_way = ", ".join(f"{save.run}@{save.step}" for save in self._pending.values())
        if under_way and not self._stop_told:
            _log.warning(
                "rank %s waits for staging memory: %s not committed yet; see ckpt status and %s",
                self._rank,
                under_way,
                self._log,
            )

    def _tell_stop(self) -> None:
        """Nothing was heard for a while."""
        if is_stopped(self.pid) and not self._stop_told:
            self._stop_told = True
            _log.warning(
                "the stager of rank %s is stopped: kill -CONT %s lets it go on, kill -KILL %s ends "
                "it and the saves that it has not sent",
                self._rank,
                self.pid,
                self.pid,
            )

    def _take_in(self) -> None:
        """Note what has come; under the lock. What an interrupt leaves is noted again."""
        while self._line.inbox:
            self._stop_told = False
            self._note(self._line.inbox[0])
            self._line.inbox.popleft()

    def _note(self, received: Received) -> None:
        packet = received[0]
        if not packet and not self._line.is_ours:
            self._end(closed_outside())
            return
        if not packet:
            self._end(stager_ended(self._rank, self.pid, self._log))
            return
        match wire.decode_from_stager(packet):
            case wire.Attached(pid):
                self.pid, self._attached = pid, True
            case wire.Detached():
                self._attached, self._open = False, None
                self._prepared = _CLOSED
                self._halves.clear()
            case wire.HalfReady(half, half_bytes, fault_in_us):
                descriptor = descriptor_of(received)
                if descriptor is None:
                    self._end(no_descriptor())
                    return
                if self._open == half:
                    self._open = None
                sent = SentHalf(received, descriptor, half_bytes)
                self._halves.take(half, sent, fault_in_us / US_PER_S)
            case wire.HalfOpen(half):
                # One that met our ask on the way is old: that ask may have been given this half.
                if all(asked.answered for asked in self._asked.values()):
                    self._open = half
            case wire.Prepared() as answer:
                self._prepared = answer
            case wire.HalfGranted(number, half):
                if number in self._asked:
                    self._granted[number] = half
                    self._asked[number].answered = True
            case wire.SaveRefused() as refusal:
                if refusal.save in self._asked:
                    self._refused[refusal.save] = refusal
                    self._asked[refusal.save].answered = True
            case wire.Outcome() as outcome:
                self._noted_outcome(outcome)

    def _noted_outcome(self, outcome: wire.Outcome) -> None:
        save = self._pending.get(outcome.save)
        if save is not None:
            save.settle(outcome)
            if outcome.info is None:
                self._failed.append(save)
            else:
                took_us = outcome.info.stall_us + outcome.info.commit_us
                self._durations_s[save.run] = took_us / US_PER_S
            if outcome.info is not None and outcome.info.warnings:
                self._warned.append(save)
        with suppress(OSError):
            self._line.send(wire.HeardOutcome(outcome.save), [])
        self._pending.pop(outcome.save, None)

    def _end(self, error: CkptError) -> None:
        """The stager is gone, or we are: nothing more will be heard of any save."""
        if self._dead is None:
            for save in self._pending.values():
                text = f"{save.run}@{save.step}: {error.message}"
                save.fail(type(error)(text, hint=error.hint))
                self._failed.append(save)
            self._pending.clear()
            self._dead = error

    def _send(self, message: wire.FromTrainer, sent: list[int] | None = None) -> None:
        try:
            self._line.send(message, [] if sent is None else sent)
        except OSError:
            with suppress(CkptError):  # Hear its end, and with it what becomes of pending saves.
                self.wait_until(lambda: self._dead is not None, 1.0)
            raise self._dead or Unavailable(
                f"the stager of rank {self._rank} does not listen"
            ) from None


def _close_in_child() -> None:
    """A forked child must not keep the parent's stagers believing that their trainer lives."""
    for link in list(_links):
        link.abandon()


os.register_at_fork(after_in_child=_close_in_child)
