"""`store.preemption`: whether a step is the last one, because some rank's process is to end.

    signal handler ----word----> +--------------+ <--asks, waits in a hold-- training
    coordinator's session -----> | guard thread |
                                 | RankGuard    | --GuardStanding--> coordinator
                                 +--------------+

The thread sleeps in its queue. What the training asks is a look at RankGuard under a lock that
nobody else wants while nobody is preempted.
"""

from __future__ import annotations

import logging
import math
import operator
import os
import queue
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

from ckpt.aio.clock import now_us
from ckpt.aio.threads import start_thread
from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import LaunchNumber, RunName, Step, check_run_name
from ckpt.base.units import US_PER_S, check_seconds
from ckpt.format.messages import Message
from ckpt.format.messages.preempting import GuardStanding, HoldSteps, NoCommonStep, StopAt
from ckpt.protocol.events import Report, Ticked
from ckpt.protocol.rank_guard import (
    GuardAction,
    GuardAnswer,
    GuardEvent,
    GuardHeard,
    GuardJoined,
    ProcessSignalled,
    RankGuard,
    TellStanding,
)
from ckpt_client.environment import RankPlace
from ckpt_client.preemption.signals import SignalWatch

if TYPE_CHECKING:
    from ckpt_client.control import Control, Seat
    from ckpt_client.save.links.stagers import Stagers

GUARDS: Final = "guards"
"""Guards join a launch of their own, of a run below the training's: a script may save as other
ranks than it trains with, rank 0 for all, say.
"""
HOLD_S_MAX: Final = 15.0
LOOK_S: Final = 1.0
"""How often the guard's thread checks what has changed."""
DURATION_TIMEOUT_S: Final = 2.0
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_log = logging.getLogger("ckpt.preemption")


def watch_for_preemption(
    control: Control,
    stagers: Stagers,
    run: RunName,
    place: RankPlace,
    *,
    grace_s: float,
    signals: Sequence[str],
) -> PreemptionGuard:
    """This rank's guard, which listens. Raises as `Store.preemption`."""
    seconds = check_seconds("grace_s", grace_s)
    if not seconds or math.isinf(grace_s):
        raise Refused(f"grace_s={grace_s!r} is no time", hint="seconds from the signal to the kill")
    seat = (_meeting_of(run), place.rank, place.world_size)
    launch = control.join(*seat)
    if place.world_size > 1 and not launch.guards:
        _log.warning(
            "%s: the coordinator is of an earlier version: signals do not reach other ranks", run
        )
    guard = PreemptionGuard(control, stagers, run, seat, grace_s=seconds, signals=signals)
    if not control.listen(seat, guard):
        guard.close()
        raise Refused(
            f"run {run!r} has a preemption guard in this store already",
            hint="use that one, or close it first",
        )
    try:
        guard.begin(launch.launch if launch.guards else None)
    except BaseException:
        guard.close()
        raise
    return guard


def _meeting_of(run: RunName) -> RunName:
    try:
        return check_run_name(f"{run}/{GUARDS}")
    except Refused as error:
        text = f"run {run!r}: its guards meet as {run}/{GUARDS}: {error.message}"
        raise Refused(text, hint="a shorter name of the run") from None


class PreemptionGuard:
    """Says which step is the last, the same for all ranks. `Store.preemption` returns it.

    Close it, or use it in a `with`: afterwards signals do what they did before. It ends with its
    store.
    """

    def __init__(
        self,
        control: Control,
        stagers: Stagers,
        run: RunName,
        seat: Seat,
        *,
        grace_s: float,
        signals: Sequence[str],
    ) -> None:
        """seat: where the guards of the run's ranks meet."""
        self.grace_s = grace_s
        self._control = control
        self._stagers = stagers
        self._run = run
        self._meeting, self._rank, world_size = seat
        self._pid = os.getpid()
        #: What the thread handles next; None ends it. Signal handlers put words here.
        self._events: queue.SimpleQueue[GuardEvent | None] = queue.SimpleQueue()
        hold_us = int(min(HOLD_S_MAX, grace_s / 2) * US_PER_S)
        #: Asked by the training, changed by the thread. Under `_lock`.
        self._machine = RankGuard(self._meeting, self._rank, world_size, hold_us)
        self._lock = threading.RLock()  # A signal's handler may ask inside of a question.
        #: Notified when the thread has handled an event.
        self._news = threading.Condition(self._lock)
        #: When this rank heard of the preemption, by `time.monotonic`.
        self._since_s: float | None = None
        self._expected_s: float | None = None
        #: Whether a step was found to be the last one.
        self._ending = False
        self._closed = False
        self._watch = SignalWatch(signals, self._signalled)
        self._thread = threading.Thread(target=self._serve, name="ckpt-preemption", daemon=True)

    def begin(self, launch: LaunchNumber | None) -> None:
        """This rank has joined its launch; None where the coordinator knows nothing of guards.
        Raises Scarce where the system has no thread left.
        """
        if launch is not None:
            self.joined(launch)
        start_thread(self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ----------------------------------------------------------------------- the training's

    def should_save(self, step: int) -> bool:
        """Whether to save this step and end: the same on all ranks, when all ask about the same
        steps, in ascending order.

        While nobody is preempted this is a look at memory. Otherwise it may wait until the ranks
        have agreed: milliseconds, at most 15 s or half of the grace. If they have not by then, it
        is False, and the log `ckpt.preemption` says why there is no common step.

        Once it is True, the log says whether the time that is left is enough.
        """
        number = Step(operator.index(step))
        with self._lock:
            answer = self._machine.ask(number)
            while answer is GuardAnswer.WAIT:
                self._check_usable()
                self._news.wait(LOOK_S)
                answer = self._machine.ask(number)
        if answer is GuardAnswer.GO_ON:
            return False
        if not self._ending:
            self._ending = True
            self._events.put(Ticked(now_us()))  # The others hear which step it is.
            self._tell_time()
        return True

    @property
    def preempted(self) -> bool:
        """Whether some rank's process was asked to end, as far as this one has heard."""
        return self._since_s is not None

    @property
    def step(self) -> int | None:
        """The step that all ranks save, once `should_save` has found it."""
        return self._machine.saves

    @property
    def why_not(self) -> str:
        """Why there is no common step, if there is none: the training goes on until it is killed.
        Empty otherwise.
        """
        return self._machine.gave_up

    @property
    def left_s(self) -> float | None:
        """How many seconds of `grace_s` are left, counted from when this rank heard of the
        preemption; 0 or more, None while nobody is preempted.
        """
        if self._since_s is None:
            return None
        return max(0.0, self.grace_s - (time.monotonic() - self._since_s))

    @property
    def expected_s(self) -> float | None:
        """How many seconds the run's last save took from its call to its commit; None before
        `should_save` was True, and when no save of the run is known.
        """
        return self._expected_s

    @property
    def fits(self) -> bool | None:
        """Whether a save like the last one is committed in the time that is left; None while
        either is not known.
        """
        left_s, expected_s = self.left_s, self.expected_s
        return None if left_s is None or expected_s is None else expected_s <= left_s

    def close(self) -> None:
        """Restore the earlier signal handlers; the other ranks no longer wait for this one.
        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        self._control.forget(self)
        if self._pid == os.getpid() and self._thread.is_alive():
            self._events.put(None)
            self._thread.join()

    def store_is_gone(self) -> None:
        """Nobody has its store any more, so that the store ends: from now on a signal ends this
        process.
        """
        if not self._closed:
            _log.warning(
                "%s: its store is gone, as nobody kept it, and this guard with it: a signal ends"
                " this process again; keep what ckpt.open returns as long as the guard",
                self._run,
            )
        self.close()

    # ----------------------------------------------------------------------- what is heard

    def joined(self, launch: LaunchNumber) -> None:
        """There is a session, in which this rank has joined its launch."""
        self._events.put(GuardJoined(now_us(), launch))

    def heard(self, message: Message) -> None:
        """What the coordinator has said unasked."""
        if getattr(message, "run", None) == self._meeting:
            self._events.put(GuardHeard(now_us(), message))

    def _signalled(self, name: str) -> None:
        """In a signal's handler."""
        self._events.put(ProcessSignalled(now_us(), name))

    # ----------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=LOOK_S)
            except queue.Empty:
                event = Ticked(now_us())
            if event is None:
                break
            self._handle(event)
        standing = self._machine.standing
        if standing is not None:
            closed = GuardStanding(standing.run, standing.launch, standing.rank, closed=True)
            self._tell(closed)

    def _handle(self, event: GuardEvent) -> None:
        self._note_time(event)
        with self._lock:
            actions = self._machine.handle(event)
            self._news.notify_all()
        for action in actions:
            self._perform(action)

    def _note_time(self, event: GuardEvent) -> None:
        about = event.message if isinstance(event, GuardHeard) else event
        if self._since_s is None and isinstance(
            about, ProcessSignalled | HoldSteps | StopAt | NoCommonStep
        ):
            self._since_s = time.monotonic() - (now_us() - event.now_us) / US_PER_S

    def _perform(self, action: GuardAction) -> None:
        match action:
            case TellStanding(standing):
                self._tell(standing)
            case Report(level, text):
                _log.log(_LEVELS[level], "%s: %s", self._run, text)

    def _tell(self, standing: GuardStanding) -> None:
        try:
            self._control.tell(standing)
        except CkptError as error:  # It is said again in the next session.
            _log.info("%s: no session with the coordinator: %s", self._run, error.message)

    # ----------------------------------------------------------------------- the last step

    def _tell_time(self) -> None:
        self._expected_s = self._last_duration_s()
        speaks = bool(self._machine.signal) or self._rank == 0 or self.fits is False
        _log.log(
            logging.WARNING if speaks else logging.INFO,
            "%s: %s, and all ranks end with step %s; %.0f of %g s are left: %s",
            self._run,
            self._machine.heard_of,
            self.step,
            self.left_s,
            self.grace_s,
            self._time_said(),
        )

    def _time_said(self) -> str:
        if self.expected_s is None:
            return "whether that is enough is not known, no save was committed yet"
        took = f"the last save took {self.expected_s:.1f} s"
        return took if self.fits else f"{took}, so this one may come too late: give more grace"

    def _last_duration_s(self) -> float | None:
        """From this process's own saves, else from what the coordinator lists."""
        known = self._stagers.last_duration_s(self._run)
        if known is not None:
            return known
        try:
            return self._control.last_duration_s(self._run, DURATION_TIMEOUT_S)
        except CkptError:
            return None

    def _check_usable(self) -> None:
        if self._closed or self._pid != os.getpid():
            raise Refused("this guard is closed, or another process's", hint="make one here")
