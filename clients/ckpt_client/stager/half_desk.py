"""The arena's front desk: which save waits for room, for memory, or has its half.

    AskHalf ──room under the cap──> machine (HalfAsked) ──GrantHalf──> memory made, if need be
        │                                                                  └──> HalfGranted
        └─ none: parked until a half is released, or refused as the save's policy says

The machine knows saves and halves; this desk knows bytes. It asks the machine only for what the cap
allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ckpt.aio.clock import now_us
from ckpt.base.errors import CkptError
from ckpt.base.ids import RunName, Step
from ckpt.base.units import format_bytes
from ckpt.protocol.stager.events import FullPolicy, HalfAsked, StagerEvent, StagingDropped
from ckpt_client.stager import wire
from ckpt_client.stager.arena import Half, make_half
from ckpt_client.stager.declaration import Declaration
from ckpt_client.stager.halves import HalfSlot, Halves
from ckpt_client.stager.jobs import Jobs
from ckpt_client.stager.log import log

Send = Callable[[wire.FromStager, int | None], None]
Handle = Callable[[StagerEvent], None]


class HalfDesk:
    """I inform the trainer about its memory. Call `grant` and `release` as the machine says
    them.
    """

    def __init__(
        self,
        bytes_max: int,
        jobs: Jobs,
        send: Send,
        handle: Handle,
        free_half: Callable[[], int | None],
        on_drop: Callable[[Half], None],
    ) -> None:
        """`free_half`: which half the machine would grant now."""
        self._halves = Halves(bytes_max, on_drop)
        self._jobs = jobs
        self._send = send
        self._handle = handle
        self._free_half = free_half
        #: The half that HalfOpen named: the trainer may write into it before it asks.
        self._open: int | None = None
        #: Saves that wait because the cap has no room for another half, in their order.
        self._parked: list[wire.AskHalf] = []
        #: save -> how large a half it needs, from HalfAsked until it has its memory or was refused.
        self._asked_bytes: dict[int, int] = {}
        #: half -> save that was granted it and waits for its memory.
        self._granted: dict[int, int] = {}
        #: save -> half, from the grant until the release.
        self._half_of: dict[int, int] = {}
        #: How large the Prepare under way wants the halves; 0 when none is under way.
        self._preparing_bytes = 0
        #: Why a half of the Prepare under way could not be made.
        self._prepare_error: CkptError | None = None

    def slot(self, half: int) -> HalfSlot:
        return self._halves.slots[half]

    def half_of(self, save: int) -> int | None:
        """The half that the save was granted."""
        return self._half_of.get(save)

    # ----------------------------------------------------------------------- trainer

    def ask(self, packet: wire.AskHalf) -> None:
        """Note that a save wants a half."""
        self._open = None
        self._parked.append(packet)
        self._pass_on()

    def read_ahead(self, packet: wire.Declared, read: Callable[[memoryview], Declaration]) -> None:
        """Have a worker read a declaration. What is wrong with it the hand-over says; until then
        the half may come to be another's.
        """
        half = self.half_of(packet.save)
        memory = self.slot(half).memory if half is not None else None
        end = packet.offset + packet.length
        if memory is not None and 0 < packet.offset <= end <= memory.size:
            self._jobs.start(
                lambda: read(memory.memory[packet.offset : end]),
                lambda declaration: log(
                    "info", "read ahead", entries=len(declaration.table.entries)
                ),
                lambda error: log("warning", "not read ahead", why=str(error)),
            )

    def forget(self, save: int) -> None:
        """Note that the save was dropped or refused before it had its memory."""
        self._asked_bytes.pop(save, None)
        self._parked = [one for one in self._parked if one.save != save]

    def leave(self) -> None:
        """Note that the trainer is gone: nobody waits any more."""
        self._open = None
        self._parked.clear()
        self._granted.clear()
        self._asked_bytes.clear()
        self._preparing_bytes = 0

    def announce_all(self) -> None:
        """Announce all memory again: another store of the trainer has nothing mapped yet."""
        for half in (0, 1):
            slot = self.slot(half)
            if slot.memory is not None and not slot.lent:
                self._send(wire.HalfReady(half, slot.size, 0), slot.memory.descriptor)
        self._announce()

    def prepare(self, half_bytes: int) -> None:
        """Make what the cap allows of both halves; answered by Prepared. Saves under way keep their
        memory.
        """
        if not self._halves.fits_ever(half_bytes):
            self._send(wire.Prepared("refused", self._too_large(half_bytes)), None)
            return
        # What was announced may give way to larger memory.
        self._open = None
        self._prepare_error = None
        self._preparing_bytes = half_bytes
        self._go_on_preparing()

    # ----------------------------------------------------------------------- machine

    def grant(self, save: int, half: int) -> None:
        """Give the half to this save; memory that somebody reads is not written again."""
        self._halves.take_back(half)
        self.slot(half).held = True
        self._half_of[save] = half
        self._granted[half] = save
        self._settle(half)

    def release(self, half: int) -> None:
        """Take the half back, which nobody holds any more; its memory stays for the next save."""
        self.slot(half).held = False
        self._granted.pop(half, None)
        self._half_of = {save: held for save, held in self._half_of.items() if held != half}
        self._pass_on()
        self._announce()

    def make(self, half: int, half_bytes: int) -> bool:
        """Have memory made for a half that has less; True when a worker is at it now."""
        return self._make(half, half_bytes, self._halves.plan)

    def _make(self, half: int, half_bytes: int, plan: Callable[[int, int], int | None]) -> bool:
        slot = self.slot(half)
        if slot.making_bytes or (slot.held and half not in self._granted):
            return False
        size = plan(half, half_bytes)
        if size is None:
            return False
        begun = time.monotonic_ns()
        self._jobs.start(
            partial(make_half, size),
            lambda memory: self._made(half, memory, (time.monotonic_ns() - begun) // 1000),
            lambda error: self._not_made(half, error),
        )
        return True

    def close(self) -> None:
        self._halves.close()

    # ----------------------------------------------------------------------- inside

    def _pass_on(self) -> None:
        """Ask the machine for what the cap allows now, in the order in which it was wished."""
        while self._parked:
            ask = self._parked[0]
            policy = FullPolicy(ask.when_full)
            if not self._halves.fits_ever(ask.half_bytes):
                text = self._too_large(ask.half_bytes)
                self._refuse(ask.save, CkptError(text, hint="raise arena_bytes_max"), "refused")
            elif self._halves.may_fit(ask.half_bytes):
                self._asked_bytes[ask.save] = ask.half_bytes
                run, step = RunName(ask.run), Step(ask.step)
                self._parked.pop(0)
                self._handle(HalfAsked(now_us(), ask.save, run, step, policy, taken=ask.taken))
                continue
            elif policy is FullPolicy.WAIT:
                return
            else:
                text = "an earlier save still holds the arena, and its cap has no room for another"
                code = "busy" if policy is FullPolicy.ERROR else "skipped"
                self._refuse(ask.save, CkptError(text, hint="raise arena_bytes_max"), code)
            self._parked.pop(0)

    def _settle(self, half: int) -> None:
        """Tell the trainer of its half once the memory is there and large enough;
        else have it made.
        """
        save = self._granted.get(half)
        slot = self.slot(half)
        if save is None or slot.making_bytes:
            return
        wanted = self._asked_bytes.get(save, 0)
        if slot.size >= wanted:
            del self._granted[half]
            self._asked_bytes.pop(save, None)
            self._send(wire.HalfGranted(save, half), None)
            self._announce()
        elif not self.make(half, wanted):
            self._lack(save, half, CkptError("the arena's cap has no room for this half"))

    def _made(self, half: int, memory: Half, spent_us: int) -> None:
        self._halves.installed(half, memory)
        self._send(wire.HalfReady(half, memory.size, spent_us), memory.descriptor)
        self._settle(half)
        self._announce()
        self._go_on_preparing()

    def _announce(self) -> None:
        """A save that asks first waits for our turn on the processor, when all ranks copy."""
        half = self._free_half()
        if self._parked or self._asked_bytes or half is None or half == self._open:
            return
        slot = self.slot(half)
        free = not slot.held and not slot.making_bytes and not slot.lent
        if slot.memory is not None and free:
            self._open = half
            self._send(wire.HalfOpen(half), None)

    def _not_made(self, half: int, error: CkptError) -> None:
        self._halves.failed(half)
        save = self._granted.get(half)
        if save is not None:
            self._lack(save, half, error)
        self._prepare_error = error
        self._go_on_preparing()

    def _lack(self, save: int, half: int, error: CkptError) -> None:
        self._granted.pop(half, None)
        self._asked_bytes.pop(save, None)
        self._refuse(save, error, error.code)
        self._handle(StagingDropped(now_us(), save))

    def _refuse(self, save: int, error: CkptError, code: str) -> None:
        text, hint = wire.cut_text(error.message), wire.cut_text(error.hint)
        self._send(wire.SaveRefused(save, code, text, hint), None)

    def _go_on_preparing(self) -> None:
        half_bytes, error = self._preparing_bytes, self._prepare_error
        if not half_bytes:
            return
        if error is None:
            # Under a cap that has room for one, the one that is large enough stays.
            first, second = sorted((0, 1), key=lambda half: self.slot(half).size < half_bytes)
            self.make(first, half_bytes)
            self._make(second, half_bytes, self._halves.plan_beside)
        if any(self.slot(half).making_bytes for half in (0, 1)):
            return
        self._preparing_bytes = 0
        # The trainer has forgotten what was announced before.
        self._open = None
        self._announce()
        text = wire.cut_text(str(error)) if error is not None else ""
        self._send(wire.Prepared(error.code if error is not None else "", text), None)

    def _too_large(self, half_bytes: int) -> str:
        return (
            f"the state needs {format_bytes(half_bytes)} of staging memory, "
            f"the cap is {format_bytes(self._halves.bytes_max)}"
        )
