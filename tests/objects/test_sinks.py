"""Directories and fsspec's memory keep the sink's contract; URLs find their sink."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

from ckpt.base.errors import Refused
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.sinks.fsspec_sink import FsspecSink
from ckpt.objects.sinks.sink import Sink
from ckpt.objects.sinks.stores import open_sink
from tests.objects.sink_contract import SinkContract


class TestDirectory(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return FileSink(tmp_path / "store")

    def test_what_a_killed_writer_left_is_found_and_removed(self, sink: Sink) -> None:
        upload = sink.upload("dir/half")
        upload.__enter__().part(b"half of it")
        (found,) = sink.pending_uploads("dir/")
        assert found.key == "dir/half"
        assert list(sink.list("")) == []
        sink.abort_upload(found)
        assert sink.pending_uploads("") == []
        upload.__exit__(None, None, None)

    def test_a_listing_beside_another_workers_deletions_has_what_stays(self, sink: Sink) -> None:
        sink.put("stays/x", b".")

        def come_and_go() -> None:
            for _ in range(100):
                sink.put("goes/away/deep/x", b".")
                sink.delete(["goes/away/deep/x"])

        worker = Thread(target=come_and_go)
        worker.start()
        while worker.is_alive():
            assert "stays/x" in list(sink.list(""))
        worker.join()

    def test_a_key_that_leaves_the_directory_is_refused(self, sink: Sink) -> None:
        with pytest.raises(Refused, match="leaves the store"):
            sink.put("../outside", b".")

    def test_a_directory_that_is_a_file_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for place in (tmp_path / "file", tmp_path / "file/below"):
            with pytest.raises(Refused, match=f"folder {place} cannot be made"):
                FileSink(place).put("a", b".")

    def test_a_file_system_without_links_is_named_before_a_marker_is_made(
        self, sink: Sink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_links(_self: Path, _target: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")  # As vfat says it.

        monkeypatch.setattr(Path, "hardlink_to", no_links)
        with pytest.raises(Refused, match="makes no links"):
            sink.put_if_absent("run/MARK", b".")
        assert (list(sink.list("")), sink.pending_uploads("")) == ([], [])

    @pytest.mark.parametrize("length", [254, 255, 256, 300, 508, 509, 765])
    def test_a_segment_of_any_length_is_kept_listed_and_deleted(
        self, tmp_path: Path, length: int
    ) -> None:
        """File systems take 255 bytes: a run of 90 letters that are no ASCII was never drained."""
        sink, above = FileSink(tmp_path), f"deep/{'r' * (length - 2)}"
        keys = [f"{above}@{step}/0.1/{name}" for step in (1, 2) for name in ("a", "b/c")]
        for key in keys:
            sink.put(key, key.encode())
        sink.put(f"{above}@1/mark", b".")
        assert not sink.put_if_absent(f"{above}@1/mark", b"another")
        assert [sink.get(key).decode() for key in keys] == keys
        names = [f"{'r' * (length - 2)}@{step}" for step in (1, 2)]
        assert list(sink.children("deep/")) == [f"{name}/" for name in names]
        assert list(sink.children(f"{above}@1/")) == ["0.1/", "mark"]
        assert list(sink.list("")) == sorted([*keys, f"{above}@1/mark"])
        assert list(sink.list(f"{above}@2/0")) == keys[2:]
        with sink.upload(f"{above}@3/half") as upload:
            upload.part(b"half")
            (pending,) = sink.pending_uploads(f"{above}@3/")
            assert pending.key == f"{above}@3/half"
        sink.settle(keys[0])
        sink.delete([*keys, f"{above}@1/mark", f"{above}@3/half"])
        assert list(tmp_path.iterdir()) == []

    def test_names_below_a_directory_that_is_not_synced_are_shown_as_they_are(self) -> None:
        FileSink(Path("/proc")).settle("self/status")  # The kernel syncs no directory of it.

    def test_workers_that_write_and_delete_side_by_side_remove_no_folder_from_each_other(
        self, sink: Sink
    ) -> None:
        def come_and_go(name: str) -> None:
            for _ in range(200):
                sink.put(f"goes/away/deep/{name}", b".")
                sink.delete([f"goes/away/deep/{name}"])

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(come_and_go, "abc"))
        assert list(sink.list("")) == []


class TestMemory(SinkContract):
    @pytest.fixture
    def sink(self) -> Iterator[Sink]:
        made = FsspecSink(f"memory://{uuid.uuid4()}/place")
        yield made
        made.delete(list(made.list("")))


def test_a_url_finds_its_sink(tmp_path: Path) -> None:
    assert isinstance(open_sink(f"file://{tmp_path}"), FileSink)
    assert isinstance(open_sink("memory://x"), FsspecSink)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("bucket/prefix", "not of the form SCHEME://PLACE"),
        ("file://relative/dir", "must be absolute"),
        ("ckpt+local:///scratch", "is a cluster"),
        ("nosuch://bucket", "nosuch"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str, text: str) -> None:
    with pytest.raises(Refused, match=text):
        open_sink(url)
