"""A target keeps the cluster's map for a catalog that is made again from what targets have."""

from __future__ import annotations

import pytest

from ckpt.base.ids import CatalogPosition, TargetId
from ckpt.format.documents.cluster_map import ClusterMap, MapEntry, encode_map, make_map
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.targets import AskMap, KeepMap, MapKept, MapTold, RegisterTarget
from ckpt.protocol.target.notes.map_note import MAP_FILE
from ckpt.testing.disk import Fault, Keep
from tests.protocol.target_world import CLUSTER, COORDINATOR, READER, TargetWorld


def made(number: int = 1, cluster: str = CLUSTER) -> ClusterMap:
    entry = MapEntry(TargetId("t1"), "p/r/h/d", "/data/t1", b"i" * 16, "in")
    other = MapEntry(TargetId("t0"), "p/r/h/e", "/data/t0", b"j" * 16, f"standing {number}")
    return make_map(cluster, CatalogPosition(4, number), (entry, other))


def keep(world: TargetWorld, map: ClusterMap) -> list[Message]:
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, KeepMap(1), encode_map(map))
    return world.messages(COORDINATOR)


def kept(world: TargetWorld) -> bytes:
    world.sent.clear()
    world.tell(READER, AskMap())
    (send,) = [each for each in world.sent if isinstance(each.message, MapTold)]
    assert isinstance(send.message, MapTold)
    assert send.message.target == world.machine.target
    return bytes(send.bulk)


def registered(world: TargetWorld) -> bytes | None:
    (said,) = [each for each in world.messages(COORDINATOR) if isinstance(each, RegisterTarget)]
    return said.map


def test_it_is_durable_when_it_is_answered_and_the_next_process_says_which_it_has() -> None:
    world = TargetWorld()
    assert registered(world) == b""
    assert kept(world) == b""
    for number in (1, 2):
        assert keep(world, made(number)) == [MapKept()]
    world.disk.crash(Keep.NOTHING)
    then = TargetWorld(world.disk, boot=12)
    assert registered(then) == made(2).digest
    assert kept(then) == encode_map(made(2))


def test_one_that_was_not_written_leaves_the_one_before() -> None:
    world = TargetWorld()
    keep(world, made(1))
    world.disk.faults.append(Fault("sync_directory"))
    (failed,) = keep(world, made(2))
    assert isinstance(failed, Failed)
    assert kept(world) == encode_map(made(1))
    assert keep(world, made(3)) == [MapKept()]
    assert not [name for name in world.disk.list_directory("staging") if MAP_FILE in name]


@pytest.mark.parametrize("document", [b"", b"no map", encode_map(made(1, "another"))[:-1]])
def test_what_is_no_map_is_refused(document: bytes) -> None:
    world = TargetWorld()
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, KeepMap(1), document)
    (failed,) = world.messages(COORDINATOR)
    assert (type(failed), getattr(failed, "code", "")) == (Failed, "corrupt")
    assert kept(world) == b""


def test_a_map_of_another_cluster_and_one_of_a_lower_term_are_refused() -> None:
    world = TargetWorld(term=3)
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, KeepMap(3), encode_map(made(1, "another")))
    world.tell(COORDINATOR, KeepMap(2), encode_map(made(1)))
    codes = [getattr(each, "code", "") for each in world.messages(COORDINATOR)]
    assert codes == ["refused", "refused"]
    assert kept(world) == b""


def test_one_that_rots_is_none_and_is_given_again() -> None:
    world = TargetWorld()
    keep(world, made(1))
    world.disk.rot(MAP_FILE, 40)
    then = TargetWorld(world.disk, boot=12)
    assert registered(then) == b""
    assert [each.text for each in then.reports if "map" in each.text] == [
        "the cluster's map cannot be read"
    ]
    assert keep(then, made(1)) == [MapKept()]


def test_maps_that_say_the_same_have_one_digest_whoever_wrote_them() -> None:
    first = made(1)
    later = make_map(CLUSTER, CatalogPosition(9, 9), tuple(reversed(first.targets)))
    assert (later.digest, later.targets) == (first.digest, first.targets)
    assert made(2).digest != first.digest
