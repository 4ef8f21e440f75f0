"""Questions of readers that have no answer yet, and which of them are tried again after an event.

Of a crowd most wait for the same. Those that ask alike, and of whose ranks alike is known, wait and
are answered together: of each such group the first is tried after every event, and the others only
when that one waits no more. A question whose time is up is tried by itself, as its group's first
may have longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, KeysView
from dataclasses import dataclass, field
from heapq import heappop, heappush

from msgspec.structs import replace

from ckpt.base.ids import LaunchNumber, Rank, RunName, Step
from ckpt.base.limits import RESOLVE_WAIT_US
from ckpt.format.messages.loading import Resolve
from ckpt.protocol.events import Session

Load = tuple[RunName, Step | None, LaunchNumber | None, int]
"""What the ranks of a launch ask together."""


def load_of(message: Resolve) -> Load:
    return message.run, message.step, message.launch, message.turn


@dataclass(slots=True, eq=False)
class WaitingLoad:
    """One question."""

    session: Session
    request: int
    message: Resolve
    asked_us: int
    group: Hashable = None
    """The one that it is in; None: none yet."""

    @property
    def deadline_us(self) -> int:
        return self.asked_us + self.message.timeout_us

    def due_us(self, now_us: int) -> int | None:
        """When waiting on may first be another matter, if it may."""
        times = (self.asked_us + RESOLVE_WAIT_US, self.deadline_us)
        return min((time for time in times if time > now_us), default=None)


Group = dict[WaitingLoad, None]


@dataclass(slots=True)
class WaitingLoads:
    """I hold the questions; whoever owns me says what is alike, and tries them."""

    alike: Callable[[WaitingLoad], Hashable]
    """What makes a difference between questions that ask for the same; it changes only when a
    question of the same rank is answered, or with time (`due_us`)."""
    #: By what they ask and what is alike, the oldest first.
    _groups: dict[Hashable, Group] = field(default_factory=dict)
    #: Of each session, what it waits for.
    _of_session: dict[Session, Group] = field(default_factory=dict)
    #: Who asks, by what the ranks of a launch ask together; a process may have asked twice.
    _asking: dict[Load, Counter[Rank | None]] = field(default_factory=dict)
    #: When each is due, and a number that keeps the order; also of some that wait no more.
    _times: list[tuple[int, int, WaitingLoad]] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        return sum(map(len, self._of_session.values()))

    def __iter__(self) -> Iterator[WaitingLoad]:
        for group in self._groups.values():
            yield from group

    def asking(self, load: Load) -> KeysView[Rank | None]:
        """Ranks that wait for it."""
        return self._asking.get(load, Counter()).keys()

    def add(self, one: WaitingLoad, now_us: int) -> None:
        """It waits from now on."""
        self._of_session.setdefault(one.session, {})[one] = None
        self._asking.setdefault(load_of(one.message), Counter())[one.message.rank] += 1
        self._put(one, now_us)

    def remove(self, one: WaitingLoad) -> None:
        """It waits no more."""
        self._leave(one)
        of_session = self._of_session[one.session]
        del of_session[one]
        if not of_session:
            del self._of_session[one.session]
        load, rank = load_of(one.message), one.message.rank
        ranks = self._asking[load]
        ranks[rank] -= 1
        if not ranks[rank]:
            del ranks[rank]
        if not ranks:
            del self._asking[load]

    def session_closed(self, session: Session) -> None:
        for one in list(self._of_session.get(session, ())):
            self.remove(one)

    def clear(self) -> list[WaitingLoad]:
        """All of them, which wait no more."""
        everyone = list(self)
        for one in everyone:
            self.remove(one)
        return everyone

    def retry(self, now_us: int, attempt: Callable[[WaitingLoad], bool]) -> None:
        """Something may have changed. `attempt` answers a question, if it can; those that it has
        answered count as waiting until all were tried.
        """
        answered: Group = {}
        for one in self._due(now_us):
            self._try(one, now_us, attempt, answered)
        for group in list(self._groups.values()):
            first = next((one for one in group if one not in answered), None)
            if first is None or not attempt(first):
                continue
            answered[first] = None
            for one in list(group):
                if one not in answered:
                    self._try(one, now_us, attempt, answered)
        for one in answered:
            self.remove(one)
        for one in answered:
            self.answered(one.message, now_us)

    def answered(self, message: Resolve, now_us: int) -> None:
        """This was answered and does not wait: what is alike of its rank's others may differ."""
        load = load_of(message)
        if message.rank not in self.asking(load):
            return
        for one in list(self):
            if load_of(one.message) == load and one.message.rank == message.rank:
                self._leave(one)
                self._put(one, now_us)

    # ----------------------------------------------------------------------- inside

    def _try(
        self, one: WaitingLoad, now_us: int, attempt: Callable[[WaitingLoad], bool],
        answered: Group,
    ) -> None:  # fmt: skip
        if attempt(one):
            answered[one] = None
        else:
            self._leave(one)
            self._put(one, now_us)

    def _put(self, one: WaitingLoad, now_us: int) -> None:
        asked = replace(one.message, rank=None, timeout_us=0)
        one.group = asked, now_us - one.asked_us >= RESOLVE_WAIT_US, self.alike(one)
        self._groups.setdefault(one.group, {})[one] = None
        due_us = one.due_us(now_us)
        if due_us is not None:
            self._count += 1
            heappush(self._times, (due_us, self._count, one))

    def _leave(self, one: WaitingLoad) -> None:
        group = self._groups[one.group]
        del group[one]
        if not group:
            del self._groups[one.group]

    def _due(self, now_us: int) -> list[WaitingLoad]:
        """Whose time is up; each once."""
        found: Group = {}
        while self._times and self._times[0][0] <= now_us:
            one = heappop(self._times)[2]
            if one in self._of_session.get(one.session, ()):
                found[one] = None
        return list(found)
