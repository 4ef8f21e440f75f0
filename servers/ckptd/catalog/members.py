"""Which targets has the cluster, and who of those that answer counts, for a catalog made again?

The maps that they keep say so. The newest one counts. What one of them calls removed is removed: a
map is sent when that is durable for good. Who is here and removed is not heard: what was deleted
since may still lie there, and its tombstones are gone from all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ckpt.base.errors import CkptError, Refused, Unavailable
from ckpt.base.ids import TargetId
from ckpt.format.documents.cluster_map import ClusterMap, MapEntry
from ckpt.protocol.coordinator.catalog import TargetSeen, TargetStanding
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.sources import Holdings, TargetSource

_REMOVED = TargetStanding.REMOVED


@dataclass(slots=True)
class Heard:
    """What sources said."""

    held: list[tuple[TargetSource, Holdings]] = field(default_factory=list)
    known: dict[TargetId, TargetSeen] = field(default_factory=dict)
    groups: dict[TargetId, int] = field(default_factory=dict)
    unreachable: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def hear(cluster: str, sources: Sequence[TargetSource], backup: CatalogImage | None) -> Heard:
    """Ask every source. Raises Unavailable when no source that counts answers."""
    heard, answers = Heard(), []
    for source in sources:
        try:
            answers.append((source, source.holdings()))
        except CkptError as error:
            heard.unreachable.append(f"{source.name}: {error}")
    maps = _maps_of(cluster, (holdings.map for _, holdings in answers))
    known = _known_targets(maps)
    heard.groups = next((map.groups for map in reversed(maps) if map.packed_groups), {})
    if backup is not None:
        heard.groups = heard.groups or backup.groups
        known = _with_backup(known, backup.targets)
    for source, holdings in answers:
        try:
            _check_member(known, holdings.target)
            heard.held.append((source, holdings))
        except Refused as error:
            heard.left_out.append(f"{source.name}: {error.message}")
    if not heard.held:
        texts = [*heard.unreachable, *heard.left_out]
        raise Unavailable(f"no target answers: {'; '.join(texts) or 'none was named'}")
    heard.known = _with_absent(known, {holdings.target for _, holdings in heard.held})
    return heard


def at_rest(known: TargetSeen | None, seen: TargetSeen) -> TargetSeen:
    """What its directory says, and how it stands."""
    if known is None or known.standing is _REMOVED:
        return known or seen
    return replace(seen, standing=known.standing)


def _maps_of(cluster: str, maps: Iterable[ClusterMap | None]) -> list[ClusterMap]:
    """Its own, the newest last."""
    own = (map for map in maps if map is not None and map.cluster == cluster)
    return sorted(own, key=lambda map: map.version)


def _known_targets(found: Sequence[ClusterMap]) -> dict[TargetId, TargetSeen]:
    """Every target that the cluster has had; empty where nobody has a map of it."""
    removed = {
        entry.target: _seen(entry)
        for map in found
        for entry in map.targets
        if entry.standing == _REMOVED.value
    }
    newest = {entry.target: _seen(entry) for entry in found[-1].targets} if found else {}
    return newest | removed


def _with_backup(
    known: Mapping[TargetId, TargetSeen], backup: Mapping[TargetId, TargetSeen]
) -> dict[TargetId, TargetSeen]:
    """The maps go before a copy of the catalog, but for what that calls removed."""
    removed = {id: seen for id, seen in backup.items() if seen.standing is _REMOVED}
    return {**backup, **known, **removed}


def _check_member(known: Mapping[TargetId, TargetSeen], target: TargetId) -> None:
    """Raises Refused for one that was removed."""
    seen = known.get(target)
    if seen is not None and seen.standing is _REMOVED:
        raise Refused(f"target {target} was removed from this cluster", hint="leave it out")


def _with_absent(
    known: Mapping[TargetId, TargetSeen], here: Collection[TargetId]
) -> dict[TargetId, TargetSeen]:
    """Those that are not here are absent until they come; how they stood else is not kept."""
    return {
        id: seen
        if id in here or seen.standing is _REMOVED
        else replace(seen, standing=TargetStanding.ABSENT)
        for id, seen in known.items()
    }


def _seen(entry: MapEntry) -> TargetSeen:
    """A standing of a later version is none that a target could be left with."""
    try:
        standing = TargetStanding(entry.standing)
    except ValueError:
        standing = TargetStanding.IN
    return TargetSeen(
        entry.target, entry.domain, entry.directory, entry.incarnation, standing=standing
    )
