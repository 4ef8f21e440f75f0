"""What every sink must do; each test takes a `sink` fixture, so that real stores run the same."""

from __future__ import annotations

import random
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckpt.base.errors import NotFound
from ckpt.objects.sinks.sink import Sink, create_once

PART = 6 << 20
"""More than S3 asks of a part, less than one of ours."""


class SinkContract:
    """Give me a `sink` fixture: an empty place."""

    def test_an_object_is_what_was_put_last(self, sink: Sink) -> None:
        sink.put("a/b", b"first")
        sink.put("a/b", memoryview(b"second"))
        assert sink.get("a/b") == b"second"
        assert sink.head("a/b") == 6
        sink.settle("a/b")
        assert sink.get("a/b") == b"second"

    def test_an_empty_object_is_an_object(self, sink: Sink) -> None:
        sink.put("empty", b"")
        assert (sink.get("empty"), sink.head("empty")) == (b"", 0)

    def test_what_is_absent_is_told_so(self, sink: Sink) -> None:
        assert sink.head("nothing") is None
        with pytest.raises(NotFound, match="nothing"):
            sink.get("nothing")
        with pytest.raises(NotFound, match="nothing"):
            sink.get_range("nothing", 0, 1)
        sink.delete(["nothing"])
        assert (list(sink.list("nothing/")), sink.children("nothing/")) == ([], [])

    def test_ranges_end_where_the_object_ends(self, sink: Sink) -> None:
        sink.put("r", bytes(range(100)))
        assert sink.get_range("r", 10, 20) == bytes(range(10, 20))
        assert sink.get_range("r", 90, 200) == bytes(range(90, 100))
        assert sink.get_range("r", 5, 5) == b""

    @pytest.mark.parametrize(
        "size", [0, 1, 4095, 4096, 4097, 4 << 20, (4 << 20) + 1, (9 << 20) + 5]
    )
    def test_what_is_given_back_is_what_was_given(self, sink: Sink, size: int) -> None:
        content = random.Random(size).randbytes(size)
        turns: list[None] = []
        with sink.upload("proved") as upload:
            for at in range(0, size, 3 << 20):
                upload.part(memoryview(content)[at : at + (3 << 20)])
            upload.complete()
        assert sink.checksum("proved", lambda: turns.append(None)) == (size, zlib.crc32(content))
        assert len(turns) >= min(1, size), "it asks before it reads"
        assert sink.get("proved") == content
        with pytest.raises(NotFound):
            sink.checksum("never")

    def test_an_object_is_created_once(self, sink: Sink) -> None:
        assert sink.conditional
        assert sink.put_if_absent("once", b"mine")
        assert not sink.put_if_absent("once", b"theirs")
        assert sink.get("once") == b"mine"

    def test_of_many_creators_one_wins(self, sink: Sink) -> None:
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda n: sink.put_if_absent("race", b"%d" % n), range(8)))
        assert won.count(True) == 1
        assert sink.get("race") == b"%d" % won.index(True)

    def test_creating_again_with_the_same_bytes_is_no_conflict(self, sink: Sink) -> None:
        assert create_once(sink, "marker", b"same") is None
        assert create_once(sink, "marker", b"same") is None
        assert create_once(sink, "marker", b"other") == b"same"

    def test_lists_are_by_prefix_and_ascending(self, sink: Sink) -> None:
        keys = ["run@1/x", "run@1/y/z", "run@12/x", "runs@1/x", "top"]
        for key in reversed(keys):
            sink.put(key, b".")
        assert list(sink.list("")) == keys
        assert list(sink.list("run@1")) == keys[:3]
        assert list(sink.list("run@1/y/")) == ["run@1/y/z"]
        assert sink.children("") == ["run@1/", "run@12/", "runs@1/", "top"]
        assert sink.children("run@1/") == ["x", "y/"]

    def test_deleted_objects_are_gone(self, sink: Sink) -> None:
        for key in ("d/a", "d/b", "d/c"):
            sink.put(key, b".")
        sink.delete(["d/a", "d/c", "d/never"])
        assert list(sink.list("")) == ["d/b"]

    @pytest.mark.parametrize("parts", [[3], [PART] * 5, [1] * 20, [40 << 20]])
    def test_an_upload_in_parts_is_one_object(self, sink: Sink, parts: list[int]) -> None:
        sink.put("up", b"older")
        expected = bytearray()
        with sink.upload("up") as upload:
            for number, size in enumerate(parts):
                part = bytes([number + 1]) * size
                expected += part
                upload.part(part)
            assert sink.get("up") == b"older", "not before it is complete"
            upload.complete()
        assert sink.get("up") == expected
        assert sink.pending_uploads("") == []

    def test_an_upload_that_fails_leaves_nothing(self, sink: Sink) -> None:
        def fail() -> None:
            with sink.upload("failed") as upload:
                for _ in range(5):
                    upload.part(bytes(PART))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        assert sink.head("failed") is None
        assert list(sink.list("")) == []
        assert sink.pending_uploads("") == []
