"""Object stores in the catalog: its entries of them, and the fold of these."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.ids import CheckpointId, Generation, RunName
from ckpt.plan.drains import Held, StorePolicy

Page = tuple[int, int]
"""Term and number, see `page_of`."""
PAGE_GENERATIONS: Final = 256
"""Of a term: what a store has of these is written together."""
CHANGED_PAGES_MAX: Final = 96
"""Most pages that one entry changes, so that a transaction of etcd takes it."""


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """Checkpoints are drained to this object store: the queue for it stands."""

    policy: StorePolicy


@dataclass(frozen=True, slots=True)
class StoreHolds:
    """All that a store has of one run, as a worker found it there."""

    url: str
    run: RunName
    stored: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class CheckpointDrained:
    """Committed in the store, every byte read back."""

    url: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class StoreForgotten:
    """Nothing is drained there any more."""

    url: str


@dataclass(slots=True)
class StoreRow:
    """All that is known of one object store."""

    policy: StorePolicy
    stored: dict[RunName, set[Held]] = field(default_factory=dict)
    """What is committed there; of no run nothing."""

    def found(self, run: RunName, stored: Collection[Held]) -> None:
        """This is all of a run."""
        self.stored.pop(run, None)
        if stored:
            self.stored[run] = set(stored)


def page_of(generation: Generation) -> Page:
    """Term and number of the page that it is in: each is as large at the end of a long run as at
    its begin.
    """
    return generation.term, generation.counter // PAGE_GENERATIONS


def tellings(known: Set[Held], stored: Set[Held]) -> Iterator[tuple[Held, ...]]:
    """What is to be written, one after the other, from what was known of a run to all that the
    store has: each changes CHANGED_PAGES_MAX pages at most, and claims nothing that neither does.
    """
    changed: dict[Page, set[Held]] = {}
    for one in known ^ stored:
        changed.setdefault(page_of(one[1]), set()).add(one)
    held, pages = set(known), sorted(changed)
    for start in range(0, len(pages), CHANGED_PAGES_MAX):
        for page in pages[start : start + CHANGED_PAGES_MAX]:
            held ^= changed[page]
        yield tuple(sorted(held))
    if not pages:
        yield tuple(sorted(stored))


def apply_drain(
    stores: dict[str, StoreRow],
    entry: StoreOpened | StoreHolds | CheckpointDrained | StoreForgotten,
) -> None:
    """Fold one entry; what comes late for a store that was forgotten changes nothing."""
    match entry:
        case StoreOpened(policy):
            known = stores.setdefault(policy.url, StoreRow(policy))
            known.policy = policy
        case StoreHolds(url, run, stored) if url in stores:
            stores[url].found(run, stored)
        case CheckpointDrained(url, id) if url in stores:
            stores[url].stored.setdefault(id.run, set()).add((id.step, id.generation))
        case StoreForgotten(url):
            stores.pop(url, None)
