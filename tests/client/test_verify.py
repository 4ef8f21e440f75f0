"""`ckpt verify` against a real cluster: every region of every file counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ckpt.base.ids import RunName, Step
from ckpt.base.limits import PAGE_BYTES
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import DamageJudged
from ckpt_client.control import Control
from ckpt_client.load.reader_context import ReaderContext
from ckpt_client.load.verify import verify
from ckpt_client.locate import Locator
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
    assert summary["bytes_read"] == summary["read_bytes"] >= 2 * 200_000 * 4 * 3 // 2
    assert summary["took_s"] == summary["seconds"] > 0, "0.1.0 knows the second name"
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
    assert summary["judged"]["proved"] is True
    assert "has 2 damaged columns at one place, 2+1 mends 1" in summary["judged"]["reason"]
    assert summary["stored"] == []
    (listed,) = run("ls", "rot", "--json", "--store", store).document()["steps"]
    assert listed["state"] == "lost", "for everybody from then on"
    health = run("status", "--json", "--store", store).document()
    assert "CHECKPOINT_LOST" in {check["name"] for check in health["checks"]}
    assert run("verify", "rot@1", "--store", store).code == 4


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_every_lost_payload_is_counted_and_named(
    directory: Path, store: str, arguments: tuple[str, ...]
) -> None:
    """The coordinator is asked about a few of them only: one proves the loss of the checkpoint."""
    run_name = f"many{len(arguments)}"
    fill(store, run_name, (1,), ranks=8)
    prefix = xxh3_128(run_name.encode()).hex()
    for path in (directory / "targets").glob(f"*/columns/{prefix}-1-*"):
        rank, column = map(int, path.name.split("-")[3:5])
        if rank != 6 and column < 2:
            path.unlink()
    ended = run("verify", f"{run_name}@1", *arguments, "--store", store)
    assert ended.code == 4
    if arguments:
        lost = json.loads(ended.out.splitlines()[-1])["lost"]
        assert lost == [{"rank": rank, "home": ""} for rank in (*range(6), 7)]
    else:
        assert "  7 of 8 payloads are lost: ranks 0-5, 7" in ended.out.splitlines()


def test_a_loss_that_the_coordinator_does_not_find_is_none(directory: Path, store: str) -> None:
    """As when columns are made again while others are still read."""
    fill(store, "mended", (1,), ranks=1)
    spoil(directory, "mended", 0)
    spoil(directory, "mended", 2)

    def mend_one(done: int, count: int) -> None:
        if done == count:
            spoil(directory, "mended", 2)  # As it was.

    control = Control(Locator(str(directory), ""), directory / "secret", None, Role.ADMIN)
    with closing(control):
        context = ReaderContext(control.locator.address, control.secret, control.cluster, "test")
        report = verify(context, RunName("mended"), Step(1), on_progress=mend_one)
    assert report.state == "unknown"
    assert report.judged == DamageJudged(False, "at most 1 column is damaged at one place")
    (listed,) = run("ls", "mended", "--json", "--store", store).document()["steps"]
    assert listed["state"] != "lost"


def test_an_index_that_nobody_has_whole_is_judged(directory: Path, store: str) -> None:
    fill(store, "blind", (1,), ranks=1)
    prefix = xxh3_128(b"blind").hex()
    for path in (directory / "targets").glob(f"*/documents/index-{prefix}-1-*"):
        size = path.stat().st_size
        for offset in range(0, size, 1024):
            flip(path, offset)
    ended = run("verify", "blind@1", "--json", "--store", store)
    assert ended.code == 4
    assert "index" in ended.error()["message"]
    (listed,) = run("ls", "blind", "--json", "--store", store).document()["steps"]
    assert listed["state"] == "lost"


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
