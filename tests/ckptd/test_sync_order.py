"""Durable before visible, as the kernel saw it: the order of writes, syncs, renames and answers.

The rule is that of `docs/format.md` (sealed) and of the target's columns: written aside, synced,
renamed, the directory synced; only then is it said.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, Generation, Rank, RunName, Step
from ckpt.base.units import KiB, MiB
from ckpt.format.checksum import xxh3_128
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import Attest, DocumentStored, PutDocument
from ckpt.format.messages.writing import ColumnSealed
from ckpt.protocol.target.core import column_name
from ckptd.catalog.sqlite import CATALOG_NAME
from tests.ckptd.target_peers import ANSWER_S, Coordinator, Daemon, Peer, reserve, run
from tests.ckptd.test_coordinator import Daemon as Coordinating
from tests.ckptd.tracing import Call, parse, traced
from tests.protocol.target_world import Column

MARK = "traced-run-4711"
JOINED_FIELD = "turn"
"""Of LaunchJoined, and of no other message that this coordinator sends."""


def the_one(calls: list[Call], what: str) -> Call:
    assert len(calls) == 1, f"{what}: {[(each.name, each.text[:200]) for each in calls]}"
    return calls[0]


def first_said(calls: list[Call], words: str) -> Call:
    """The first frame that names it."""
    return next(call for call in calls if call.sends and words in call.text)


def check_put_in_place(calls: list[Call], directory: Path, name: str, said: Call) -> None:
    """Every write to the file has ended before its sync begins, that before the rename, that before
    the directory's sync, and that before it is said.
    """
    renames = [call for call in calls if call.name.startswith("rename") and name in call.text]
    rename = the_one(renames, f"renames to {name}")
    aside = rename.text.split('"')[1]
    writes = [c for c in calls if c.writes and f"<{aside}>" in c.text]
    syncs = [c for c in calls if c.syncs and f"<{aside}>" in c.text]
    assert writes, f"nothing was written to {aside}"
    assert any(
        all(write.end < sync.begin for write in writes) and sync.end < rename.begin
        for sync in syncs
    ), f"{aside} is not synced behind its last write and before its rename"
    placed = [c for c in calls if c.syncs and f"<{directory}>" in c.text and rename.end < c.begin]
    assert placed, f"{directory} is not synced behind the rename"
    assert placed[0].end < said.begin, "it was said before its name was durable"


def check_synced(calls: list[Call], file: str, entry: Call, said: Call) -> None:
    """The entry's transaction is what is written from there to the next sync, which begins when all
    of it is through and ends before it is said. The transaction after it may be on its way by then.
    """
    of_file = [c for c in calls if f"<{file}>" in c.text]
    sync = next((c for c in of_file if c.syncs and c.begin > entry.begin), None)
    assert sync is not None, f"{file} is never synced after the entry"
    written = [c for c in of_file if c.writes and entry.begin <= c.begin < sync.begin]
    assert max(write.end for write in written) < sync.begin, "synced before all was written"
    assert sync.end < said.begin, "it was said before it was durable"


def test_a_column_s_proof_leaves_only_behind_the_syncs_of_its_file_and_directory(
    tmp_path: Path,
) -> None:
    async def story(coordinator: Coordinator) -> None:
        column = Column(payload_bytes=2 * MiB, cell_bytes=512 * KiB)
        directory = tmp_path / "t"
        with await asyncio.to_thread(Daemon, directory, coordinator.address) as daemon:
            async with asyncio.timeout(ANSWER_S):
                await coordinator.registrations.get()
            await reserve(coordinator, [column])
            with traced(daemon.process.pid, tmp_path) as calls:
                async with Peer(daemon.address) as stager:
                    sealed = await stager.write(column, reservation=1)
                await coordinator.command(Attest(1, ()))
        assert isinstance(sealed, ColumnSealed)
        said = first_said(calls, sealed.proof.mac.decode("latin-1"))
        check_put_in_place(calls, directory / "columns", column_name(column.id), said)

    run(story)


def test_a_document_is_confirmed_only_behind_the_syncs_of_its_file_and_directory(
    tmp_path: Path,
) -> None:
    checkpoint = CheckpointId(RunName(MARK), Step(1), Generation(1, 1))

    async def story(coordinator: Coordinator) -> None:
        directory, data = tmp_path / "t", b"d" * 10_000
        put = PutDocument(1, DocumentKind.RECORD, checkpoint, len(data), 0, xxh3_128(data))
        with await asyncio.to_thread(Daemon, directory, coordinator.address) as daemon:
            async with asyncio.timeout(ANSWER_S):
                await coordinator.registrations.get()
            with traced(daemon.process.pid, tmp_path) as calls:
                answer = await coordinator.command(put, data)
                # So that the trace of the first answer is whole.
                await coordinator.command(Attest(1, ()))
        assert answer == DocumentStored(DocumentKind.RECORD, checkpoint)
        said = first_said(calls, MARK)
        check_put_in_place(calls, directory / "documents", "documents/record-", said)

    run(story)


def test_the_catalog_is_synced_before_a_rank_hears_what_it_says(tmp_path: Path) -> None:
    """Of every answer that follows from an entry: here a launch's number, which may never be given
    again.
    """
    joins = JoinLaunch(RunName(MARK), "key", Rank(0), 1, "host/1")
    daemon = Coordinating(tmp_path)
    try:
        with (
            # Nobody joins before targets vouch for the catalog.
            Daemon(tmp_path / "a", daemon.ready["address"], cluster=daemon.ready["cluster"]),
            Daemon(tmp_path / "b", daemon.ready["address"], cluster=daemon.ready["cluster"]),
            daemon.client(role=Role.READER) as client,
        ):
            client.call(replace(joins, run=RunName("earlier")))
            with traced(daemon.process.pid, tmp_path) as calls:
                answer, _ = client.call(joins)
                client.call(Ask("status"))
    finally:
        daemon.end()
    assert isinstance(answer, LaunchJoined)
    entry = next(call for call in calls if call.writes and MARK in call.text)
    file = entry.text.partition("<")[2].partition(">")[0]
    assert Path(file).name.startswith(CATALOG_NAME)
    said = next(c for c in calls if c.sends and c.begin > entry.begin and JOINED_FIELD in c.text)
    check_synced(calls, file, entry, said)


TRACE = """\
11 pwrite64(7</d/staging/a>, "x"..., 4096, 0 <unfinished ...>
12 fsync(7</d/staging/a>) = 0
11 <... pwrite64 resumed>) = 4096
11 fsync(7</d/staging/a>) = 0
11 rename("/d/staging/a", "/d/columns/c") = 0
11 fsync(9</d/columns>) = 0
10 sendto(4<TCP:[127.0.0.1:1->127.0.0.1:2]>, "\\x70roof", 5, 0, NULL, 0) = 5
"""


def test_a_trace_in_order_passes() -> None:
    calls = parse(TRACE)
    check_put_in_place(calls, Path("/d/columns"), "columns/c", first_said(calls, "proof"))


@pytest.mark.parametrize(
    ("line", "to", "why"),
    [
        (3, None, "not synced behind its last write"),
        (3, 4, "not synced behind its last write"),
        (5, None, "not synced behind the rename"),
        (5, 3, "not synced behind the rename"),
        (5, 6, "said before"),
        (0, None, "nothing was written"),
    ],
)
def test_a_trace_out_of_order_does_not(line: int, to: int | None, why: str) -> None:
    """A sync that is missing, or is one place away from where it belongs."""
    lines = TRACE.splitlines()
    moved = lines.pop(line)
    if to is not None:
        lines.insert(to, moved)
    calls = parse("\n".join(lines))
    with pytest.raises(AssertionError, match=why):
        check_put_in_place(calls, Path("/d/columns"), "columns/c", first_said(calls, "proof"))


CATALOG_TRACE = """\
11 pwrite64(8</d/c.sqlite-wal>, "page"..., 4096, 0) = 4096
11 pwrite64(8</d/c.sqlite-wal>, "run-4711"..., 4096, 4096 <unfinished ...>
11 <... pwrite64 resumed>) = 4096
11 fdatasync(8</d/c.sqlite-wal>) = 0
11 pwrite64(8</d/c.sqlite-wal>, "next"..., 4096, 8192 <unfinished ...>
10 sendmsg(4<TCP:[127.0.0.1:1->127.0.0.1:2]>, "turn", 5, 0, NULL, 0) = 5
11 <... pwrite64 resumed>) = 4096
"""


def check_catalog(lines: list[str]) -> None:
    calls = parse("\n".join(lines))
    entry = next(call for call in calls if "run-4711" in call.text)
    check_synced(calls, "/d/c.sqlite-wal", entry, first_said(calls, JOINED_FIELD))


def test_a_transaction_may_be_written_while_the_one_before_it_is_said() -> None:
    check_catalog(CATALOG_TRACE.splitlines())


@pytest.mark.parametrize(
    ("to", "why"), [(None, "never synced"), (2, "before all was written"), (6, "said before")]
)
def test_a_catalog_s_sync_that_is_missing_or_out_of_place_is_seen(to: int | None, why: str) -> None:
    lines = CATALOG_TRACE.splitlines()
    sync = lines.pop(3)
    if to is not None:
        lines.insert(to, sync)
    with pytest.raises(AssertionError, match=why):
        check_catalog(lines)
