"""An etcd of three members in virtual time: each request is done once it has come, wholly, one
after the other; and whatever may go wrong around that does.

Faults: a request is late, and is done long after it was repeated; an answer is lost, or its
connection breaks, after the request was done; no quorum for a while; a host and a member do not
hear each other, one way or both; a lease ends late; a watch ends, or falls silent; history is
compacted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from ckptd.catalog.etcd.words import KeyChanges, WatchFrom
from tests.sim.clockwork import Clockwork
from tests.sim.leading.loop import ProcessLoop
from tests.sim.leading.store import EtcdStore

MEMBERS = ("e0:1", "e1:1", "e2:1")
REFUSED, BROKEN = 0, -1
"""In the place of an HTTP status: nobody listens; the connection broke."""
SWEEP_US = 100_000
LATE_US = (300_000, 1_500_000, 4_000_000)
"""So late a request comes that is late."""

Answer = Callable[[int, bytes], None]


class Asker(Protocol):
    """Who asks."""

    name: str
    loop: ProcessLoop


@dataclass(slots=True)
class Request:
    """One on its way."""

    asker: Asker
    member: str
    path: str
    said: Struct
    mark: object
    """What whoever asks says beside it, for those who look on."""
    answer: Answer


@dataclass(slots=True)
class EtcdWeather:
    """How bad it is now."""

    late: float = 0.0
    """Probability that a request is late."""
    lost: float = 0.0
    """Probability that an answer never comes."""
    broken: float = 0.0
    """Probability that a connection breaks after a request was done."""
    latency_us: tuple[int, int] = (150, 900)


@dataclass(slots=True)
class WatchStream:
    """What one asker hears from one member."""

    asker: Asker
    member: str
    asked: WatchFrom
    next_revision: int
    heard: asyncio.Queue[KeyChanges | None]
    is_open: bool = True
    is_silent: bool = False
    ready_us: int = 0


@dataclass(slots=True)
class EtcdFaults:
    """What a history has done to it."""

    weather: EtcdWeather = field(default_factory=EtcdWeather)
    away_until_us: int = 0
    """No quorum before."""
    parted: dict[tuple[str, str], int] = field(default_factory=dict)
    """(from, to) -> until when nothing that one says reaches the other."""
    breaking: dict[str, int] = field(default_factory=dict)
    """Until when every connection of such a host breaks before its answer comes."""
    late_leases: float = 0.0
    """Probability that a lease which has run out is not looked at in a sweep."""


class EtcdCluster:
    """I answer every coordinator of a world."""

    def __init__(self, clock: Clockwork) -> None:
        self.store = EtcdStore()
        self.faults = EtcdFaults()
        self.watches: list[WatchStream] = []
        self.on_done: Callable[[Request, Struct], None] = lambda _request, _answer: None
        """Hears of each request when it is done."""
        self.before: Callable[[Request], bool] = lambda _request: False
        """Hears of each that has come; True: it is dealt with."""
        self.after: Callable[[Request], bool] = lambda _request: False
        """Hears of each that was done; True: there is no answer."""
        self.done_late = self.lost = 0
        self._clock = clock
        self._waiting: list[Request] = []
        self._sweep()

    # ----------------------------------------------------------------------- requests

    def ask(
        self, asker: Asker, member: str, path: str, body: bytes, answer: Answer, mark: object
    ) -> None:
        """`answer` is called at most once, while the asker's process lives."""
        said = self.store.parse(path, body)
        request = Request(asker, member, path, said, mark, answer)
        if not self._is_parted(asker.name, member):
            delay_us = self._clock.between(*self.faults.weather.latency_us)
            if self._happens(self.faults.weather.late):
                delay_us += self._clock.rng.choice(LATE_US)
                self.done_late += 1
            self._clock.after(delay_us, self.arrive, request)

    def arrive(self, request: Request) -> None:
        """It is at a member now."""
        if self._clock.now_us < self.faults.away_until_us:
            self._waiting.append(request)
        elif not self.before(request):
            self.do(request)

    def do(self, request: Request) -> None:
        """Now."""
        before = self.store.revision
        status, text, answer = self.store.execute(request.path, request.said, self._clock.now_us)
        if answer is not None:
            self.on_done(request, answer)
        if self.store.revision != before:
            self._tell_watches()
        if not self.after(request):
            self._answer(request, status, text)

    def _answer(self, request: Request, status: int, text: bytes) -> None:
        weather = self.faults.weather
        if self._is_parted(request.member, request.asker.name) or self._happens(weather.lost):
            self.lost += 1
            return
        breaks = self.faults.breaking.get(request.asker.name, 0) > self._clock.now_us
        if breaks or self._happens(weather.broken):
            status = BROKEN
        delay_us = self._clock.between(*weather.latency_us)
        self._clock.after(delay_us, request.answer, status, text)

    def _happens(self, probability: float) -> bool:
        return bool(probability) and self._clock.random() < probability

    # ----------------------------------------------------------------------- faults

    def lose_quorum(self, for_us: int) -> None:
        """Nothing is done meanwhile; what came is done afterwards, or never."""
        self.faults.away_until_us = self._clock.now_us + for_us
        self._clock.after(for_us, self._come_back)

    def _come_back(self) -> None:
        if self._clock.now_us < self.faults.away_until_us:
            return
        for lease in self.store.leases.values():
            lease.kept_us = self._clock.now_us  # As a new leader of etcd does.
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if self._clock.random() < 0.5:
                self._clock.after(self._clock.between(0, 1_000_000), self.arrive, request)

    def part(self, one: str, other: str, for_us: int) -> None:
        """What one says to the other does not come through: a coordinator and a member."""
        self.faults.parted[one, other] = self._clock.now_us + for_us

    def _is_parted(self, one: str, other: str) -> bool:
        return self.faults.parted.get((one, other), 0) > self._clock.now_us

    def heal(self) -> None:
        """All goes well from now on."""
        self.faults = EtcdFaults()
        self._come_back()
        for stream in self.watches:
            stream.is_silent = False
        self._tell_watches()

    def compact(self) -> None:
        """Whatever was overwritten is gone; a watch that is so far back ends."""
        self.store.compacted = self.store.revision

    # ----------------------------------------------------------------------- leases

    def _sweep(self) -> None:
        self._clock.after(SWEEP_US, self._sweep)
        if self._clock.now_us < self.faults.away_until_us:
            return
        before = self.store.revision
        for id, lease in list(self.store.leases.items()):
            over = lease.kept_us + lease.ttl_s * 1_000_000 <= self._clock.now_us
            if over and not self._happens(self.faults.late_leases):
                self.store.expire(id)
        if self.store.revision != before:
            self._tell_watches()

    # ----------------------------------------------------------------------- watches

    def watch(self, asker: Asker, member: str, asked: WatchFrom) -> WatchStream:
        """What happens from that revision on comes into `heard`; None when the stream ends."""
        stream = WatchStream(asker, member, asked, asked.start_revision, asyncio.Queue())
        self.watches.append(stream)
        self._clock.after(self._clock.between(*self.faults.weather.latency_us), self._tell, stream)
        return stream

    def end_watch(self, stream: WatchStream) -> None:
        """Its asker wants no more, or its member ends it."""
        if stream in self.watches:
            self.watches.remove(stream)
        stream.is_open = False
        if not stream.asker.loop.ended:
            stream.asker.loop.call_soon(stream.heard.put_nowait, None)

    def _tell_watches(self) -> None:
        for stream in self.watches:
            self._tell(stream)

    def _tell(self, stream: WatchStream) -> None:
        """What it has not heard yet, later, and in order."""
        silent = stream.is_silent or self._is_parted(stream.member, stream.asker.name)
        if silent or not stream.is_open:
            return
        if stream.next_revision <= self.store.compacted:
            gone = KeyChanges(canceled=True, compact_revision=self.store.compacted)
            self._say(stream, gone)
            return
        found = tuple(
            change for change in self.store.since(stream.next_revision)
            if stream.asked.key <= change.kv.key < stream.asked.range_end
        )  # fmt: skip
        stream.next_revision = self.store.revision + 1
        if found:
            self._say(stream, KeyChanges(found))

    def _say(self, stream: WatchStream, changes: KeyChanges) -> None:
        delay_us = self._clock.between(*self.faults.weather.latency_us)
        at_us = max(self._clock.now_us + delay_us, stream.ready_us + 1)
        stream.ready_us = at_us
        self._clock.at(at_us, self._hear, stream, changes)

    def _hear(self, stream: WatchStream, changes: KeyChanges) -> None:
        loop = stream.asker.loop
        if stream.is_open and not loop.ended:
            loop.call_soon(stream.heard.put_nowait, changes)
