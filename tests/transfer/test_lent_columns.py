"""Columns of this host come from their files: right, whatever the files or their targets are like.

Real sockets and files; a small target for each column, some of which lie.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ckpt.aio.sealed_memory import sealed_memory
from ckpt.base.ids import BootId
from ckpt.base.limits import BLOCK_BYTES
from ckpt.base.system_errors import Scarce
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.lending import ColumnLent, LendColumn, LendMemory, ReturnColumn
from ckpt.format.messages.reading import ByteRuns, RangeData, RangesDone
from ckpt.format.runs import Bytes
from ckpt.native.sums import sums_of
from ckpt.protocol.handshake import Identity
from ckpt.protocol.reader.events import ReadLimits
from ckpt.testing.network import Heard
from ckpt.transfer.landings import Landings
from ckpt.transfer.payload_receiver import PayloadReceiver, read_payloads
from ckpt.transfer.read_job import ReceiverStatistics
from ckpt.transfer.receiving import lent_columns
from ckpt.transfer.receiving.lent_columns import LentColumns, LentRead
from tests.aio.netkit import serving
from tests.protocol.reading import Columns
from tests.transfer.test_payload_receiver import PATIENT, SmallHolder, job

CODE = Code(4, 2)
CELL = 320 * 1024
"""Two blocks and a half."""
SIZE = 30 * CELL * CODE.k + 12_345
BEFORE = 4096
PATIENCE_S = 30.0
NEAR = replace(
    PATIENT, borrows=True, limits=ReadLimits(window_bytes=CELL, ask_bytes=CELL, hedge_us=800_000)
)


class Lender(SmallHolder):
    """One target that lends its column, from a file. `how`, besides what its base knows: rotten,
    short, pipe: what file it lends; other-table, no-table: what goes along; lying: file and table
    fit each other, and are no column's; memory: it lends that as well; refuses; twice; naked: no
    descriptor comes; leaves: its session ends once.
    """

    def __init__(self, number: int, data: Columns, how: str, folder: Path) -> None:
        super().__init__(number, data, how)
        self.unix = str(folder / f"s{number}")
        self.path = folder / f"f{number}"
        self.lent_count = 0
        self.returned: list[int] = []
        content = bytes(self.content)
        if how == "lying":
            content = bytes(len(content))
        layout = data.layout
        blocks: list[int] = []
        for stripe in range(layout.stripe_count):
            start = layout.fragment_offset(stripe)
            blocks += sums_of(content[start : start + layout.cell_bytes_of(stripe)]).blocks
        self.table = np.array(blocks, "<u4").tobytes()
        if how == "rotten":
            at = 20 * CELL + BLOCK_BYTES + 7
            content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        if how == "short":
            content = content[: len(content) // 2]
        if how == "other-table":
            self.table = bytes(len(self.table))
        if how == "no-table":
            self.table = self.table[:-4]
        self.path.write_bytes(bytes(BEFORE) + content)

    def _answer(self, heard: Heard) -> None:
        match heard.message:
            case LendColumn():
                self._lend(heard)
            case ReturnColumn(read_bytes):
                self.returned.append(read_bytes)
            case _:
                super()._answer(heard)

    def _lend(self, heard: Heard) -> None:
        self.lent_count += 1
        if self.how == "memory":
            descriptor, _ = sealed_memory("ckpt-test-memory", 4096, present=True)
            self.server.send(heard.session, 0, LendMemory(0, 4096), descriptor=descriptor)
        if self.how == "refuses":
            self._send(heard, Failed("refused", "not to you"))
            return
        for _ in range(2 if self.how == "twice" else 1):
            descriptor = -1 if self.how == "naked" else self._open()
            self.server.send(
                heard.session, heard.request, ColumnLent(BEFORE), self.table, descriptor=descriptor
            )
        if self.how == "leaves" and self.lent_count == 1:
            self.server.close_session(heard.session, "for a moment")

    def _open(self) -> int:
        if self.how != "pipe":
            return os.open(self.path, os.O_RDONLY)
        reader, writer = os.pipe()
        os.close(writer)
        return reader


@contextmanager
def lenders(data: Columns, faults: dict[int, str], folder: Path) -> Iterator[list[Lender]]:
    with ExitStack() as stack:
        made = [Lender(j, data, faults.get(j, ""), folder) for j in range(CODE.n)]
        for each in made:
            thread = stack.enter_context(
                serving(
                    identity=Identity("cluster-a", Role.TARGET, each.id, BootId(9)),
                    handler=each.handler, pool_bytes=8 * MiB, unix=each.unix, lends=True,
                )
            )  # fmt: skip
            each.server, each.do = thread.server, thread.do
            each.address = "127.0.0.1:1"
        yield made


@pytest.fixture(autouse=True)
def however_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent_columns, "WANTED_BYTES_MIN", 0)


@pytest.fixture(scope="module")
def data() -> Columns:
    return Columns.make(CODE, SIZE, CELL, seed=4)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short name, since sockets lie there."""
    return tmp_path_factory.mktemp("l")


def read(data: Columns, made: list[Lender], skip: int = 0) -> ReceiverStatistics:
    """All, or all but the first bytes; every byte is compared."""
    memory = np.zeros(SIZE - skip, np.uint8)
    landings = Landings()
    landings.add_range(skip, memory)
    found = read_payloads([job(data, list(made), landings)], NEAR)
    assert crc32(memory) == crc32(data.payload[skip:])
    return found


def end_fetching() -> None:
    """Those that were held up go on, and end."""
    for thread in threading.enumerate():
        if thread.name == "ckpt-fetch":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def by_socket(made: list[Lender]) -> int:
    """Bytes that targets were asked for."""
    return sum(each.asked_bytes for each in made)


def test_most_bytes_come_from_files(data: Columns, folder: Path) -> None:
    with lenders(data, {}, folder) as made:
        found = read(data, made)
        assert found.wanted_bytes == SIZE
        assert found.cpu_s["files"] > 0
        assert [each.lent_count for each in made] == [1, 1, 1, 1, 0, 0]
        socket = by_socket(made)
        returned = sum(sum(each.returned) for each in made)
    assert socket < SIZE // 4
    assert socket + returned >= SIZE
    assert sum(found.bytes_by_target.values()) == found.wanted_bytes + found.extra_bytes


@pytest.mark.parametrize("skip", [1, CELL * CODE.k + 3, BLOCK_BYTES])
def test_what_is_no_whole_block_comes_by_socket(data: Columns, folder: Path, skip: int) -> None:
    with lenders(data, {}, folder) as made:
        read(data, made, skip)
        assert by_socket(made) < SIZE // 4


def test_what_is_no_whole_block_later_on_does_not_end_the_loan(data: Columns, folder: Path) -> None:
    stripe = CELL * CODE.k
    parts = ((0, 8 * stripe), (8 * stripe + 3 * CELL + 5, 20 * stripe - 7), (21 * stripe, SIZE))
    places = [np.zeros(end - start, np.uint8) for start, end in parts]
    landings = Landings()
    for (start, _), place in zip(parts, places, strict=True):
        landings.add_range(start, place)
    with lenders(data, {}, folder) as made:
        read_payloads([job(data, list(made), landings)], NEAR)
        assert max(each.asked_bytes for each in made) < SIZE // CODE.k // 3
    for (start, end), place in zip(parts, places, strict=True):
        assert crc32(place) == crc32(data.payload[start:end])


def test_a_reader_that_does_not_want_files_gets_none(data: Columns, folder: Path) -> None:
    memory = np.zeros(SIZE, np.uint8)
    with lenders(data, {}, folder) as made:
        wanted = job(data, list(made), part_of(memory, 0, SIZE))
        read_payloads([wanted], replace(NEAR, borrows=False))
        assert not any(each.lent_count for each in made)
    assert memory.tobytes() == data.payload


@pytest.mark.parametrize(
    "fault",
    ["rotten", "short", "pipe", "other-table", "no-table", "refuses", "twice", "naked"],
)
def test_what_a_file_does_not_give_its_target_does(data: Columns, folder: Path, fault: str) -> None:
    with lenders(data, {0: fault, 2: fault}, folder) as made:
        found = read(data, made)
        assert made[0].lent_count == 1, "it is not asked for again"
    assert found.rebuilt_bytes == found.damaged_bytes == 0


@pytest.mark.parametrize("fault", ["lying", "memory"])
def test_a_target_that_lies_costs_its_column_and_nothing_else(
    data: Columns, folder: Path, fault: str
) -> None:
    with lenders(data, {1: fault}, folder) as made:
        found = read(data, made)
    assert found.rebuilt_bytes > 0
    assert "t1" in found.targets_out


def test_a_target_that_ends_takes_its_loan_along(data: Columns, folder: Path) -> None:
    with lenders(data, {3: "cut"}, folder) as made:
        found = read(data, made)
    assert found.wanted_bytes == SIZE


def test_a_file_that_is_dropped_meanwhile_is_read_on(data: Columns, folder: Path) -> None:
    with lenders(data, {}, folder) as made, PayloadReceiver(NEAR) as receiver:
        memory, landings = np.zeros(SIZE, np.uint8), Landings()
        landings.add_range(0, memory)

        def drop(done: int) -> None:
            for each in made:
                if done and each.lent_count and each.path.exists():
                    each.path.unlink()

        receiver.read([job(data, list(made), landings)], drop)
    assert memory.tobytes() == data.payload


def test_an_interrupt_as_a_read_begins_leaves_none_that_writes(
    data: Columns, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes between any two steps of the receiver's thread."""
    mended, usual, perform = threading.Event(), LentColumns.begin, LentRead.perform

    def begin(columns: LentColumns, *about: Any) -> None:
        if usual(columns, *about) is not None:
            raise KeyboardInterrupt

    def held(read: LentRead) -> None:
        mended.wait(PATIENCE_S)
        perform(read)

    monkeypatch.setattr(LentColumns, "begin", begin)
    monkeypatch.setattr(LentRead, "perform", held)
    monkeypatch.setattr(lent_columns, "END_S", 0.01)
    memory, landings = np.zeros(SIZE, np.uint8), Landings()
    landings.add_range(0, memory)
    with lenders(data, {}, folder) as made, pytest.raises(KeyboardInterrupt):
        read_payloads([job(data, list(made), landings)], NEAR)
    memory[:] = 7
    mended.set()
    end_fetching()
    assert (memory == 7).all()


@pytest.mark.parametrize(
    "word", [RangesDone(), RangeData((ByteRuns(0, 1),), 0), Failed("busy", "")]
)
def test_who_answers_what_its_file_was_asked_is_cut_off_and_that_read_writes_nothing(
    data: Columns, folder: Path, monkeypatch: pytest.MonkeyPatch, word: Message
) -> None:
    """The last one waits for its device, and its target answers in its place."""
    free, held, usual = threading.Event(), threading.Event(), LentRead.perform
    memory, landings = np.zeros(SIZE, np.uint8), Landings()
    landings.add_range(0, memory)
    with lenders(data, {}, folder) as made:

        def answer(read: LentRead) -> None:
            (session, _), (start, end) = made[1].handler.opened_[0], read.runs[0]
            said, bulk = word, b""
            if isinstance(word, RangeData):
                bulk = bytes(end - start)
                said = RangeData((ByteRuns(start, end),), crc32(bulk))
            made[1].server.send(session, read.request, said, bulk)

        def perform(read: LentRead) -> None:
            if read.column.target == "t1" and not held.is_set():
                held.set()
                made[1].do(partial(answer, read))
                free.wait(PATIENCE_S)
            usual(read)

        monkeypatch.setattr(LentRead, "perform", perform)
        monkeypatch.setattr(lent_columns, "END_S", 0.01)
        # It would be silent for longer than the test is patient.
        options = replace(NEAR, limits=structs.replace(NEAR.limits, hedge_us=10_000_000))
        found = read_payloads([job(data, list(made), landings)], options)
    assert held.is_set()
    assert memory.tobytes() == data.payload
    assert "t1" in found.targets_out
    memory[:] = 7
    free.set()
    end_fetching()
    assert (memory == 7).all()


def test_a_target_that_comes_back_is_asked_for_its_file_again(data: Columns, folder: Path) -> None:
    faults = {1: "leaves", 4: "absent", 5: "absent"}
    with lenders(data, faults, folder) as made:
        found = read(data, made)
        assert [each.lent_count for each in made[:4]] == [1, 2, 1, 1]
    assert found.rebuilt_bytes == 0


def test_a_device_that_holds_a_read_up_holds_up_nobody_and_writes_nothing_afterwards(
    data: Columns, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended, held, usual = threading.Event(), threading.Event(), LentRead.perform

    def perform(read: LentRead) -> None:
        if read.column.target == "t2":
            held.set()
            mended.wait(PATIENCE_S)
        usual(read)

    monkeypatch.setattr(LentRead, "perform", perform)
    monkeypatch.setattr(lent_columns, "END_S", 0.01)
    memory, landings = np.zeros(SIZE, np.uint8), Landings()
    landings.add_range(0, memory)
    with lenders(data, {}, folder) as made:
        found = read_payloads([job(data, list(made), landings)], NEAR)
    assert memory.tobytes() == data.payload
    assert held.is_set()
    assert found.rebuilt_bytes > 0
    assert "t2" in found.targets_out
    memory[:] = 7
    mended.set()
    end_fetching()
    assert (memory == 7).all()


def test_without_a_thread_all_comes_by_socket(
    data: Columns, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise Scarce(f"{thread.name} cannot run: no thread is left")

    monkeypatch.setattr(lent_columns, "start_thread", start)
    with lenders(data, {}, folder) as made:
        assert read(data, made).cpu_s["files"] == 0


def test_without_room_for_a_descriptor_all_comes_by_socket(data: Columns, folder: Path) -> None:
    memory, landings = np.zeros(SIZE, np.uint8), Landings()
    landings.add_range(0, memory)
    small = part_of(np.zeros(8, np.uint8), 0, 8)
    kept: list[int] = []
    with lenders(data, {}, folder) as made, PayloadReceiver(NEAR) as receiver:
        # The connections stand; then the limit is what is open.
        receiver.read([job(data, list(made), small)])
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
            with suppress(OSError):
                while True:
                    kept.append(os.open("/dev/null", os.O_RDONLY))
            # One for the targets to open each file, which none is left for at its reader's end.
            os.close(kept.pop())
            receiver.read([job(data, list(made), landings)])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for descriptor in kept:
                os.close(descriptor)
    assert memory.tobytes() == data.payload


def held(folder: Path) -> list[str]:
    """Files of targets that are open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return [each for each in found if each.startswith(str(folder / "f"))]


def part_of(memory: Bytes, start: int, end: int) -> Landings:
    landings = Landings()
    landings.add_range(start, memory[start:end])
    return landings


def test_no_descriptor_is_left(data: Columns, folder: Path) -> None:
    with lenders(data, {1: "twice", 2: "no-table"}, folder) as made:
        with PayloadReceiver(NEAR) as receiver:
            for _ in range(3):
                memory = np.zeros(SIZE, np.uint8)
                receiver.read([job(data, list(made), part_of(memory, 0, SIZE))])
                assert memory.tobytes() == data.payload
                assert held(folder) == []
        assert [each.lent_count for each in made[:4]] == [3, 3, 3, 3]
