"""A target process of the world: the real machine over a seeded fake disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from ckpt.aio.directory_scan import scan
from ckpt.aio.disk_actions import perform
from ckpt.base.ids import BootId, Domain, TargetId
from ckpt.base.limits import INCARNATION_BYTES
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.format.messages.writing import AbandonColumn, Fragment
from ckpt.protocol.events import (
    CloseSession,
    Received,
    Report,
    Send,
    Session,
    SessionClosed,
    SessionOpened,
    Ticked,
)
from ckpt.protocol.target.core import TargetIdentity, TargetLimits
from ckpt.protocol.target.directory import DirectoryLoaded
from ckpt.protocol.target.disk_events import (
    DiskAction,
    DiskDone,
    DiskFailed,
    Preallocate,
    ReadAt,
    ReleaseBulk,
    RemoveFile,
    RenameFile,
    SessionDrained,
    SpaceMeasured,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteAt,
)
from ckpt.protocol.target.machine import TargetEvent, TargetMachine
from ckpt.testing.disk import FakeDisk, Keep
from tests.sim.clockwork import Clockwork
from tests.sim.conduct import Conduct
from tests.sim.coordinator_node import CLUSTER, SECRET, TICK_US
from tests.sim.memory import ABOUT_CREDIT, TargetMemory
from tests.sim.network import STOPPED_US, Network, Node
from tests.sim.vows import COMMANDS, VOWS, Vows
from tests.sim.windows import TELLS, TargetSteps, Windows

DISK_BYTES = 1 << 23
CREDIT_POOLS = (2 * 4096, 4 * 4096, 16 * 4096)
"""Each seed has one of these: room for two, for three or for all of the columns that a burst of
four ranks has under way at a target.
"""
FEW_SESSIONS = 12
"""With so many or fewer each event is followed by a look at the invariants."""
DISK_ACTIONS = frozenset(get_args(DiskAction))
IN_MEMORY = frozenset({WriteAt, TruncateFile, RenameFile, RemoveFile, Preallocate})
"""Nothing of these is durable before a sync."""
SYNCS = frozenset({SyncFile, SyncDirectory})


class TargetNode:
    """I restart with a new boot id from what my disk kept."""

    def __init__(
        self, clock: Clockwork, network: Network, coordinator: Node, number: int, seed: int,
        limits: TargetLimits | None = None, *, first_boot: int = 0, tick_us: int = TICK_US,
    ) -> None:  # fmt: skip
        self.id = TargetId(f"t{number}")
        self.name = self.id
        self.up = False
        self.stopped = False
        self._tick_us = tick_us
        self.lost = False
        """For good: it never comes back, its disk counts for nothing."""
        self.harmed_boot = 0
        """The boot id under which it last held what a loss or a wipe took."""
        self.ended = False
        """Somebody has ended its process, and starts no other one for now."""
        self.wiped = False
        """Its disk was replaced by an empty one; what it held before counts for nothing."""
        self.disk = FakeDisk(seed * 31 + number, DISK_BYTES)
        self.disk_slow = 1
        """Disk operations take so many times longer; syncs `sync_slow` times longer than that."""
        self.sync_slow = 1
        self.one_at_a_time = False
        """The device does one operation after another, so that a crowd has to queue for it."""
        self._device_free_us = 0
        #: As with a thread for each operation; else what the kernel does in memory is done at once,
        #: and only what waits for the device waits.
        self._all_waits = seed // 4 % 4 == 0
        self._clock, self._network, self._coordinator = clock, network, coordinator
        self._number = number
        self.domain = Domain("power", "rack", "host", f"dev{number}")
        self._boots = first_boot
        self.incarnation = (number + 1).to_bytes(INCARNATION_BYTES, "big")
        self.place = self.name
        #: The disk's operations and size when this process last saw its room.
        self._measured: tuple[int, int] | None = None
        self.alarms: list[str] = []
        """`FILE WHY` of what its scrub found damaged, in all its lives."""
        #: Sessions whose frames are about to have left.
        self._draining: set[Session] = set()
        self._limits = limits or TargetLimits(
            stream_credit_bytes=8192,
            credit_pool_bytes=CREDIT_POOLS[seed // 2 % len(CREDIT_POOLS)],
            read_piece_bytes=4096,
            read_window_bytes=8192,
            read_pool_bytes=12_288,
            read_keep_bytes=8_192,
        )
        #: Sessions that may ask for bytes.
        self._readers: dict[Session, None] = {}
        #: All that are open.
        self._session_count = 0
        #: Events since the machine's invariants were looked at.
        self._unchecked = 0
        self._coordinator_session: Session | None = None
        self.windows = Windows(network)
        self.on_synced: Callable[[], None] = lambda: None
        """Names are durable that were not."""
        self.machine: TargetMachine
        self.memory: TargetMemory
        self._steps: TargetSteps

    def scrub_each(self, period_us: int) -> None:
        """Said before the first start: all that lies here is read so often."""
        self._limits = replace(self._limits, scrub_period_us=period_us)

    def start(self) -> None:
        if self.up or self.lost or self.ended:
            return
        self._boots += 1
        boot = BootId(self._number * 1000 + self._boots)
        identity = TargetIdentity(
            CLUSTER, self.id, boot, str(self.domain), self.id,
            incarnation=self.incarnation, place=self.place,
        )  # fmt: skip
        self.machine = TargetMachine(identity, SECRET, self._limits)
        self.memory = TargetMemory(self.name, self._limits, lambda: self._clock.now_us)
        self._conduct = Conduct(self.name)
        self._vows = Vows(self.name, self.disk)
        self._steps = TargetSteps()
        self._measured = None
        self._readers.clear()
        self._session_count = 0
        self._draining.clear()
        self.up, self.stopped = True, False
        self._coordinator_session = None
        self._handle(self._found())
        self.measure()
        self._tick(self._boots)
        self._dial(self._boots)

    def _found(self) -> DirectoryLoaded:
        return scan(self.disk, self._clock.now_us)

    def crash(self, keep: Keep = Keep.SOME) -> None:
        """The process is killed; `keep` says what a power loss leaves of unsynced bytes. With ALL
        the power stays: the kernel holds them, and a later loss may take them.
        """
        if self.up:
            self.up = False
            self.harmed_boot = self._number * 1000 + self._boots
            self._network.died(self)
            if keep is not Keep.ALL:
                self.disk.crash(keep)

    def wipe(self) -> None:
        """Another device, empty."""
        assert not self.up
        self.wiped = True
        self.disk = FakeDisk(self._number, DISK_BYTES)
        self.incarnation = (self._number + 1001).to_bytes(INCARNATION_BYTES, "big")
        self.place = f"{self.name}, another device"

    # ----------------------------------------------------------------------- network

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        self._session_count += 1
        if role in (Role.READER, Role.DRAIN):
            self._readers[session] = None
        self._handle(SessionOpened(self._clock.now_us, session, role, name))

    def session_closed(self, session: Session) -> None:
        self._session_count -= 1
        self._readers.pop(session, None)
        self.memory.session_closed(session)
        self._vows.session_closed(session)
        if session == self._coordinator_session:
            self._coordinator_session = None
            self._clock.after(100_000, self._dial, self._boots)
        self._handle(SessionClosed(self._clock.now_us, session))

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        kind = type(message)
        if kind is Fragment:
            self.memory.fragment_came((session, request), len(bulk))
        elif kind is AbandonColumn:
            self.memory.stream_ended((session, request))
        elif kind in COMMANDS:
            self._vows.heard(session, request, message)
        self._handle(Received(self._clock.now_us, session, request, message, bulk))

    def _dial(self, boots: int) -> None:
        if not self.up or self._boots != boots or self._coordinator_session is not None:
            return
        if self.stopped:
            self._clock.after(100_000, self._dial, boots)
            return
        self._network.dial(
            self,
            self._coordinator,
            Role.TARGET,
            Role.COORDINATOR,
            failed=lambda: self._clock.after(100_000, self._dial, boots),
            opened=self._dialed,
        )

    def _dialed(self, session: Session) -> None:
        self._coordinator_session = session

    # ----------------------------------------------------------------------- inside

    def _tick(self, boots: int) -> None:
        if not self.up or self._boots != boots:
            return
        if not self.stopped:
            self.measure()
            self._handle(Ticked(self._clock.now_us))
        self._clock.after(self._tick_us, self._tick, boots)

    def measure(self) -> None:
        """See how much room there is now; a disk that nobody has touched is as it was."""
        seen = self.disk.operation_count, self.disk.bytes_total
        if not self.up or seen == self._measured:
            return
        self._measured = seen
        space = self.disk.space()
        self._handle(SpaceMeasured(self._clock.now_us, space.bytes_total, space.bytes_free))

    def _check(self) -> None:
        """Every invariant is a look at all streams and readers: in a crowd it is looked at once for
        so many events, so that a burst costs no more than its events.
        """
        self._unchecked += 1
        if self._unchecked * FEW_SESSIONS >= self._session_count:
            self._unchecked = 0
            self.machine.check()

    def _handle(self, event: TargetEvent) -> None:
        """The event, and those of what the disk did at once, as in the daemon's loop."""
        events, handle, send, memory = [event], self.machine.handle, self._network.send, self.memory
        conduct = self._conduct
        conduct.slowest = max(conduct.slowest, self.disk_slow * self.sync_slow)
        at_once = not self._all_waits and self.disk_slow == 1 and not self.one_at_a_time
        for each in events:
            actions = handle(each)
            conduct.step(each, actions)
            self._check()
            for action in actions:
                kind = type(action)
                if kind is Send:
                    told = type(action.message)
                    if told in TELLS and self._is_struck_before(action, each):
                        return
                    if told in ABOUT_CREDIT:
                        memory.says(action)
                    if told in VOWS:
                        self._vows.says(action, each)
                    send(action)
                    if action.bulk:
                        memory.sends(action.session, len(action.bulk))
                        self._drain_soon(action.session)
                elif kind is ReleaseBulk:
                    memory.released(action.op)
                elif kind in DISK_ACTIONS:
                    if kind is WriteAt or kind is ReadAt:
                        self._take_buffer(action, each)
                    if kind is not ReadAt:
                        self._steps.issued(action, each)
                    if at_once and kind in IN_MEMORY:
                        done = self._perform(action)
                        if done is None:
                            return
                        events.append(done)
                        continue
                    self._clock.at(self._done_us(kind), self._happen, action, self._boots)
                elif kind is Report and action.text == "rot":
                    found = dict(action.fields)
                    self.alarms.append(f"{found['file']} {found['why']}")
                elif kind is CloseSession:
                    self._network.cut(action.session)

    def _done_us(self, kind: type[DiskAction]) -> int:
        """When the device will have done what it is given now."""
        begins_us = self._clock.now_us
        if self.one_at_a_time:
            begins_us = max(begins_us, self._device_free_us)
        slow = self.disk_slow * (self.sync_slow if kind in SYNCS else 1)
        self._device_free_us = begins_us + self._clock.between(30, 400) * slow
        return self._device_free_us

    def _drain_soon(self, session: Session) -> None:
        if session not in self._draining:
            self._draining.add(session)
            self._clock.after(100, self._drained, session, self._boots)

    def _take_buffer(self, action: WriteAt | ReadAt, cause: TargetEvent) -> None:
        """A fragment stays in its buffer until it is written, what is read until it is sent."""
        if type(action) is ReadAt:
            self.memory.reads(action)
            self.memory.check_reads(1 + len(self._readers))  # And the coordinator.
        elif action.keeps_bulk and type(cause.message) is Fragment:
            self.memory.writes((cause.session, cause.request), action)

    def _drained(self, session: Session, boots: int) -> None:
        if self.up and self._boots == boots:
            self._draining.discard(session)
            self.memory.drained(session)
            self._handle(SessionDrained(self._clock.now_us, session))

    def _happen(self, action: DiskAction, boots: int) -> None:
        if not self.up or self._boots != boots:
            return
        if self.stopped:
            self._clock.after(STOPPED_US, self._happen, action, boots)
            return
        done = self._perform(action)
        if done is not None:
            self._handle(done)

    def _perform(self, action: DiskAction) -> DiskDone | DiskFailed | None:
        """None when I was struck down just before, or just behind a step of which nobody hears."""
        if type(action) is RenameFile:
            self._vows.renames(action.old)
        window = self._steps.of(action.op)
        if window is not None and self.windows.passed(window, self):
            return None
        done = perform(self.disk, action, self._clock.now_us)
        if type(action) is SyncDirectory:
            self.on_synced()
        if window is None:
            return done
        behind = self._steps.behind(action.op)
        if behind is not None and self.windows.passed(behind, self):
            return None
        return done

    def _is_struck_before(self, action: Send, cause: TargetEvent) -> bool:
        """I am about to tell of a durable step."""
        window = self._steps.telling(action.message, cause)
        if window is None:
            return False
        if self.windows.passed(window, self):
            return True
        self.windows.told(window.of, self)
        return False
