"""A load in parts keeps the files that it was lent, has them before its first part, and takes all
whole blocks from them, wherever its parts begin and end.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ckpt.base.limits import BLOCK_BYTES
from ckpt.protocol.reader.events import ReadLimits
from ckpt.transfer.payload_receiver import PayloadReceiver
from ckpt.transfer.read_job import ReadJob
from ckpt.transfer.receiving import lent_columns
from tests.protocol.reading import Columns
from tests.transfer.test_lent_columns import (
    CELL,
    CODE,
    NEAR,
    SIZE,
    by_socket,
    held,
    lenders,
    part_of,
)
from tests.transfer.test_payload_receiver import job
from tests.waiting import wait_until

LONG = replace(NEAR, limits=ReadLimits(window_bytes=20 * CELL, ask_bytes=10 * CELL))
"""An ask is of several cells."""


@pytest.fixture(autouse=True)
def however_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent_columns, "WANTED_BYTES_MIN", 0)


@pytest.fixture(scope="module")
def data() -> Columns:
    return Columns.make(CODE, SIZE, CELL, seed=5)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short name, since sockets lie there."""
    return tmp_path_factory.mktemp("p")


def read_until_all_is_lent(receiver: PayloadReceiver, first: ReadJob) -> None:
    """As a load reads a rank's tree first, which is little."""
    receiver.expect(first, SIZE)
    columns = receiver._lent._columns
    while [each.file is None for each in columns.values()] != [False] * CODE.k:
        receiver.read([first])


def test_parts_come_from_files_whole_and_ask_for_them_once(data: Columns, folder: Path) -> None:
    memory, part = np.zeros(SIZE, np.uint8), 5 * CELL * CODE.k
    with lenders(data, {}, folder) as made:
        with PayloadReceiver(NEAR) as receiver:
            read_until_all_is_lent(receiver, job(data, list(made), part_of(memory, 0, 1)))
            threads = [each.name for each in threading.enumerate()]
            assert threads.count("ckpt-fetch") == CODE.k, "they are ready"
            before = by_socket(made)
            for start in range(0, SIZE, part):
                places = part_of(memory, start, min(start + part, SIZE))
                receiver.read([job(data, list(made), places)])
                assert bool(held(folder)) == (start + part < SIZE)
            assert by_socket(made) == before
        assert [each.lent_count for each in made] == [1, 1, 1, 1, 0, 0]
        wait_until(
            lambda: all(len(each.returned) == 1 for each in made[: CODE.k]), "all are returned"
        )
        assert sum(sum(each.returned) for each in made) >= SIZE
    assert memory.tobytes() == data.payload


def test_parts_that_begin_and_end_within_blocks_take_all_others_from_files(
    data: Columns, folder: Path
) -> None:
    """As a load's do, whose tensors lie one after the other."""
    memory, part = np.zeros(SIZE, np.uint8), 10 * CELL * CODE.k
    borders = [*range(4096, SIZE, part), SIZE]
    with lenders(data, {}, folder) as made, PayloadReceiver(LONG) as receiver:
        read_until_all_is_lent(receiver, job(data, list(made), part_of(memory, 0, 4096)))
        before = by_socket(made)
        for start, end in pairwise(borders):
            receiver.read([job(data, list(made), part_of(memory, start, end))])
        assert by_socket(made) - before < 2 * len(borders) * BLOCK_BYTES
    assert memory.tobytes() == data.payload


def test_a_device_that_fails_within_an_ask_costs_no_more_than_the_ask(
    data: Columns, folder: Path
) -> None:
    """All of it is asked of its target, what is no whole block as well."""
    memory = np.zeros(SIZE, np.uint8)
    faults = dict.fromkeys(range(CODE.k), "short")
    with lenders(data, faults, folder) as made, PayloadReceiver(LONG) as receiver:
        read_until_all_is_lent(receiver, job(data, list(made), part_of(memory, 0, 4096)))
        for start, end in ((4096, SIZE - 5000), (SIZE - 5000, SIZE)):
            found = receiver.read([job(data, list(made), part_of(memory, start, end))])
            assert found.rebuilt_bytes == found.damaged_bytes == 0
        assert by_socket(made) > SIZE // 3
    assert memory.tobytes() == data.payload


def test_a_load_that_wants_less_than_it_expected_returns_its_files_as_it_ends(
    data: Columns, folder: Path
) -> None:
    memory = np.zeros(SIZE, np.uint8)
    with lenders(data, {0: "refuses", 1: "rotten"}, folder) as made:
        with PayloadReceiver(NEAR) as receiver:
            places = part_of(memory, 0, SIZE - 1)
            receiver.expect(job(data, list(made), places), SIZE)
            receiver.read([job(data, list(made), places)])
            assert len(held(folder)) == 2, "what did not give its bytes is not kept"
        assert held(folder) == []
        wait_until(
            lambda: all(len(each.returned) == 1 for each in made[: CODE.k]), "all are returned"
        )
