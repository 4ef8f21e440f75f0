"""The image that the keys of a catalog hold: the inverse of `values`.

Keys of a kind that this version does not know are a later one's, and are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from ckpt.base.errors import CkptError, Corrupt
from ckpt.base.ids import (
    CatalogPosition,
    CheckpointId,
    Generation,
    LaunchNumber,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.messages.hello import OLDEST_VERSION
from ckpt.format.messages.keeping import ALL_STAYS, Retention, decode_retention
from ckpt.format.messages.repairs import decode_repair_rules
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.catalog import TargetSeen
from ckpt.protocol.coordinator.image import CatalogImage, CatalogRow, LaunchRow
from ckpt.protocol.coordinator.stores import StoreRow
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.keys import (
    LaunchValue,
    RebuiltValue,
    RowValue,
    StoreValue,
    TargetValue,
)
from ckptd.catalog.groups import decode_groups

_Value = TypeVar("_Value")


def load(term: int, pairs: Iterable[tuple[str, bytes]]) -> CatalogImage:
    """Of (name, value) in any order. Raises Corrupt naming the key that cannot be read."""
    image = CatalogImage(term, protocol=OLDEST_VERSION)
    # A key stands ahead of those below it, and a row's ahead of its documents'.
    for name, value in sorted(pairs, key=lambda pair: (not pair[0].startswith("row/"), pair[0])):
        try:
            _take(image, name, name.split("/"), value)
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError, CkptError) as error:
            raise Corrupt(f"the key {name!r} cannot be read: {error}") from error
    image.rows = {id: image.rows[id] for id in sorted(image.rows)}
    return image


def images_of(term: int, pairs: list[tuple[str, bytes]]) -> tuple[CatalogImage, CatalogImage]:
    """The same twice, of which neither is changed with the other: what cannot change is shared."""
    image = load(term, pairs)
    return image, copied(image)


def copied(image: CatalogImage) -> CatalogImage:
    """Another one that folds on its own. All that is taken apart here has entries that change it."""
    launches = {
        id: replace(
            row, processes=dict(row.processes), resolved=dict(row.resolved),
            by_number=dict(row.by_number),
        )
        for id, row in image.launches.items()
    }  # fmt: skip
    stores = {
        url: replace(row, stored={run: set(held) for run, held in row.stored.items()})
        for url, row in image.stores.items()
    }
    return replace(
        image, rows=dict(image.rows), targets=dict(image.targets), launches=launches, stores=stores,
        moves={id: dict(pages) for id, pages in image.moves.items()}, labels=dict(image.labels),
        unsettled=set(image.unsettled), retentions=dict(image.retentions),
        groups=dict(image.groups), passed_over=set(image.passed_over),
    )  # fmt: skip


def _take(image: CatalogImage, name: str, words: list[str], value: bytes) -> None:
    match words:
        case [kind, run, step, generation] if kind in keys.OF_CHECKPOINTS:
            _take_of_checkpoint(image, kind, _checkpoint(run, step, generation), value)
        case ["moved", run, step, generation, page]:
            pages = image.moves.setdefault(_checkpoint(run, step, generation), {})
            pages[int(page)] = value
        case ["launch", run, number, *below]:
            _take_of_launch(image, RunName(unquote(run)), LaunchNumber(int(number)), below, value)
        case ["store", url, *below]:
            _take_of_store(image, unquote(url), below, value)
        case ["target", target]:
            id_of, seen = TargetId(unquote(target)), _json(value, TargetValue)
            image.targets[id_of] = TargetSeen(
                id_of, seen.domain, seen.directory, seen.incarnation, seen.place, seen.standing
            )
        case ["retention", run]:
            image.retentions[RunName(unquote(run))] = _rules(value)
        case [keys.POSITION]:
            image.position = CatalogPosition(*map(int, value.decode().split(".")))
        case [keys.FORGOTTEN]:
            image.forgotten = Generation.parse(value.decode())
        case [keys.OUTDATED]:
            image.outdated = value.decode()
        case [keys.REPAIR]:
            image.repair = decode_repair_rules(value)
        case [keys.GROUPS]:
            image.groups = decode_groups(value)
        case [keys.PROTOCOL]:
            image.protocol = int(value)
        case [keys.REBUILT]:
            rebuilt = _json(value, RebuiltValue)
            image.rebuilt_term, image.rebuilt_from = rebuilt.term, rebuilt.targets


def _checkpoint(run: str, step: str, generation: str) -> CheckpointId:
    return CheckpointId(RunName(unquote(run)), Step(int(step)), Generation.parse(generation))


def _take_of_checkpoint(image: CatalogImage, kind: str, id: CheckpointId, value: bytes) -> None:
    match kind:
        case "row":
            row = _json(value, RowValue)
            image.rows[id] = CatalogRow(
                id, row.state, LaunchNumber(row.launch), row.launch_key, row.world_size,
                reason=row.reason,
            )  # fmt: skip
        case "record":
            image.rows[id] = replace(image.rows[id], record=value)
        case "label":
            image.labels[id] = value
        case "unsettled":
            image.unsettled.add(id)
        case "passed_over":
            image.passed_over.add(id)


def _take_of_launch(
    image: CatalogImage, run: RunName, number: LaunchNumber, below: list[str], value: bytes
) -> None:
    match below:
        case []:
            found = _json(value, LaunchValue)
            image.launches[(run, number)] = LaunchRow(found.key, found.world_size)
        case ["rank", rank]:
            image.launches[(run, number)].processes[Rank(int(rank))] = value.decode()
        case ["turn", turn]:
            image.launches[(run, number)].resolved[int(turn)] = _settled(run, value)
        case ["step", step]:
            image.launches[(run, number)].by_number[Step(int(step))] = _settled(run, value)


def _take_of_store(image: CatalogImage, url: str, below: list[str], value: bytes) -> None:
    match below:
        case []:
            found = _json(value, StoreValue)
            image.stores[url] = StoreRow(StorePolicy(url, found.every, found.keep, found.runs))
        case [run, *_]:
            # Its own key had all of it once; now its pages have.
            held = image.stores[url].stored.setdefault(RunName(unquote(run)), set())
            held.update(_home(word) for word in value.decode().split())


def _settled(run: RunName, value: bytes) -> CheckpointId:
    step, generation = _home(value.decode())
    return CheckpointId(run, step, generation)


def _home(text: str) -> tuple[Step, Generation]:
    step, _, generation = text.partition("#")
    return Step(int(step)), Generation.parse(generation)


def _rules(value: bytes) -> Retention:
    try:
        return decode_retention(value)
    except Corrupt:
        # Rules that cannot be read, as a later version's, count as lost: then all stays.
        return ALL_STAYS


def _json(value: bytes, kind: type[_Value]) -> _Value:
    return msgspec.json.decode(value, type=kind)
