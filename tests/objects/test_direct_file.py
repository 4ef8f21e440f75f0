"""Whole files around the page cache, and through it where the file system wants that."""

from __future__ import annotations

import errno
import os
import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt.base.errors import CkptError
from ckpt.objects.sinks import direct_file
from ckpt.objects.sinks.direct_file import BLOCK_BYTES, Blocks, DirectWriter, checksum, read_range
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.sinks.sink import at_once

CONTENT = bytes(range(251)) * (2 * BLOCK_BYTES // 251) + b"the end"


def written(path: Path, blocks: Blocks) -> bytes:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    writer = DirectWriter(descriptor, blocks)
    writer.write(CONTENT[:12345])
    writer.write(memoryview(CONTENT)[12345:])
    writer.finish()
    writer.close()
    os.close(descriptor)
    return path.read_bytes()


def test_blocks_are_used_again(tmp_path: Path) -> None:
    blocks = Blocks()
    for name in ("a", "b"):
        assert written(tmp_path / name, blocks) == CONTENT
        assert checksum(tmp_path / name, blocks, at_once) == (len(CONTENT), zlib.crc32(CONTENT))
    first = blocks.take()
    assert blocks.take() is not first
    blocks.give_back(first)
    assert blocks.take() is first


def test_a_file_system_that_refuses_is_written_and_read_through_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def refusing(real):  # type: ignore[no-untyped-def]
        def call(descriptor, *rest):  # type: ignore[no-untyped-def]
            if direct_file.is_direct(descriptor):
                refused.append(real)
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(descriptor, *rest)

        return call

    monkeypatch.setattr(os, "write", refusing(os.write))
    monkeypatch.setattr(os, "preadv", refusing(os.preadv))
    blocks = Blocks()
    assert written(tmp_path / "a", blocks) == CONTENT
    assert checksum(tmp_path / "a", blocks, at_once) == (len(CONTENT), zlib.crc32(CONTENT))
    assert len(set(refused)) == 2, "else this test shows nothing"


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (5, 9), (4095, 4097), (4096, 8192), (1, BLOCK_BYTES + 3), (0, 1 << 24), (1 << 24, 1 << 25), (7, 7)],
)  # fmt: skip
def test_any_range_is_read(tmp_path: Path, start: int, end: int) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    assert read_range(tmp_path / "a", start, end) == CONTENT[start:end]


def test_a_full_disk_is_an_error_of_its_own(tmp_path: Path) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    writer = DirectWriter(descriptor, Blocks())
    writer.write(b"x")
    with pytest.raises(OSError, match="No space left"):
        writer.finish()
    writer.close()
    os.close(descriptor)


@contextmanager
def no_block() -> Iterator[None]:
    """This process gets no memory for one."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + BLOCK_BYTES // 2, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_who_gets_no_memory_keeps_no_descriptor_and_leaves_no_file(tmp_path: Path) -> None:
    FileSink(tmp_path).put("a", b"x")
    sink, before = FileSink(tmp_path), len(os.listdir("/proc/self/fd"))
    for ask in (lambda: sink.checksum("a"), lambda: sink.put("b", b"y")):
        with no_block(), pytest.raises((CkptError, OSError, MemoryError)):
            ask()
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(tmp_path) == ["a"]
