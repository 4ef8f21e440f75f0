"""A directory that is to be another target of a local cluster, and what speaks against it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.aio.local_targets import TARGETS_MAX, leave_place, left_place, next_number, target_ids
from ckpt.base.errors import Refused
from ckpt_client.local.adding import LocalPlaces

MADE = 3


@pytest.fixture
def places(tmp_path: Path) -> LocalPlaces:
    for number in range(MADE):
        (tmp_path / "burst" / "targets" / f"t{number}").mkdir(parents=True)
    return LocalPlaces(tmp_path / "burst", MADE)


@pytest.fixture
def other_device() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


def test_an_empty_directory_of_another_device_is_taken(
    places: LocalPlaces, other_device: Path
) -> None:
    assert places.add(other_device / "burst", None, force=False) == "t3"
    assert places.place("t3").resolve() == other_device / "burst"
    assert places.ids == ("t0", "t1", "t2", "t3")


def test_one_of_the_same_device_is_taken_by_force_alone(
    places: LocalPlaces, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match="is on the device of target t0"):
        places.add(tmp_path / "more", None, force=False)
    with pytest.raises(Refused, match="is on the device of target t0"):
        places.add(None, None, force=False)
    assert places.ids == ("t0", "t1", "t2")
    assert not (tmp_path / "more").exists()
    assert places.add(tmp_path / "more", None, force=True) == "t3"
    assert places.add(None, None, force=True) == "t4"


def test_so_is_a_second_one_beside_one_that_was_added(
    places: LocalPlaces, other_device: Path
) -> None:
    places.add(other_device / "a", None, force=False)
    with pytest.raises(Refused, match="is on the device of target t3"):
        places.add(other_device / "b", None, force=False)


def test_one_in_use_is_taken_by_nobody(places: LocalPlaces, other_device: Path) -> None:
    (other_device / "data").mkdir()
    with pytest.raises(Refused, match="is in use: it has data"):
        places.add(other_device, None, force=True)
    (other_device / "file").touch()
    with pytest.raises(Refused, match="is no directory"):
        places.add(other_device / "file", None, force=True)
    places.add(other_device / "data", None, force=True)
    with pytest.raises(Refused, match="is target t3 already"):
        places.add(other_device / "data", None, force=True)


def test_a_new_file_system_is_empty(places: LocalPlaces, other_device: Path) -> None:
    (other_device / "lost+found").mkdir()
    assert places.add(other_device, None, force=False) == "t3"


def test_a_name_is_given_once(places: LocalPlaces, tmp_path: Path) -> None:
    assert places.add(tmp_path / "a", "t7", force=True) == "t7"
    for name, why in (("t7", "is a target"), ("t0", "is a target"), ("t5", "was a target")):
        with pytest.raises(Refused, match=why):
            places.add(tmp_path / "b", name, force=True)
    for name in ("x", "t", "t07", "t-1", "../t9", "t9.removed"):
        with pytest.raises(Refused, match="no name of a local target"):
            places.add(tmp_path / "b", name, force=True)
    assert places.add(tmp_path / "b", None, force=True) == "t8"


def test_one_that_leaves_keeps_its_bytes_and_its_number(
    places: LocalPlaces, tmp_path: Path
) -> None:
    places.add(tmp_path / "a", None, force=True)
    (tmp_path / "a" / "column").touch()
    for _ in "again":
        leave_place(places.directory, "t3")
    assert (tmp_path / "a" / "column").exists()
    assert target_ids(places.directory, MADE) == ("t0", "t1", "t2")
    assert next_number(places.directory, MADE) == 4


def test_one_of_the_first_leaves_likewise(places: LocalPlaces) -> None:
    (places.place("t1") / "column").touch()
    places.place("t0").rmdir()
    for id in ("t0", "t1"):
        leave_place(places.directory, id)
    assert target_ids(places.directory, MADE) == ("t2",)
    assert (left_place(places.directory, "t1") / "column").exists()
    with pytest.raises(Refused, match="was a target"):
        places.add(None, "t1", force=True)
    assert places.add(None, None, force=True) == "t3"


def test_a_cluster_has_so_many_at_most(places: LocalPlaces) -> None:
    for _ in range(TARGETS_MAX - MADE):
        places.add(None, None, force=True)
    with pytest.raises(Refused, match=f"{TARGETS_MAX} targets at most"):
        places.add(None, None, force=True)
