"""Which of several coordinators leads? One machine in each of them says what its own shall do.

              the key is free                  it is mine             the image is there
    FOLLOWING --------------> CAMPAIGNING ----------------> LOADING ---------------------> LEADING
        ^                          | somebody was faster       | lost it                      |
        +--------------------------+                           v   lost it, silent, asked to  |
        +----------------- the term's sessions are closed - DEPOSED <-------------------------+

The leader's key is in a store that all of them share (`ckptd.catalog.etcd.fence`). Whoever takes it
begins a term; nothing that is done here is safe because of a clock: a transaction of a term that
was lost is refused by the store. Clocks only say when it is worth while to try.

- A key that is free is campaigned for at once; who has just stepped down lets the others go first.
- A leader whose process is gone is unseated: the transaction names its key's revision, so a leader
  that came meanwhile stays. Mere silence of a leader is left to its lease.
- One's own key of a term that was given up is unseated likewise.
- Who leads, and could not keep its lease for as long as it lasts by its own clock, ends its term:
  another one may lead, or nobody can. While the store does not answer no campaign is won.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ckpt.base.units import US_PER_S
from ckpt.protocol.events import Ticked

AFTER_YOU_US: Final = 3 * US_PER_S
"""How long a coordinator that has stepped down leaves a free key to the others."""
RETRY_US: Final = US_PER_S // 4
"""Pause between two failed campaigns of this coordinator."""


class LeadingState(Enum):
    """See the module."""

    FOLLOWING = "following"
    CAMPAIGNING = "campaigning"
    LOADING = "loading"
    LEADING = "leading"
    DEPOSED = "deposed"


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who has the leader's key."""

    revision: int
    """At which it was created: of no other key, but in an etcd that was put back to a snapshot."""
    process: str
    """Of one process alone."""
    id: str = ""
    address: str = ""
    """Where it listens, as HOST:PORT; empty where an older version does not say."""
    term: int = 0
    secret_mark: str = ""
    """Of the secret that it has; empty where an older version does not say."""


@dataclass(frozen=True, slots=True)
class HolderSeen:
    """The store said who has the key; None: it is free. It was asked after all that I know of."""

    now_us: int
    holder: KeyHolder | None


@dataclass(frozen=True, slots=True)
class HolderGone:
    """The process that had the key has ended."""

    now_us: int
    holder: KeyHolder


@dataclass(frozen=True, slots=True)
class CampaignEnded:
    """The key is mine since then; None: it is not, or nobody knows."""

    now_us: int
    won: KeyHolder | None
    lease_us: int = 0
    """So long it lasts from `now_us` on, and from each time that it is kept."""


@dataclass(frozen=True, slots=True)
class ImageLoaded:
    """All that earlier terms wrote is here."""

    now_us: int


@dataclass(frozen=True, slots=True)
class TermKept:
    """My lease was renewed by what was sent at that time."""

    now_us: int


@dataclass(frozen=True, slots=True)
class TermLost:
    """The store refuses what my term writes."""

    now_us: int
    why: str


@dataclass(frozen=True, slots=True)
class StepDownAsked:
    """A person, or the end of the process."""

    now_us: int


@dataclass(frozen=True, slots=True)
class TermEnded:
    """No session and no ticket of my term is left."""

    now_us: int


LeadingEvent = (
    Ticked | HolderSeen | HolderGone | CampaignEnded | ImageLoaded | TermKept | TermLost
    | StepDownAsked | TermEnded
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Campaign:
    """Take the key if it is free, and begin a term. CampaignEnded follows."""


@dataclass(frozen=True, slots=True)
class Unseat:
    """Free the key if it is still of this revision."""

    revision: int


@dataclass(frozen=True, slots=True)
class Load:
    """Read what earlier terms wrote. ImageLoaded or TermLost follows."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Open the door."""


@dataclass(frozen=True, slots=True)
class EndTerm:
    """Close every session. TermEnded follows."""

    why: str
    finish: bool
    """Store and acknowledge what waits first, and free the key; else nothing more is stored."""


LeadingAction = Campaign | Unseat | Load | Lead | EndTerm


class LeadingMachine:
    """I am one coordinator's; `process` is its own among all that ever were."""

    def __init__(self, process: str) -> None:
        self.state = LeadingState.FOLLOWING
        self.holder: KeyHolder | None = None
        """Who has the key, as far as is known; myself from CAMPAIGNING's success on."""
        self.gone: KeyHolder | None = None
        """Whose process has ended. In an etcd that was put back to a snapshot, a key of the same
        revision is another one's.
        """
        self._process = process
        #: No campaign of mine before it.
        self._not_before_us = 0
        #: The lease was kept at, and lasts for.
        self._kept_us = self._lease_us = 0
        #: Whom I unseated last, and no sooner again than.
        self._unseated: KeyHolder | None = None
        self._again_us = 0

    def handle(self, event: LeadingEvent) -> list[LeadingAction]:
        """What to do now. An event that does not fit the state is late, and changes nothing."""
        match event:
            case Ticked():
                return self._tick(event.now_us)
            case HolderSeen():
                return self._see(event.now_us, event.holder)
            case HolderGone():
                self.gone = event.holder
                return self._unseat(event.now_us, event.holder)
            case CampaignEnded():
                return self._campaigned(event)
            case ImageLoaded() if self.state is LeadingState.LOADING:
                self.state = LeadingState.LEADING
                return [Lead()]
            case TermKept() if self._has_term:
                self._kept_us = max(self._kept_us, event.now_us)
            case TermLost() if self._has_term:
                return self._end(event.why, finish=False)
            case StepDownAsked() if self._has_term:
                self._not_before_us = event.now_us + AFTER_YOU_US
                return self._end("it was asked to step down", finish=True)
            case TermEnded() if self.state is LeadingState.DEPOSED:
                self.state = LeadingState.FOLLOWING
                self.holder = None
        return []

    @property
    def _has_term(self) -> bool:
        return self.state in (LeadingState.LOADING, LeadingState.LEADING)

    @property
    def leader(self) -> KeyHolder | None:
        """Who else leads, as far as is known: to watch, and to send everybody to."""
        if self.state is not LeadingState.FOLLOWING or self.holder is None:
            return None
        leads = self.holder.process != self._process and self.holder != self.gone
        return self.holder if leads else None

    @property
    def due_us(self) -> int | None:
        """When Ticked is due; None: nothing comes by time alone."""
        return self._kept_us + self._lease_us if self._has_term else None

    def _tick(self, now_us: int) -> list[LeadingAction]:
        if self._has_term and now_us - self._kept_us >= self._lease_us:
            seconds = (now_us - self._kept_us) / US_PER_S
            return self._end(f"its lease was not kept for {seconds:.1f} s", finish=False)
        return []

    def _see(self, now_us: int, holder: KeyHolder | None) -> list[LeadingAction]:
        match self.state:
            case LeadingState.FOLLOWING:
                self.holder = holder
                if holder is None:
                    return self._campaign(now_us)
                if holder.process == self._process:
                    return self._unseat(now_us, holder)
            case LeadingState.LOADING | LeadingState.LEADING:
                assert self.holder is not None
                mine = self.holder.revision, self._process
                if holder is None or (holder.revision, holder.process) != mine:
                    return self._end(_lost_to(holder), finish=False)
        return []

    def _campaign(self, now_us: int) -> list[LeadingAction]:
        if now_us < self._not_before_us:
            return []
        self.state = LeadingState.CAMPAIGNING
        self._not_before_us = now_us + RETRY_US
        return [Campaign()]

    def _unseat(self, now_us: int, holder: KeyHolder) -> list[LeadingAction]:
        """Only who has the key as far as I know, and not at every look."""
        if self.state is not LeadingState.FOLLOWING or holder != self.holder:
            return []
        if holder == self._unseated and now_us < self._again_us:
            return []
        self._unseated, self._again_us = holder, now_us + RETRY_US
        return [Unseat(holder.revision)]

    def _campaigned(self, event: CampaignEnded) -> list[LeadingAction]:
        assert self.state is LeadingState.CAMPAIGNING
        if event.won is None:
            self.state = LeadingState.FOLLOWING
            return []
        self.state = LeadingState.LOADING
        self.holder = event.won
        self._kept_us, self._lease_us = event.now_us, event.lease_us
        return [Load()]

    def _end(self, why: str, *, finish: bool) -> list[LeadingAction]:
        self.state = LeadingState.DEPOSED
        return [EndTerm(why, finish)]


def _lost_to(holder: KeyHolder | None) -> str:
    if holder is None:
        return "its lease ran out"
    return f"{holder.id or 'another coordinator'} leads in term {holder.term}"
