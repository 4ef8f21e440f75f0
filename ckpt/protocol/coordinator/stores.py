"""Object stores in the catalog: its entries of them, and the fold of these."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.plan.drains import StorePolicy


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """Checkpoints are drained to this object store: the queue for it stands."""

    policy: StorePolicy


@dataclass(frozen=True, slots=True)
class StoreHolds:
    """All that a store has of one run, as a worker found it there."""

    url: str
    run: RunName
    stored: tuple[tuple[Step, Generation], ...]


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
    stored: dict[RunName, set[tuple[Step, Generation]]] = field(default_factory=dict)
    """What is committed there."""


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
            stores[url].stored[run] = set(stored)
        case CheckpointDrained(url, id) if url in stores:
            stores[url].stored.setdefault(id.run, set()).add((id.step, id.generation))
        case StoreForgotten(url):
            stores.pop(url, None)
