"""What `target.toml` says: made once, read by every later version, never guessed."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckpt.base.limits import INCARNATION_BYTES
from ckptd.target.identity import FILE_NAME, TargetFile, adopt_identity, place_of, read_target_file

CLUSTER = "c1"
OLD = f'target = "t3"\ncluster = "{CLUSTER}"\n'


def adopt(directory: Path, id: str = "t3") -> tuple[TargetFile, list[str]]:
    """The identity, and what was reported."""
    reports: list[str] = []

    async def adopted() -> TargetFile | None:
        return await adopt_identity(
            directory, id, CLUSTER, "127.0.0.1:1", b"s" * 32, asyncio.Event(),
            lambda _level, text, _fields: reports.append(text),
        )  # fmt: skip

    found = asyncio.run(adopted())
    assert found is not None
    return found, reports


def test_an_incarnation_is_made_once_and_for_each_directory_another(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    made, _ = adopt(one)
    assert len(made.incarnation) == INCARNATION_BYTES
    assert adopt(one)[0] == made == read_target_file(one)
    assert adopt(two)[0].incarnation != made.incarnation


@pytest.mark.parametrize("inside", ["columns", "aside/deep", "another"])
def test_a_directory_inside_a_target_s_is_no_target(tmp_path: Path, inside: str) -> None:
    """What the target around it finds there is not its own, and it may delete it."""
    adopt(tmp_path)
    directory = tmp_path / inside
    directory.mkdir(parents=True)
    with pytest.raises(Refused, match=f"{directory} is inside {tmp_path}, which is target t3"):
        adopt(directory, "t4")
    assert read_target_file(directory) is None


def test_the_directory_of_a_coordinator_or_of_a_local_cluster_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "coordinator.lock").touch()
    with pytest.raises(Refused, match=f"{tmp_path} is a coordinator's directory"):
        adopt(tmp_path)
    assert read_target_file(tmp_path) is None
    targets = tmp_path / "targets"
    targets.mkdir()
    adopt(targets)


def test_what_was_begun_there_by_an_earlier_version_is_served(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(OLD)
    (tmp_path / "coordinator.lock").touch()
    assert adopt(tmp_path)[0].target == "t3"


def test_a_directory_of_the_version_before_gets_one_and_keeps_the_rest(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(OLD)
    assert read_target_file(tmp_path) == TargetFile("t3", CLUSTER)
    made, reports = adopt(tmp_path)
    assert (made.target, made.cluster, reports) == ("t3", CLUSTER, [])
    assert len(made.incarnation) == INCARNATION_BYTES
    assert read_target_file(tmp_path) == made


def test_a_device_that_takes_no_writes_is_served_without_one(tmp_path: Path) -> None:
    """Here a directory stands where the new file would be written aside."""
    (tmp_path / FILE_NAME).write_text(OLD)
    (tmp_path / f".{FILE_NAME}.{os.getpid()}").mkdir()
    known, reports = adopt(tmp_path)
    assert known == TargetFile("t3", CLUSTER)
    assert reports == ["no incarnation could be written"]
    assert (tmp_path / FILE_NAME).read_text() == OLD


@pytest.mark.parametrize(
    "text", [OLD + 'incarnation = "xyz"\n', OLD + 'incarnation = "ab"\n', OLD + "incarnation = 7\n"]
)
def test_what_is_no_incarnation_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(Refused, match=FILE_NAME):
        adopt(tmp_path)
    assert (tmp_path / FILE_NAME).read_text() == text


def test_a_place_stays_with_its_directory_and_no_copy_has_it(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.mkdir()
    place = place_of(original)
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    assert place_of(copy) != place
    os.rename(original, tmp_path / "renamed")
    assert place_of(tmp_path / "renamed") == place
    (tmp_path / "link").symlink_to(tmp_path / "renamed")
    assert place_of(tmp_path / "link") == place
