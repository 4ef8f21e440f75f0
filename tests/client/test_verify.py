"""`ckpt verify` against a real cluster: every region of every file counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.base.limits import PAGE_BYTES
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import FRAGMENTS_OFFSET
from tests.client.clikit import fill, flip, run


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """DIR of a cluster of 4 targets, 2+1."""
    directory = tmp_path_factory.mktemp("verify") / "burst"
    fill(f"ckpt+local://{directory}?targets=4&code=2+1", "whole", (3,))
    yield directory
    run("local", "stop", str(directory))


@pytest.fixture
def store(directory: Path) -> str:
    return f"ckpt+local://{directory}"


def spoil(directory: Path, run_name: str, column: int) -> None:
    """Flip a byte in the first fragment of one column of rank 0."""
    ended = run("show", f"{run_name}@1", "--json", "--store", f"ckpt+local://{directory}")
    rank_zero = ended.document()["columns"][0]
    target = rank_zero["targets"][column]
    prefix = xxh3_128(run_name.encode()).hex()
    (path,) = (directory / "targets" / target / "columns").glob(f"{prefix}-1-*-0-{column}*")
    flip(path, FRAGMENTS_OFFSET)


def test_a_whole_checkpoint_verifies(store: str) -> None:
    ended = run("verify", "whole@3", "--json", "--store", store)
    assert ended.code == 0
    progress, *_, summary = [json.loads(line) for line in ended.out.splitlines()]
    assert progress["message_type"] == "progress"
    assert (summary["message_type"], summary["state"]) == ("summary", "healthy")
    assert [each["state"] for each in summary["columns"]] == ["whole"] * 6
    assert summary["bytes_read"] >= 2 * 200_000 * 4 * 3 // 2
    text = run("verify", "whole@3", "--store", store).out
    assert text.startswith("whole@3  healthy  6 columns, read ")
    assert run("verify", "whole@77", "--store", store).code == 10


def test_a_flipped_byte_is_degraded_and_one_more_than_parity_is_lost(
    directory: Path, store: str
) -> None:
    fill(store, "rot", (1,), ranks=1)
    assert run("verify", "rot@1", "--store", store).code == 0
    spoil(directory, "rot", 0)
    ended = run("verify", "rot@1", "--store", store)
    assert ended.code == 3
    assert "degraded" in ended.out
    head, row = ended.out.splitlines()[1:]
    assert head.split() == ["rank", "column", "target", "state", "damage"]
    assert row.split()[:2] == ["0", "0"]
    assert "damaged  [0, " in row

    spoil(directory, "rot", 2)
    ended = run("verify", "rot@1", "--json", "--store", store)
    assert ended.code == 4
    summary = json.loads(ended.out.splitlines()[-1])
    assert summary["state"] == "lost"
    assert [each["state"] for each in summary["columns"]] == ["damaged", "whole", "damaged"]


def test_a_damaged_last_header_is_no_health(directory: Path, store: str) -> None:
    """Nobody needs it while the first one is whole; when that goes, its file is lost."""
    fill(store, "edge", (1,), ranks=1)
    prefix = xxh3_128(b"edge").hex()
    (path, *_) = (directory / "targets").glob(f"*/columns/{prefix}-1-*")
    flip(path, -1)
    ended = run("verify", "edge@1", "--store", store)
    assert (ended.code, "degraded" in ended.out) == (3, True)
    (row,) = ended.out.splitlines()[2:]
    assert row.split()[2:] == [path.parent.parent.name, "damaged", "header", "2"]
    report = json.loads(run("verify", "edge@1", "--json", "--store", store).out.splitlines()[-1])
    (harmed,) = (each for each in report["columns"] if each["state"] == "damaged")
    assert harmed["damaged"] == []
    (damage,) = harmed["beside"]
    size = path.stat().st_size
    assert (damage["start"], damage["end"]) == (size - PAGE_BYTES, size)
    assert (damage["region"], damage["why"]) == ("header 2", "column header fails its checksum")


def test_a_damaged_copy_of_a_commit_record_is_no_health(directory: Path, store: str) -> None:
    """Its other copy on that target and the other targets' still answer."""
    fill(store, "twice", (1,), ranks=1)
    prefix = f"record-{xxh3_128(b'twice').hex()}"
    (path, *_) = (directory / "targets").glob(f"*/documents/{prefix}-1-*")
    flip(path, 2 * PAGE_BYTES)
    ended = run("verify", "twice@1", "--store", store)
    assert (ended.code, "degraded" in ended.out) == (3, True)
    (row,) = ended.out.splitlines()[2:]
    assert row.split() == ["-", "record", path.parent.parent.name, "damaged", "copy", "2"]
    report = json.loads(run("verify", "twice@1", "--json", "--store", store).out.splitlines()[-1])
    assert [each["kind"] for each in report["documents"]] == ["record"]
    assert report["documents_read"] >= 4, "index and record, on m + 1 targets each"
    assert [each["state"] for each in report["columns"]] == ["whole"] * 3
