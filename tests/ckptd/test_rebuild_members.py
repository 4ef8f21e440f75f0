"""A catalog that is made again knows the cluster's targets: the maps on those that answer say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt.base.errors import Unavailable
from ckpt.base.ids import CatalogPosition, TargetId
from ckpt.format.documents.cluster_map import MapEntry, encode_map, make_map
from ckpt.protocol.coordinator.catalog import TargetSeen, TargetStanding
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.target.notes.map_note import MAP_FILE
from ckptd.catalog.rebuild import Rebuilt, RestingTarget, rebuild, write_rebuilt
from ckptd.target.identity import FILE_NAME
from tests.ckptd.catalogs import opened
from tests.ckptd.test_rebuild_catalog import CLUSTER, checkpoint, commit

STANDINGS = {"t0": "in", "t1": "draining", "t2": "out", "t3": "removed"}


def incarnation(id: str) -> bytes:
    return id.encode().ljust(16, b".")


def target(folder: Path, id: str) -> Path:
    """A directory of this target."""
    made = folder / id
    made.mkdir(parents=True, exist_ok=True)
    values = {"target": id, "cluster": CLUSTER, "incarnation": incarnation(id).hex()}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in values.items()]
    (made / FILE_NAME).write_text("".join(lines))
    return made


def put_map(
    folder: Path, term: int, standings: dict[str, str], cluster: str = CLUSTER,
    groups: dict[TargetId, int] | None = None,
) -> None:  # fmt: skip
    entries = tuple(
        MapEntry(TargetId(id), f"p/r/{id}/d", f"/data/{id}", incarnation(id), standing)
        for id, standing in standings.items()
    )
    map = make_map(cluster, CatalogPosition(term, 1), entries, groups)
    (folder / MAP_FILE).write_bytes(encode_map(map))


def made_again(*folders: Path, backup: CatalogImage | None = None) -> Rebuilt:
    return rebuild(CLUSTER, [RestingTarget(folder, CLUSTER) for folder in folders], backup)


def standings(found: Rebuilt) -> dict[str, str]:
    return {id: seen.standing.value for id, seen in found.image.targets.items()}


def test_all_are_known_and_who_did_not_answer_is_absent(tmp_path: Path) -> None:
    t0, t1 = target(tmp_path, "t0"), target(tmp_path, "t1")
    commit(t0, checkpoint(1))
    put_map(t0, 5, STANDINGS)
    found = made_again(t0, t1)
    assert standings(found) == {"t0": "in", "t1": "draining", "t2": "absent", "t3": "removed"}
    seen = found.image.targets[TargetId("t0")]
    assert seen == TargetSeen(TargetId("t0"), "p/r/t0/d", "/data/t0", incarnation("t0"))
    assert (found.unreachable, found.image.rebuilt_from) == ((), 3), "two, and one was removed"
    write_rebuilt(tmp_path / "c", found)
    with opened(tmp_path / "c", CLUSTER, CLUSTER) as catalog:
        assert catalog.image.targets == found.image.targets


def test_the_newest_map_counts_and_what_one_of_them_removed_is_removed(tmp_path: Path) -> None:
    t0, t1, t2 = (target(tmp_path, id) for id in ("t0", "t1", "t2"))
    put_map(t0, 5, {**STANDINGS, "t4": "removed"})
    put_map(t1, 7, {**STANDINGS, "t1": "in"})
    put_map(t2, 9, {"t9": "out"}, cluster="another")
    found = made_again(t0, t1, t2)
    assert standings(found) == {
        "t0": "in", "t1": "in", "t2": "out", "t3": "removed", "t4": "removed",
    }  # fmt: skip


def test_a_target_that_was_removed_is_not_heard(tmp_path: Path) -> None:
    """What was deleted since lies there still, and no tombstone of it is anywhere."""
    t0, t3 = target(tmp_path, "t0"), target(tmp_path, "t3")
    put_map(t0, 5, STANDINGS)
    put_map(t3, 2, dict.fromkeys(STANDINGS, "in"))
    commit(t3, checkpoint(1))
    found = made_again(t0, t3)
    assert (found.committed, found.refused) == ((), ())
    assert [text.split(": ")[1] for text in found.left_out] == [
        "target t3 was removed from this cluster"
    ]
    with pytest.raises(Unavailable, match="t3 was removed"):
        made_again(t3, backup=CatalogImage(4, targets=found.image.targets))


def test_a_target_is_waited_for_once_however_often_it_was_named(tmp_path: Path) -> None:
    """By two of its addresses, or although it was removed. Else more were waited for than there
    are, and nobody was ever served.
    """
    t0, t1, t2, t3 = (target(tmp_path, id) for id in ("t0", "t1", "t2", "t3"))
    put_map(t0, 5, STANDINGS)
    gone = tmp_path / "nobody"
    named_once = made_again(t0, t1, t2, gone).image.rebuilt_from
    assert named_once == 5, "four, and one was removed"
    assert made_again(t0, t1, t0, t2, t1, gone).image.rebuilt_from == named_once
    assert made_again(t0, t1, t2, t3, gone).image.rebuilt_from == named_once


def test_a_damaged_map_and_none_say_nothing(tmp_path: Path) -> None:
    t0, t1 = target(tmp_path, "t0"), target(tmp_path, "t1")
    (t0 / MAP_FILE).write_bytes(b"CKPA" + bytes(60))
    assert standings(made_again(t0, t1)) == {}


def test_a_copy_of_the_catalog_adds_targets_and_who_was_removed(tmp_path: Path) -> None:
    t0 = target(tmp_path, "t0")
    put_map(t0, 5, {"t0": "in", "t1": "draining", "t2": "out"})
    backup = CatalogImage(4)
    for id, standing in (
        ("t0", TargetStanding.OUT), ("t2", TargetStanding.REMOVED), ("t8", TargetStanding.IN),
    ):  # fmt: skip
        seen = TargetSeen(TargetId(id), "p/r/h/d", "/d", standing=standing)
        backup.targets[seen.target] = seen
    found = made_again(t0, backup=backup)
    assert standings(found) == {"t0": "in", "t1": "absent", "t2": "removed", "t8": "absent"}


def test_placement_groups_are_those_of_the_newest_map_that_has_any(tmp_path: Path) -> None:
    """The newest may be of an earlier version, which has led for a while."""
    t0, t1, t2 = (target(tmp_path, id) for id in ("t0", "t1", "t2"))
    old, new = {TargetId("t0"): 1, TargetId("t1"): 1}, {TargetId("t0"): 0, TargetId("t1"): 1}
    put_map(t0, 5, STANDINGS, groups=old)
    put_map(t1, 7, STANDINGS, groups=new)
    put_map(t2, 9, STANDINGS)
    found = made_again(t0, t1, t2)
    assert found.image.groups == new
    write_rebuilt(tmp_path / "c", found)
    with opened(tmp_path / "c", CLUSTER, CLUSTER) as catalog:
        assert catalog.image.groups == new


def test_where_no_map_has_placement_groups_a_copy_of_the_catalog_may(tmp_path: Path) -> None:
    t0 = target(tmp_path, "t0")
    put_map(t0, 5, STANDINGS)
    backup = CatalogImage(4, groups={TargetId("t0"): 3})
    assert made_again(t0).image.groups == {}
    assert made_again(t0, backup=backup).image.groups == backup.groups
