"""A stager reads a large declaration while its trainer copies; what is wrong there does no harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from ckpt.base.ids import Rank, RunName, Step
from ckpt_client.environment import RankPlace
from ckpt_client.save.copying import NUMPY
from ckpt_client.save.packing import PackingPlan, plan_packing
from ckpt_client.save.staging import AHEAD_BYTES_MIN, Staging
from ckpt_client.save.state import flatten
from ckpt_client.stager import wire
from ckpt_client.stager.declaration import DeclarationReader, read_declaration
from tests.client.test_numbers import settings as checked
from tests.client.test_stager_process import Bench, stage
from tests.waiting import wait_until

COUNT = 6000
READ = "read ahead"
NOT_READ = "not read ahead"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(tmp_path, stack)


def packed(first: int = 0) -> PackingPlan:
    rows = np.random.default_rng(first).integers(0, 255, (COUNT, 16), dtype=np.uint8)
    return plan_packing(flatten({f"{row.tobytes().hex()}": row for row in rows}), 0, 1)


def said(bench: Bench, text: str) -> list[object]:
    """Of lines of the stager's log that say it: how many entries."""
    lines = map(json.loads, (bench.directory / "stager.log").read_text().splitlines())
    return [line.get("entries") for line in lines if line["text"] == text]


def test_a_new_layout_is_read_ahead_and_one_that_its_half_had_is_not(bench: Bench) -> None:
    link, packing = bench.start(), packed()
    layout, settings = packing.layout, checked()
    assert len(layout.declaration) >= AHEAD_BYTES_MIN
    place = RankPlace(Rank(0), 1)
    for number in (1, 2):
        staging = Staging(link, RunName("run"), Step(1), place, number, settings, 0.0, packing, {})
        staging.copy(NUMPY)
        assert staging.failure is None
        if number == 2:  # What is said after it shows that it said nothing.
            link.tell(wire.Declared(number, 1, len(layout.declaration)))
            wait_until(lambda: said(bench, NOT_READ) == [None], "what it said of the last one")
        wait_until(lambda: said(bench, READ) == [COUNT], "it read one ahead")
        staging.drop()


def test_a_small_layout_is_read_with_the_hand_over(bench: Bench) -> None:
    link = bench.start()
    assert stage(link, 1) is not None
    wait_until(lambda: said(bench, "no session with the coordinator") == [None], "it dialed")
    assert not said(bench, READ)


@pytest.mark.parametrize("offset", [1, 1 << 40])
def test_what_is_declared_wrong_is_left_to_the_hand_over(bench: Bench, offset: int) -> None:
    link, packing = bench.start(), packed()
    layout = packing.layout
    link.ask_half(1, "run", 1, layout.half_bytes, "wait")
    granted = link.wait_half(1)
    assert granted is not None
    link.tell(wire.Declared(1, offset, len(layout.declaration)))
    link.tell(wire.Declared(7, layout.declaration_offset, len(layout.declaration)))
    granted[0].declare(layout)
    link.tell(wire.Declared(1, layout.declaration_offset, len(layout.declaration)))
    wait_until(lambda: said(bench, READ) == [COUNT], "it read one ahead")
    wait_until(lambda: len(said(bench, NOT_READ)) == (offset == 1), "it refused the other")


def test_a_reader_knows_by_its_bytes_what_it_has_read() -> None:
    one, other = (packed(first).layout.declaration for first in (1, 2))
    reader, memory = DeclarationReader(), bytearray(one)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(reader.read, [memoryview(memory)] * 8))
    assert all(each is found[0] for each in found)
    memory[:] = other
    assert reader.read(memoryview(memory)) == read_declaration(other)
    memory[:] = one
    assert reader.read(memoryview(memory)) == read_declaration(one) == found[0]
