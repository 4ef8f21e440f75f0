"""A step that rotted in the tier beyond repair, and that the drain has put into a directory."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

import ckpt
from ckpt.base.ids import Rank
from ckpt.objects.sinks.file_sink import FileSink
from tests.e2e.cluster import Cluster, command
from tests.e2e.ranks import done, end_with_stagers, every, launched, save_and_wait
from tests.objects.drainkit import (
    FILLER_BYTES,
    assert_same,
    draining,
    rot,
    save,
    state_of,
    wait_drained,
)


@pytest.fixture(scope="module")
def cluster(
    mark: str, tmp_path_factory: pytest.TempPathFactory, sink: FileSink
) -> Iterator[Cluster]:
    with draining(tmp_path_factory.mktemp("burst"), sink.url) as made:
        yield made


def test_the_newest_step_comes_from_the_store_and_is_fetched_back(
    cluster: Cluster, store: ckpt.Store, sink: FileSink
) -> None:
    for step in (1, 2):
        save(store, "rotten", step)
    wait_drained(sink, "rotten", 1, 2)
    command("tag", "rotten@2", "best", "--store", cluster.url)
    command("pin", "rotten@2", "--store", cluster.url)
    rot(cluster, "rotten", 2)
    with ckpt.open(cluster.url, durable=sink.url) as other:
        with pytest.warns(UserWarning, match=r"rotten@2\S* is lost in the tier; .* from file://"):
            found = other.load("rotten", whole=True)
        assert_same(found, 2)
        with other.resolve("rotten", rank=1, world_size=2) as checkpoint:
            with pytest.warns(UserWarning, match="is lost in the tier"):
                mine = checkpoint.load()
            assert (checkpoint.step, checkpoint.source) == (2, "store")
            assert isinstance(mine, dict)
            assert mine["rng"].tolist() == [1, 2]
            with pytest.warns(UserWarning, match="is lost in the tier"):
                values = checkpoint.read(lambda contents: contents.values(Rank(0)))
            assert values["step"] == 2
    with pytest.raises(ckpt.Lost, match="the other ranks load it from file://"):
        store.load("rotten", whole=True)  # Of the same launch, and opened without `durable`.
    walks_back = pytest.warns(UserWarning, match="rotten@1.* is loaded instead of: rotten@2")
    with ckpt.open(cluster.url, launch="without a store") as another, walks_back:
        assert_same(another.load("rotten", whole=True), 1)
    line = ("fetch", "rotten@2", "--store", cluster.url)
    assert_dry_run_says_what_would_come(line, sink)
    dry = command(*line, "--dry-run", "--json").document()
    done = command(*line, "--json").document()
    assert (done["fetched"], dry["fetched"]) == (True, False)
    assert (done["store"], done["stored_bytes"]) == (dry["store"], dry["stored_bytes"])
    again = listed(cluster, "rotten")[-1]
    assert (again["names"], again["pinned"], again["state"]) == (["best"], True, "committed")
    assert "is in the tier already" in command(*line, "--dry-run").out
    assert command(*line, "--json").document()["in_tier"] is True
    with (
        ckpt.open(cluster.url, launch="behind the fetch") as another,
        another.resolve("rotten") as repaired,
    ):
        assert (repaired.step, repaired.skipped) == (2, ())
        assert_same(repaired.load(whole=True), 2)
        assert repaired.source != "store"


def test_damage_that_one_rank_meets_leaves_the_launch_on_its_step(
    cluster: Cluster, sink: FileSink
) -> None:
    with launched(cluster.url, 2, launch="torn 1") as team:
        for step in (1, 2):
            save_and_wait(team, "torn", step, version=step, filler_bytes=FILLER_BYTES)
        end_with_stagers(team)  # Whose memory would still hold step 2.
    wait_drained(sink, "torn", 1, 2)
    rot(cluster, "torn", 2, rank=1, at=500_000)
    with launched(cluster.url, 2, launch="torn 2", durable=sink.url) as (early, late):
        first = early.ask("load", run="torn", version=2, filler_bytes=FILLER_BYTES)
        second = late.ask("load", run="torn", version=2, filler_bytes=FILLER_BYTES)
        assert [(a["step"], a["equal"]) for a in (first, second)] == [(2, True)] * 2
        assert (first["source"], second["source"]) == ("tier", "store")
    with launched(cluster.url, 2, launch="torn 3", durable=sink.url) as team:
        loads = done(every(team, "load", run="torn", version=2, filler_bytes=FILLER_BYTES))
        assert [(a["step"], a["equal"], a["source"]) for a in loads] == [(2, True, "store")] * 2


def test_all_that_is_lost_is_fetched_with_its_names_pins_and_metrics(
    cluster: Cluster, sink: FileSink, tmp_path: Path
) -> None:
    known = {"loss": 0.5}
    with ckpt.open(cluster.url, launch="saves") as store:
        for step in (1, 2, 3):
            saves = [
                store.save("gone", step, state_of(r, step), rank=r, world_size=2, metrics=known)
                for r in range(2)
            ]
            for one in saves:
                one.wait(60.0)
        command("tag", "gone@2", "best", "--store", cluster.url)
        command("pin", "gone@2", "--store", cluster.url)
        wait_drained(sink, "gone", 1, 2, 3)
        for step in (2, 3):
            rot(cluster, "gone", step)
        line = ("export", "gone@2", str(tmp_path / "out"), "--format", "npz")
        command(*line, "--store", cluster.url, codes=(4,))
        assert_verify_says_stored(cluster, sink)
        states = {view["step"]: view["state"] for view in listed(cluster, "gone")}
        assert states == {1: "committed", 2: "stored", 3: "stored"}
        assert store.latest("gone") == 1
        line = ("fetch", "--lost", "gone", "--store", cluster.url)
        left = command(*line, "--json", codes=(11,)).document()["left"]
        assert [one["step"] for one in left] == [3, 2], "its trainer is there"
    with ckpt.open(cluster.url, durable=sink.url, launch="looks") as other:
        assert other.latest("gone") == 3
    dry = command(*line, "--dry-run", "--json").document()
    assert [one["step"] for one in dry["fetched"]] == [3, 2]
    assert "2 checkpoints fetched" in command(*line).out
    views = listed(cluster, "gone")
    assert [(view["step"], view["state"], view["metrics"]) for view in views] == [
        (step, "committed", known) for step in (1, 2, 3)
    ]
    assert [(view["names"], view["pinned"]) for view in views] == [
        ([], False), (["best"], True), ([], False),
    ]  # fmt: skip
    with ckpt.open(cluster.url, launch="after") as store:
        for step in (2, 3):
            assert_same(store.load("gone", step, whole=True), step)
    assert "0 checkpoints fetched" in command(*line).out


@pytest.mark.parametrize("run_name", ["files", "lost-files"])
def test_files_come_back_as_files(
    cluster: Cluster, sink: FileSink, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fsspec.filesystem("ckpt+local", directory=str(cluster.directory))
    names = {"a.bin": b"A" * 3_000_000, "sub/b c.bin": b"B" * 10, "empty": b""}
    contents = {f"{run_name}/7/{name}": content for name, content in names.items()}
    with files.transaction:
        for path, content in contents.items():
            with files.open(path, "wb") as file:
                file.write(content)
    wait_drained(sink, run_name, 7)
    rot(cluster, run_name, 7)
    command("verify", f"{run_name}@7", "--store", cluster.url, codes=(3,))
    assert not files.find(f"{run_name}/7")
    with pytest.raises(ckpt.Lost, match=r"is lost.*; it is in file://"):
        files.cat_file(next(iter(contents)))
    with monkeypatch.context() as environment:
        environment.setenv("CKPT_DURABLE", sink.url)
        with pytest.warns(UserWarning, match="is lost in the tier"):
            found = files.find(f"{run_name}/7")
        assert found == sorted(contents)
        with pytest.warns(UserWarning, match="is lost in the tier"):
            first = files.cat_file(found[0])
        assert first == contents[found[0]]
        with warnings.catch_warnings(action="ignore"):
            assert {path: files.cat_file(path) for path in found} == contents
    words = ("--lost", run_name) if run_name == "lost-files" else (f"{run_name}@7",)
    command("fetch", *words, "--store", cluster.url)
    files.close()
    assert {path: files.cat_file(path) for path in files.find(f"{run_name}/7")} == contents
    (view,) = listed(cluster, run_name)
    assert view["state"] == "committed"


def test_a_loose_file_comes_back_as_one(cluster: Cluster, sink: FileSink) -> None:
    files = fsspec.filesystem("ckpt+local", directory=str(cluster.directory))
    path, content = "loose/notes.txt", b"n" * 300_000
    with files.open(path, "wb") as file:
        file.write(content)
    wait_drained(sink, path, 0)
    rot(cluster, path, 0)
    command("verify", f"{path}@0", "--store", cluster.url, codes=(3,))
    command("fetch", f"{path}@0", "--store", cluster.url)
    files.close()
    assert files.cat_file(path) == content


def listed(cluster: Cluster, run_name: str) -> list[dict[str, object]]:
    found = command("ls", run_name, "--store", cluster.url, "--json").document()["steps"]
    assert isinstance(found, list)
    return found


def assert_verify_says_stored(cluster: Cluster, sink: FileSink) -> None:
    """Of step 2, which an export has met; of step 3, which nobody has; and once more."""
    line = ("verify", "--store", cluster.url)
    known = command(*line, "gone@2", codes=(3,)).out
    assert known.startswith("gone@2  stored\n")
    text = command(*line, "gone@3", codes=(3,)).out
    assert text.startswith("gone@3  stored  ")
    assert "  proved by the coordinator: " in text
    for said in (known, text):
        assert f"the tier has lost it, {sink.url} has it: ckpt fetch --lost gone saves" in said
    summary = json.loads(command(*line, "gone@3", "--json", codes=(3,)).out.splitlines()[-1])
    assert (summary["state"], summary["stored"]) == ("stored", [sink.url])


def assert_dry_run_says_what_would_come(line: tuple[str, ...], sink: FileSink) -> None:
    """Bytes, and from where; the state of the step stays what it was."""
    before = command("ls", *line[2:], "--json", codes=(0,)).document()["steps"]
    said = command(*line, "--dry-run").out
    lines = r"rotten@2 of 2 ranks would be fetched: \d\S* \S+ from (\S+)\nnothing was changed\n"
    found = re.fullmatch(lines, said)
    assert found is not None, said
    assert found[1].startswith(sink.url)
    assert "rotten" in found[1]
    assert command("ls", *line[2:], "--json", codes=(0,)).document()["steps"] == before
