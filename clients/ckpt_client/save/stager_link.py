"""The trainer's end of its stager: start it, stage into its memory, hear what became of each save.

No thread: whoever waits reads the socket, one at a time, and notes what arrives for all. Packets
are few and small, so nothing is lost while nobody reads.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt.aio.descriptors import DescriptorMark, closed_outside
from ckpt.base.errors import Aborted, CkptError, Refused, Unavailable, error_from_wire
from ckpt.base.units import US_PER_S
from ckpt_client.local.detach import start_detached
from ckpt_client.save.copying import NUMPY, Copier, HalfWriter
from ckpt_client.save.handle import Save
from ckpt_client.save.mapped_halves import MappedHalves
from ckpt_client.save.packing import PackingPlan
from ckpt_client.stager import wire

START_TIMEOUT_S = 60.0
LINE_TIMEOUT_S = 2.0
"""A stager that does not answer within this is not kept for another store, nor taken over."""
PATIENCE_S = 10.0
"""A longer wait for a stager is logged, with its reason: for a stopped one it would never end."""
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
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                number = theirs.fileno()
                start_detached(_command(number, attach), log=log, pass_fds=(number,))
            except BaseException:
                ours.close()
                raise
        self._socket = ours
        self._mark = DescriptorMark(ours.fileno())
        self.attach = attach
        self._log = log
        self._rank = attach.rank
        #: Guards everything below. Notified when a packet was noted, and when a reader has stopped.
        self._news = threading.Condition()
        #: Whether a thread reads the socket, and which. Only one does; the others wait for `_news`.
        self._reading, self._reader = False, 0
        #: Why nothing more comes: the stager ended, or this link was closed. Set once.
        self._dead: CkptError | None = None
        self._halves = MappedHalves()
        #: The half that the next save may write into before it is granted.
        self._open: int | None = None
        #: Saves whose ask has no answer yet.
        self._asking: set[int] = set()
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
        #: Held while memory is prepared: one after the other.
        self._prepare_turn = threading.Lock()
        #: Held where an ask or a Prepare is sent: what an ask takes was announced at that moment.
        self._asking_turn = threading.Lock()
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
                with self._news:
                    self._prepared = None if self._attached else _CLOSED
                if self._prepared is None:
                    self._send(wire.Prepare(half_bytes))
            self.wait_until(lambda: self._prepared is not None, None)
            with self._news:
                answer, halves = self._prepared, self._halves.all()
            assert answer is not None
            if answer.code:
                raise error_from_wire(answer.code, answer.message)
            for half in halves:
                if packing is not None and len(half.memory) >= packing.layout.half_bytes:
                    half.make_ready(packing, copier)

    def ask_half(
        self, number: int, run: str, step: int, half_bytes: int, when_full: str
    ) -> HalfWriter | None:
        """Ask for memory to stage into; what was announced may be written at once, before
        `wait_half` tells which it is.
        """
        self.take_news()
        with self._asking_turn:
            with self._news:
                self._halves.made_s.clear()
                taken, self._open = None if self._prepared is None else self._open, None
                self._asking.add(number)
                half = self._halves.find(taken) if taken is not None else None
                if half is None or len(half.memory) < half_bytes:
                    taken = half = None
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
        with self._news:
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
        with self._news:
            self._asking.discard(number)
        with suppress(CkptError):
            self._send(wire.DropStaging(number))

    def refuse(self, number: int, run: str, step: int, why: str) -> None:
        """Refuse the step: nothing will be staged, and the ranks that saved it hear why."""
        with self._news:
            self._asking.discard(number)
        with suppress(CkptError):
            self._send(wire.RefuseStep(number, run, step, wire.cut_text(why)))

    def hand_over(
        self,
        number: int,
        save: Save,
        packing: PackingPlan,
        *,
        replicas: str,
        unchanged: str,
        references: bool,
        metrics: dict[str, float],
    ) -> None:
        """Hand the save over to the stager; `save` hears how it ends."""
        with self._news:
            self._pending[number] = save
        try:
            self._send(
                wire.HandOver(
                    save=number,
                    payload_bytes=packing.layout.payload_bytes,
                    document_bytes=len(packing.document),
                    declaration_offset=packing.layout.declaration_offset,
                    declaration_bytes=len(packing.layout.declaration),
                    replicas=replicas,
                    stall_us=int(save.stall_s * US_PER_S),
                    fault_in_us=int(save.fault_in_s * US_PER_S),
                    unchanged=unchanged,
                    references=references,
                    metrics=metrics,
                )
            )
        except CkptError:
            with self._news:
                self._pending.pop(number, None)
            save.mark_told()
            raise

    def note_failed(self, save: Save, error: CkptError) -> None:
        """Note that a save which was staged beside the training never came to its hand-over."""
        with self._news:
            save.fail(error)
            self._failed.append(save)
            self._news.notify_all()

    def take_error(self) -> CkptError | None:
        """The oldest error that was not raised yet."""
        self.take_news()
        with self._news:
            while self._failed:
                error = self._failed.pop(0).take_error()
                if error is not None:
                    return error
        return None

    def take_warned(self) -> list[Save]:
        """Saves that committed with warnings, since the last call; call `take_error` first."""
        with self._news:
            warned, self._warned = self._warned, []
        return warned

    def last_duration_s(self, run: str) -> float | None:
        """Seconds from the call of the run's last committed save to its commit; None before one."""
        self.take_news()
        with self._news:
            return self._durations_s.get(run)

    def close(self) -> None:
        """Leave the stager alone; it finishes what it has and goes when idle."""
        self.give_up()
        if self._mark.is_ours:
            self._socket.close()
        else:
            self._socket.detach()
        with self._news:
            self._halves.clear()

    def give_up(self) -> None:
        """Tell all who wait for the stager that the store was closed."""
        with self._news:
            self._end(Aborted("the store was closed before the outcome was known"))
            if not self._mark.is_ours:
                return
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # Wakes a thread that reads it.

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
        with self._news:
            self._failed.clear()
            self._warned.clear()
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
        """In a forked child: the socket is the parent's."""
        self._socket.close()

    # ----------------------------------------------------------------------- listening

    def take_news(self) -> None:
        """Read what is there already; the stager's end counts as news."""
        with suppress(CkptError):
            self.wait_until(lambda: False, 0.0)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Read until `ready()` (True), the time is over (False), or the stager is gone (raises)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._news:
            while not ready():
                if self._dead is not None:
                    raise self._dead
                if self._reading and self._reader == threading.get_ident():
                    raise _interrupted()
                left = PATIENCE_S if deadline is None else max(0.0, deadline - time.monotonic())
                now = min(left, PATIENCE_S)
                if self._news.wait(now) if self._reading else self._read_one(now):
                    continue
                if now >= PATIENCE_S:
                    self._tell_stop()
                elif deadline is not None:
                    return ready()
            return True

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
        if self._is_stopped() and not self._stop_told:
            self._stop_told = True
            _log.warning(
                "the stager of rank %s is stopped: kill -CONT %s lets it go on, kill -KILL %s ends "
                "it and the saves that it has not sent",
                self._rank,
                self.pid,
                self.pid,
            )

    def _is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(") ")[2][:1] in ("T", "t")

    def _read_one(self, left_s: float) -> bool:
        """Wait for one packet without the lock and note it; False when none came in time."""
        self._reading, self._reader = True, threading.get_ident()
        self._news.release()
        packet: bytes | None = None
        descriptor: int | None = None
        try:
            if not self._mark.is_ours:
                raise OSError(errno.EBADF, "closed")
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if poll.poll(left_s * 1000):
                packet, descriptor = wire.receive_packet(self._socket)
        except (OSError, ValueError):
            packet = b""  # Another thread closed the store.
        finally:
            self._news.acquire()
            self._reading = False
            self._news.notify_all()  # First: a Ctrl-C may strike in what follows.
            if packet is not None:
                self._note(packet, descriptor)
        return packet is not None

    def _note(self, packet: bytes, descriptor: int | None) -> None:
        self._stop_told = False
        if not packet and not self._mark.is_ours:
            self._end(closed_outside())
            return
        if not packet:
            self._end(
                Aborted(
                    f"the stager of rank {self._rank} (pid {self.pid}) ended before the save did",
                    hint=f"store.steps() tells what committed; save again; its log is {self._log}",
                )
            )
            return
        match wire.decode_from_stager(packet):
            case wire.Attached(pid):
                self.pid, self._attached = pid, True
            case wire.Detached():
                self._attached, self._open = False, None
                self._prepared = _CLOSED
                self._halves.clear()
            case wire.HalfReady(half, half_bytes, fault_in_us):
                assert descriptor is not None, "HalfReady carries its memory"
                if self._open == half:
                    self._open = None
                self._halves.take(half, descriptor, half_bytes, fault_in_us / US_PER_S)
            case wire.HalfOpen(half):
                # One that met our ask on the way is old: that ask may have been given this half.
                if not self._asking:
                    self._open = half
            case wire.Prepared() as answer:
                self._prepared = answer
            case wire.HalfGranted(number, half):
                self._granted[number] = half
                self._asking.discard(number)
            case wire.SaveRefused() as refusal:
                self._refused[refusal.save] = refusal
                self._asking.discard(refusal.save)
            case wire.Outcome() as outcome:
                self._noted_outcome(outcome)

    def _noted_outcome(self, outcome: wire.Outcome) -> None:
        save = self._pending.pop(outcome.save, None)
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
            self._socket.send(wire.encode_packet(wire.HeardOutcome(outcome.save)))

    def _end(self, error: CkptError) -> None:
        """The stager is gone, or we are: nothing more will be heard of any save."""
        if self._dead is None:
            self._dead = error
            for save in self._pending.values():
                text = f"{save.run}@{save.step}: {error.message}"
                save.fail(type(error)(text, hint=error.hint))
                self._failed.append(save)
            self._pending.clear()

    def _send(self, message: wire.FromTrainer) -> None:
        try:
            if not self._mark.is_ours:
                raise OSError(errno.EBADF, "closed")
            self._socket.send(wire.encode_packet(message))
        except OSError:
            with suppress(CkptError):  # Hear its end, and with it what becomes of pending saves.
                self.wait_until(lambda: self._dead is not None, 1.0)
            raise self._dead or Unavailable(
                f"the stager of rank {self._rank} does not listen"
            ) from None


def _interrupted() -> Refused:
    """A signal's handler that waits for what the call below it would have read waits for ever."""
    return Refused(
        "this signal handler has interrupted a call that waits for the stager, which cannot go on",
        hint="set a flag in the handler and save in the loop, as store.preemption does",
    )


def _close_in_child() -> None:
    """A forked child must not keep the parent's stagers believing that their trainer lives."""
    for link in list(_links):
        link.abandon()


os.register_at_fork(after_in_child=_close_in_child)


def _command(number: int, attach: wire.Attach) -> list[str]:
    """Others can read it: no option of the URL, and nothing of the secret."""
    url = f"ckpt+local://{attach.directory}" if attach.directory else f"ckpt://{attach.address}"
    place = f"{attach.rank}/{attach.world_size}"
    return ["-m", "ckpt_client.stager", str(number), "--store", url, "--rank", place]
