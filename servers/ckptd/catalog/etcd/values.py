"""What does each key of an image hold, and which keys may an entry change?

A key is a function of the image alone, so that what is stored is the fold, whatever led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from ckpt.base.ids import CheckpointId, Home, LaunchNumber, Rank, RunName, Step, TargetId
from ckpt.format.messages.hello import OLDEST_VERSION
from ckpt.format.messages.keeping import encode_retention
from ckpt.format.messages.repairs import RepairRules
from ckpt.plan.drains import Held
from ckpt.protocol.coordinator.catalog import (
    BEGINNING,
    NO_GENERATION,
    CatalogEntry,
    CatalogOutdated,
    CatalogReached,
    CheckpointDeleted,
    CheckpointLabeled,
    CheckpointTombstoned,
    ColumnsMoved,
    LabelsSent,
    LaunchEntered,
    LaunchForgotten,
    LaunchNumbered,
    LaunchResolved,
    RowForgotten,
    StepForgotten,
    TargetSeen,
)
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.said import (
    RepairSaid,
    RetentionSaid,
    TargetsGrouped,
    UpgradeFinished,
)
from ckpt.protocol.coordinator.stores import (
    CheckpointDrained,
    Page,
    StoreForgotten,
    StoreHolds,
    StoreOpened,
    page_of,
)
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.keys import (
    LaunchValue,
    RebuiltValue,
    RowValue,
    StoreValue,
    TargetValue,
)
from ckptd.catalog.groups import encode_groups
from ckptd.catalog.stored_pages import StoredPages, only_page

Values = dict[str, bytes | None]
"""Of keys; None: there is none."""


@dataclass(frozen=True, slots=True)
class KeyedValue:
    """One key, and how its value comes from an image."""

    name: str
    value: Callable[[CatalogImage], bytes | None]


def whole(image: CatalogImage) -> Iterator[tuple[str, bytes]]:
    """All keys that there are of an image, with their values; those of a kind together."""
    for cell in _all_of(image):
        value = cell.value(image)
        if value is not None:
            yield cell.name, value


def count_of(image: CatalogImage) -> int:
    """How many these are."""
    return sum(
        (
            sum(value(image) is not None for value in _ALONE.values()),
            *(1 + bool(row.record) for row in image.rows.values()),
            *(len(each) for each in (image.labels, image.unsettled, image.passed_over)),
            *(len(pages) for pages in image.moves.values()),
            *(
                1 + len(row.processes) + len(row.resolved) + len(row.by_number)
                for row in image.launches.values()
            ),
            *(
                1 + sum(1 + len(_HeldOfRun(url, run).pages(image)) for run in store.stored)
                for url, store in image.stores.items()
            ),
            *(len(each) for each in (image.targets, image.retentions)),
        )
    )


def _all_of(image: CatalogImage) -> Iterator[KeyedValue]:
    """Of what the image has; some are of nothing."""
    yield from (KeyedValue(name, value) for name, value in _ALONE.items())
    ids = {*image.rows, *image.labels, *image.unsettled, *image.passed_over}
    for kind in keys.OF_CHECKPOINTS:
        yield from (_of_checkpoint(kind, id) for id in sorted(ids))
    for id in image.moves:
        yield from _all_moves(image, id)
    for run, number in image.launches:
        yield from _launch(image, run, number)
    for url, store in image.stores.items():
        yield _store(url)
        yield from (cell for run in store.stored for cell in _HeldOfRun(url, run).all(image))
    yield from map(_target, image.targets)
    yield from map(_retention, image.retentions)


def touched(entry: CatalogEntry, image: CatalogImage) -> Iterator[KeyedValue]:
    """All that the entry may change in the image as it is before."""
    match entry:
        case CatalogReached():
            yield KeyedValue(keys.POSITION, _position)
        case CatalogOutdated():
            yield KeyedValue(keys.OUTDATED, _outdated)
        case TargetSeen():
            yield _target(entry.target)
        case RepairSaid():
            yield KeyedValue(keys.REPAIR, _repair)
        case TargetsGrouped():
            yield KeyedValue(keys.GROUPS, _groups)
        case UpgradeFinished():
            yield KeyedValue(keys.PROTOCOL, _protocol)
        case RetentionSaid():
            yield _retention(entry.run)
        case LabelsSent() | CheckpointLabeled():
            yield from _labels(entry.checkpoint)
        case LaunchNumbered() | LaunchForgotten():
            yield from _launch(image, entry.run, entry.launch)
        case LaunchEntered() | LaunchResolved() | StepForgotten():
            yield from _in_launch(image, entry)
        case StoreOpened() | StoreHolds() | CheckpointDrained() | StoreForgotten():
            yield from _of_store(image, entry)
        case RowForgotten():
            yield KeyedValue(keys.FORGOTTEN, _forgotten)
            yield from (_of_checkpoint(kind, entry.checkpoint) for kind in keys.OF_CHECKPOINTS)
            yield from _all_moves(image, entry.checkpoint)
        case ColumnsMoved():
            yield _moves(entry.checkpoint, entry.page)
        case CheckpointDeleted():
            yield from _all_moves(image, entry.checkpoint)
            yield from _row(entry.checkpoint)
        case CheckpointTombstoned():
            yield from _labels(entry.checkpoint)
            yield from _row(entry.checkpoint)
        case _:
            yield from _row(entry.checkpoint)


def _position(image: CatalogImage) -> bytes | None:
    return None if image.position == BEGINNING else str(image.position).encode()


def _forgotten(image: CatalogImage) -> bytes | None:
    return None if image.forgotten == NO_GENERATION else str(image.forgotten).encode()


def _outdated(image: CatalogImage) -> bytes | None:
    return image.outdated.encode() or None


def _rebuilt(image: CatalogImage) -> bytes | None:
    value = RebuiltValue(image.rebuilt_term, image.rebuilt_from)
    return msgspec.json.encode(value) if value != RebuiltValue(0, 0) else None


def _repair(image: CatalogImage) -> bytes | None:
    return msgspec.json.encode(image.repair) if image.repair != RepairRules() else None


def _groups(image: CatalogImage) -> bytes | None:
    return encode_groups(image.groups) if image.groups else None


def _protocol(image: CatalogImage) -> bytes | None:
    return str(image.protocol).encode() if image.protocol > OLDEST_VERSION else None


_ALONE: Final = {
    keys.POSITION: _position,
    keys.FORGOTTEN: _forgotten,
    keys.OUTDATED: _outdated,
    keys.REBUILT: _rebuilt,
    keys.REPAIR: _repair,
    keys.GROUPS: _groups,
    keys.PROTOCOL: _protocol,
}


# --------------------------------------------------------------------------- checkpoints


def _row(id: CheckpointId) -> Iterator[KeyedValue]:
    yield from (_of_checkpoint(kind, id) for kind in ("row", "record"))


def _labels(id: CheckpointId) -> Iterator[KeyedValue]:
    yield from (_of_checkpoint(kind, id) for kind in ("label", "unsettled"))


def _all_moves(image: CatalogImage, id: CheckpointId) -> Iterator[KeyedValue]:
    yield from (_moves(id, page) for page in image.moves.get(id, ()))


def _moves(id: CheckpointId, page: int) -> KeyedValue:
    return KeyedValue(keys.of_moves(id, page), lambda image: image.moves.get(id, {}).get(page))


def _of_checkpoint(kind: str, id: CheckpointId) -> KeyedValue:
    value = _OF_CHECKPOINT[kind]
    return KeyedValue(keys.of_checkpoint(kind, id), lambda image: value(image, id))


def _row_value(image: CatalogImage, id: CheckpointId) -> bytes | None:
    row = image.rows.get(id)
    if row is None:
        return None
    return msgspec.json.encode(
        RowValue(row.state, row.launch, row.launch_key, row.world_size, row.reason)
    )


def _record(image: CatalogImage, id: CheckpointId) -> bytes | None:
    row = image.rows.get(id)
    return None if row is None else row.record or None


def _label(image: CatalogImage, id: CheckpointId) -> bytes | None:
    return image.labels.get(id)


def _unsettled(image: CatalogImage, id: CheckpointId) -> bytes | None:
    return b"" if id in image.unsettled else None


def _passed_over(image: CatalogImage, id: CheckpointId) -> bytes | None:
    return b"" if id in image.passed_over else None


_OF_CHECKPOINT: Final = {
    "row": _row_value,
    "record": _record,
    "label": _label,
    "unsettled": _unsettled,
    "passed_over": _passed_over,
}


# --------------------------------------------------------------------------- launches


def _launch(image: CatalogImage, run: RunName, number: LaunchNumber) -> Iterator[KeyedValue]:
    """With all below it."""
    yield KeyedValue(keys.of_launch(run, number), lambda image: _launch_value(image, run, number))
    row = image.launches.get((run, number))
    if row is not None:
        yield from (_in(run, number, "rank", rank) for rank in row.processes)
        yield from (_in(run, number, "turn", turn) for turn in row.resolved)
        yield from (_in(run, number, "step", step) for step in row.by_number)


def _launch_value(image: CatalogImage, run: RunName, number: LaunchNumber) -> bytes | None:
    row = image.launches.get((run, number))
    return None if row is None else msgspec.json.encode(LaunchValue(row.key, row.world_size))


def _in_launch(
    image: CatalogImage, entry: LaunchEntered | LaunchResolved | StepForgotten
) -> Iterator[KeyedValue]:
    run, number = entry.run, entry.launch
    match entry:
        case LaunchEntered():
            yield _in(run, number, "rank", entry.rank)
        case LaunchResolved() if not entry.by_number:
            row = image.launches.get((run, number))
            older = [] if row is None else list(row.resolved)
            yield from (_in(run, number, "turn", turn) for turn in {*older, entry.turn})
        case LaunchResolved():
            yield _in(run, number, "step", entry.checkpoint.step)
        case StepForgotten():
            yield _in(run, number, "step", entry.step)


def _in(run: RunName, number: LaunchNumber, kind: str, index: int) -> KeyedValue:
    def value(image: CatalogImage) -> bytes | None:
        row = image.launches.get((run, number))
        if row is None:
            return None
        if kind == "rank":
            process = row.processes.get(Rank(index))
            return None if process is None else process.encode()
        turn = kind == "turn"
        settled = row.resolved.get(index) if turn else row.by_number.get(Step(index))
        return None if settled is None else str(Home.of(settled)).encode()

    return KeyedValue(f"{keys.of_launch(run, number)}/{kind}/{index}", value)


# --------------------------------------------------------------------------- object stores


def _of_store(
    image: CatalogImage, entry: StoreOpened | StoreHolds | CheckpointDrained | StoreForgotten
) -> Iterator[KeyedValue]:
    match entry:
        case StoreOpened():
            yield _store(entry.policy.url)
        case StoreHolds(url, run, stored):
            yield from _HeldOfRun(url, run).replaced(image, stored)
        case CheckpointDrained(url, id):
            held = _HeldOfRun(url, id.run)
            yield held.own()
            yield held.grown(page_of(id.generation))
        case StoreForgotten():
            yield _store(entry.url)
            known = image.stores.get(entry.url)
            for run in known.stored if known else ():
                yield from _HeldOfRun(entry.url, run).all(image)


def _store(url: str) -> KeyedValue:
    def value(image: CatalogImage) -> bytes | None:
        known = image.stores.get(url)
        if known is None:
            return None
        policy = known.policy
        return msgspec.json.encode(StoreValue(policy.every, policy.keep, policy.runs))

    return KeyedValue(keys.of_store(url), value)


class _HeldOfRun:
    """What a store has of a run: a key of its own, and one for each page."""

    def __init__(self, url: str, run: RunName) -> None:
        self._url, self._run = url, run
        self._name = f"{keys.of_store(url)}/{keys.quoted(run)}"
        self._pages = StoredPages()

    def own(self) -> KeyedValue:
        return KeyedValue(self._name, lambda image: None if self.of(image) is None else b"")

    def all(self, image: CatalogImage) -> Iterator[KeyedValue]:
        yield self.own()
        yield from map(self.page, self.pages(image))

    def replaced(self, image: CatalogImage, stored: Iterable[Held]) -> Iterator[KeyedValue]:
        """Where all of it is another set."""
        yield self.own()
        changed = (self.of(image) or set()) ^ set(stored)
        yield from map(self.page, sorted({page_of(generation) for _, generation in changed}))

    def page(self, page: Page) -> KeyedValue:
        return self._at(page, lambda image: self._pages.spelled(self.of(image), page))

    def grown(self, page: Page) -> KeyedValue:
        """Where one is added to the set."""
        return self._at(page, lambda image: only_page(self.of(image) or set(), page))

    def pages(self, image: CatalogImage) -> list[Page]:
        return self._pages.there_are(self.of(image))

    def of(self, image: CatalogImage) -> set[Held] | None:
        known = image.stores.get(self._url)
        return None if known is None else known.stored.get(self._run)

    def _at(self, page: Page, value: Callable[[CatalogImage], bytes | None]) -> KeyedValue:
        return KeyedValue(f"{self._name}/{page[0]}.{page[1]}", value)


# --------------------------------------------------------------------------- targets and rules


def _target(id: TargetId) -> KeyedValue:
    def value(image: CatalogImage) -> bytes | None:
        seen = image.targets.get(id)
        if seen is None:
            return None
        return msgspec.json.encode(
            TargetValue(seen.domain, seen.directory, seen.incarnation, seen.place, seen.standing)
        )

    return KeyedValue(keys.of_target(id), value)


def _retention(run: RunName) -> KeyedValue:
    def value(image: CatalogImage) -> bytes | None:
        rules = image.retentions.get(run)
        return None if rules is None else encode_retention(rules)

    return KeyedValue(keys.of_retention(run), value)
