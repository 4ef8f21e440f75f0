"""Real targets read what they keep, when they are asked and by themselves: every region counts."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpt.base.limits import PAGE_BYTES
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import FRAGMENTS_OFFSET, decode_header, trailer_offset
from ckpt.protocol.target.at_rest.scrub_note import ScrubNote, decode_scrub_note
from tests.client.clikit import fill, flip, run
from tests.page_cache import forget_cached, pages_cached
from tests.waiting import ASKED_S, wait_until

BUSY_S = 120.0
RECORD_HEADER = ("record", "header 1")
SLOW = 1
"""Percent of the device: a pass over a few MiB takes seconds."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """DIR of a cluster of 4 targets, 2+1, which scrub when they are asked."""
    directory = tmp_path_factory.mktemp("scrub") / "burst"
    # What is found stays where it is: nobody makes it again meanwhile.
    directory.mkdir(mode=0o700)
    (directory / "coordinator.toml").write_text("repair = false\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKPT_TARGET__SCRUB", "false")
        fill(f"ckpt+local://{directory}?targets=4&code=2+1", "whole", (1,))
    yield directory
    run("local", "stop", str(directory))


@pytest.fixture
def store(directory: Path) -> str:
    return f"ckpt+local://{directory}"


def columns_of(directory: Path, name: str) -> list[Path]:
    return sorted((directory / "targets").glob(f"*/columns/{xxh3_128(name.encode()).hex()}-*"))


def documents_of(directory: Path, name: str, kind: str) -> list[Path]:
    prefix = f"{kind}-{xxh3_128(name.encode()).hex()}-"
    return sorted((directory / "targets").glob(f"*/documents/{prefix}*"))


def target_of(path: Path) -> str:
    return path.parent.parent.name


def summary(store: str, *ids: str, code: int) -> dict[str, Any]:
    """Of a pass that ended so."""
    ended = run("scrub", *ids, "--json", "--store", store)
    assert ended.code == code, ended.err
    value = json.loads(ended.out.splitlines()[-1])
    assert isinstance(value, dict)
    assert value["took_s"] > 0
    return value


def regions(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    """(target, kind of file, region) of all damage."""
    return {
        (each["target"], rot["damage"]["kind"], rot["damage"]["region"])
        for each in found["targets"]
        for rot in each["rot"]
    }


def targets_of(store: str) -> dict[str, dict[str, Any]]:
    status = run("status", "--json", "--store", store).document()
    return {each["id"]: each for each in status["targets"]}


def checks_of(store: str) -> dict[str, dict[str, Any]]:
    status = run("status", "--json", "--store", store).document()
    return {each["name"]: each for each in status["checks"]}


def note_of(directory: Path, target: str) -> ScrubNote:
    """As it is on stable storage."""
    path = directory / "targets" / target / "scrub"
    note = decode_scrub_note(path.read_bytes()) if path.exists() else None
    return note or ScrubNote()


def test_all_is_whole_and_status_says_when_it_was_read(store: str) -> None:
    found = summary(store, code=0)
    assert [each["state"] for each in found["targets"]] == ["whole"] * 4
    held = {id: each["bytes_used"] for id, each in targets_of(store).items()}
    assert {each["target"]: each["bytes"] for each in found["targets"]} == held
    wait_until(
        lambda: all(each["scrub"]["pass_ended_s"] for each in targets_of(store).values()),
        "the coordinator has heard it", poll_s=ASKED_S,
    )  # fmt: skip
    text = run("status", "--store", store).out
    assert re.search(r"^t0 .* (just now|\d+ s ago) ", text, re.MULTILINE)
    assert "scrubbed" in text
    assert not checks_of(store)


def test_show_says_since_when_all_of_a_checkpoint_was_read(store: str) -> None:
    """In whole seconds: a pass that begins within that of the commit does not count."""

    def shown() -> dict[str, Any]:
        found = run("show", "whole@1", "--json", "--store", store).document()["reading"]
        assert isinstance(found, dict)
        return found

    def all_read() -> bool:
        summary(store, code=0)
        return not shown()["unread"]

    wait_until(all_read, "a pass has begun after the commit, and is over", poll_s=ASKED_S)

    def is_the_oldest() -> bool:
        """Unless a pass has ended between the two questions."""
        found = shown()
        since = {id: each["scrub"]["whole_since_s"] for id, each in targets_of(store).items()}
        oldest = min(since[id] for id in found["read"])
        return bool(found["since_s"] == oldest == since[found["target"]])

    wait_until(is_the_oldest, "it says since when the oldest is", poll_s=ASKED_S)
    found = shown()
    assert len(found["read"]) >= 3, "a column each, of 2+1"
    assert found["away"] == []
    text = run("show", "whole@1", "--store", store).out
    longest = re.escape(found["target"])
    assert re.search(rf"^read at rest  all since .* \({longest} is the oldest\)$", text, re.M)


def harm_columns(columns: list[Path]) -> set[tuple[str, str, str]]:
    """A region of each, in order: (target, kind of file, region)."""
    harmed = set()
    for number, path in enumerate(columns):
        data = path.read_bytes()
        header = decode_header(data[:PAGE_BYTES])
        first, second = (trailer_offset(header, copy) for copy in (0, 1))
        table = 4 * header.layout.block_count
        places = {
            "header 1": 99,
            "header 2": len(data) - 1,
            "cells": FRAGMENTS_OFFSET + header.column_bytes - 1,
            "block table 1": first,
            "block table 2": second + table - 1,
            "manifest 1": first + table,
            "manifest 2": second + table + header.manifest_bytes - 1,
            "padding 1": second - 1,
            "padding 2": len(data) - PAGE_BYTES - 1,
        }
        if number < len(places):
            region = list(places)[number]
            flip(path, places[region])
            harmed.add((target_of(path), "column", region))
    assert len(harmed) == 9
    return harmed


def harm_documents(directory: Path) -> set[tuple[str, str, str]]:
    """Of two records and two indexes, each on a target of its own."""
    records = documents_of(directory, "rot", "record")
    indexes = documents_of(directory, "rot", "index")
    harmed = set()
    for path, region, at in (
        (records[0], "header 1", 7),
        (records[1], "copy 1", PAGE_BYTES),
        (records[2], "copy 2", 2 * PAGE_BYTES),
        (indexes[0], "header 2", indexes[0].stat().st_size - 1),
        (indexes[1], "copy 1", PAGE_BYTES),
    ):
        flip(path, at)
        harmed.add((target_of(path), path.name.partition("-")[0], region))
    return harmed


def test_a_flipped_bit_of_each_region_is_found_told_and_gone_with_its_step(
    directory: Path, store: str
) -> None:
    fill(store, "rot", (1, 2, 3), ranks=2)
    harmed = harm_columns(columns_of(directory, "rot")) | harm_documents(directory)
    assert regions(summary(store, code=3)) == harmed
    (record,) = (target for target, kind, region in harmed if (kind, region) == RECORD_HEADER)
    ended = run("scrub", record, "--store", store)
    assert ended.code == 3
    assert re.search(r"rot@\d#\S+ +record +header 1 ", ended.out)

    wait_until(lambda: "ROT" in checks_of(store), "the coordinator has heard it", poll_s=ASKED_S)
    check = checks_of(store)["ROT"]
    assert check["message"].startswith(f"{len(harmed)} parts of files at rest are damaged: t")
    assert check["command"].startswith("ckpt rm rot@")
    told = {
        (id, one["kind"], one["region"])
        for id, each in targets_of(store).items()
        for one in each["scrub"]["rot"]
    }
    assert told == harmed
    assert "damaged" in run("status", "--store", store).out

    for step in (1, 2, 3):
        assert run("rm", f"rot@{step}", "--force", "--store", store).code == 0
    wait_until(lambda: "ROT" not in checks_of(store), "it is gone", poll_s=ASKED_S)
    assert regions(summary(store, code=0)) == set()


def test_a_killed_target_goes_on_with_its_pass_and_knows_what_it_found(tmp_path: Path) -> None:
    directory = tmp_path / "burst"
    store = f"ckpt+local://{directory}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKPT_TARGET__SCRUB_PERCENT", str(SLOW))
        # What is damaged stays so: made again it would be another file, and be read again.
        patch.setenv("CKPT_COORDINATOR__REPAIR", "false")
        fill(f"{store}?targets=3&code=2+1", "many", tuple(range(1, 7)), ranks=3)
    try:
        _killed_in_its_pass(directory, store)
    finally:
        run("local", "stop", str(directory))


def _killed_in_its_pass(directory: Path, store: str) -> None:
    newest = max(columns_of(directory, "many"), key=lambda path: path.stat().st_mtime_ns)
    middle = sorted(newest.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)[9]
    flip(middle, FRAGMENTS_OFFSET)
    target = target_of(middle)
    pid = targets_of(store)[target]["pid"]
    assert run("scrub", target, "--no-wait", "--store", store).code == 0
    wait_until(lambda: bool(note_of(directory, target).rot), "it is found, and durable")
    os.kill(pid, signal.SIGKILL)
    note = note_of(directory, target)
    assert (note.is_running, note.is_asked) == (True, True)
    assert 0 < len(note.readings) // 12 < len(list(newest.parent.iterdir()))

    is_back = lambda: bool(targets_of(store)[target]["pid"] not in (None, pid))  # noqa: E731
    wait_until(is_back, "it is back", poll_s=ASKED_S)
    wait_until(lambda: "ROT" in checks_of(store), "it has told what it knew", poll_s=ASKED_S)
    ended = lambda: bool(note_of(directory, target).pass_ended_s)  # noqa: E731
    wait_until(ended, "the pass is over", poll_s=ASKED_S)
    after = note_of(directory, target)
    assert (after.pass_began_s, after.is_running) == (note.pass_began_s, False)
    assert _readings(note) <= _readings(after), "none was read twice"
    assert [one.damage.region for one in after.rot] == ["cells"]


def _readings(note: ScrubNote) -> set[bytes]:
    """Which file was read last when, of each."""
    return {note.readings[at : at + 12] for at in range(0, len(note.readings), 12)}


def test_a_target_reads_by_itself_and_what_is_deleted_meanwhile_is_no_alarm(tmp_path: Path) -> None:
    """A period of 7 s: each file is read within a second of its seal, then all the time."""
    directory = tmp_path / "burst"
    store = f"ckpt+local://{directory}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKPT_TARGET__SCRUB_PERIOD_S", "7")
        patch.setenv("CKPT_TARGET__SCRUB_PERCENT", "50")
        fill(f"{store}?targets=3&code=2+1", "busy", (1,), ranks=2)
    try:
        for step in range(2, 12):
            fill(store, "busy", (step,), ranks=2)
            run("scrub", "--no-wait", "--store", store)
            assert run("rm", f"busy@{step - 1}", "--store", store).code == 0
        (path, *_) = (each for each in columns_of(directory, "busy") if "-11-" in each.name)
        for log in (directory / "logs").glob("t*.log"):
            assert '"rot"' not in log.read_text()
        assert "ROT" not in checks_of(store)
        flip(path, FRAGMENTS_OFFSET + 1)
        # Its share of the device is of the time that it gets: beside other tests it takes longer.
        (log,) = (directory / "logs").glob(f"{target_of(path)}.log")
        wait_until(lambda: '"rot"' in log.read_text(), "it finds out by itself", BUSY_S, ASKED_S)
        wait_until(lambda: "ROT" in checks_of(store), "it has told", poll_s=ASKED_S)
        (line,) = (line for line in log.read_text().splitlines() if '"rot"' in line)
        assert json.loads(line)["region"] == "cells"
    finally:
        run("local", "stop", str(directory))


@pytest.mark.parametrize("direct", ["true", "false"])
def test_what_the_page_cache_holds_is_neither_believed_nor_added_to(
    tmp_path: Path, direct: str
) -> None:
    directory = tmp_path / "burst"
    store = f"ckpt+local://{directory}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKPT_TARGET__DIRECT", direct)
        fill(f"{store}?targets=3&code=2+1", "cached", (1,), ranks=1)
    try:
        columns = columns_of(directory, "cached")
        if not all(forget_cached(path) for path in columns):
            pytest.skip("this file system is memory itself")
        if direct == "false":
            assert all(path.read_bytes() for path in columns)
            assert all(pages_cached(path) for path in columns)
        summary(store, code=0)
        assert [pages_cached(path) for path in columns] == [0, 0, 0]
    finally:
        run("local", "stop", str(directory))


def test_who_is_not_there_is_named(directory: Path, store: str) -> None:
    assert run("scrub", "t9", "--store", store).code == 10
    held = run("target", "hold", "t1", "--store", store)
    assert held.code == 0
    os.kill(targets_of(store)["t1"]["pid"], signal.SIGKILL)
    wait_until(lambda: targets_of(store)["t1"]["state"] == "down", "it is down", poll_s=ASKED_S)
    ended = run("scrub", "t1", "--json", "--store", store)
    assert (ended.code, ended.error()["message"]) == (75, "target t1 is down")
    assert len(summary(store, code=0)["targets"]) == 3
    assert run("target", "release", "t1", "--store", store).code == 0
    del directory
