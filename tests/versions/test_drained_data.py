"""What was drained, once, is read by every later version: bit by bit, and finished where it was
begun."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from ckpt.base.ids import Generation, Rank, RunName, Step
from ckpt.objects import names
from ckpt.objects.chunks import encoder_versions
from ckpt.objects.planning import WriteOptions
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.writer import write_checkpoint
from tests.objects.sources import HEADER, read_all, same_bits
from tests.unpacking import unpack
from tests.versions.drained import AS_IT_IS, BEGUN, COMPRESSED, LIMITS, source, write

HERE: Final = Path(__file__).parent
RUN: Final = RunName(HEADER.run)
AS_IS: Final = names.generation_prefix(RUN, AS_IT_IS, Generation(1, 3))
PACKED_BY_IT: Final = names.generation_prefix(RUN, COMPRESSED, Generation(1, 3))
BEGUN_PLAN: Final = names.generation_prefix(RUN, BEGUN, Generation(1, 3)) + names.PLAN
ENCODER: Final = rb'numcodecs [^"]+|"(manifest|xxh3_128)":.*'
"""What differs in documents when another version of the library compresses."""
FROZEN: Final = ("drained_before_1_0", "drained_1_0")


@pytest.fixture(params=FROZEN)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> FileSink:
    """A copy of a frozen store."""
    return unpacked(request.param, tmp_path)


def unpacked(name: str, folder: Path) -> FileSink:
    unpack(HERE / f"{name}.tar.xz", folder)
    return FileSink(folder / "store")


def check_step(sink: FileSink, step: int) -> None:
    """Every tensor, every value, every byte."""
    wanted = source(step)
    stored = open_stored(sink, RUN, Step(step))
    found = read_all(stored)
    for name, array in wanted.whole.items():
        assert same_bits(found.pop((name, None)), array), name
    for name, array in wanted.own.items():
        assert same_bits(found.pop((name, Rank(1))), array), name
    assert not found
    assert repr(stored.trees()) == repr(wanted.trees())
    assert stored.header == wanted.header
    stored.verify()
    stored.close()


@pytest.mark.parametrize("step", [AS_IT_IS, COMPRESSED])
def test_what_was_drained_is_read_bit_by_bit(sink: FileSink, step: int) -> None:
    check_step(sink, step)


def test_what_is_drained_today_has_the_frozen_bytes(tmp_path: Path) -> None:
    """Whoever changes them makes another version, and freezes that one beside this."""
    frozen, today = unpacked("drained_1_0", tmp_path / "frozen"), FileSink(tmp_path / "today")
    write(today)
    wanted = {key: frozen.get(key) for key in frozen.list("")}
    found = {key: today.get(key) for key in today.list("")}
    assert found.keys() == wanted.keys()
    if encoder_versions().encode() not in wanted[BEGUN_PLAN]:
        for each in (found, wanted):
            for key in list(each):
                if key.startswith(PACKED_BY_IT):
                    del each[key]
                elif key in (AS_IS + names.MANIFEST, AS_IS + names.COMMITTED, BEGUN_PLAN):
                    each[key] = re.sub(ENCODER, b"", each[key])
    assert [key for key in wanted if found[key] != wanted[key]] == []


def test_what_was_begun_is_finished_by_its_own_plan(sink: FileSink) -> None:
    write_checkpoint(sink, source(BEGUN), WriteOptions(compression="none"), LIMITS)
    check_step(sink, BEGUN)
