"""Files of many processes are committed when they are exactly what all of them have sealed."""

from __future__ import annotations

import io

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Refused
from ckpt.format.checksum import xxh3_128
from ckpt.format.members import Member
from ckpt_client.fs.sealing import SEAL, RankSeal, SealedFolder, disagreement, seal_name
from ckpt_client.fs.step_files import CkptFileSystemBase
from tests.waiting import wait_until


def member(name: str, content: bytes = b"x") -> Member:
    return Member(f"5/{name}", len(content), xxh3_128(content))


def seal_of(rank: int, world_size: int, files: list[Member]) -> RankSeal:
    found = SEAL.match(seal_name(rank, world_size, files))
    assert found is not None
    return RankSeal(int(found[1]), int(found[2]), int(found[3]), int(found[4], 16))


A, B, C = member("a"), member("b"), member("c", b"")


def test_what_all_ranks_have_sealed_agrees_in_any_order() -> None:
    seals = [seal_of(1, 3, [B]), seal_of(0, 3, [A, C]), seal_of(2, 3, [])]
    assert disagreement([C, B, A], seals, 3) == ""


@pytest.mark.parametrize(
    ("files", "seals", "text"),
    [
        ([A], [seal_of(0, 2, [A])], "no seal of rank 1"),
        ([A], [], "no seal of rank 0, 1"),
        ([A], [seal_of(0, 2, [A]), seal_of(1, 2, [B])], "written 2 files, 1 are there"),
        ([A, B, C], [seal_of(0, 2, [A]), seal_of(1, 2, [B])], "written 2 files, 3 are there"),
        ([A, C], [seal_of(0, 2, [A]), seal_of(1, 2, [B])], "not those that its ranks"),
        ([A, B], [seal_of(0, 2, [A]), seal_of(1, 3, [B])], "another world size than 2"),
        ([A], [seal_of(0, 2, [A]), seal_of(0, 2, [A]), seal_of(1, 2, [])], "sealed it twice"),
    ],
)
def test_everything_else_is_named(files: list[Member], seals: list[RankSeal], text: str) -> None:
    assert text in disagreement(files, seals, 2)


@given(
    parts=st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=4),
    lost=st.integers(0, 200),
    changed=st.booleans(),
)
def test_a_file_that_is_absent_or_another_never_agrees(
    parts: list[set[int]], lost: int, changed: bool
) -> None:
    ranks = [[member(f"{r}/{n}", bytes([n])) for n in sorted(p)] for r, p in enumerate(parts)]
    seals = [seal_of(rank, len(ranks), files) for rank, files in enumerate(ranks)]
    files = [one for each in ranks for one in each]
    assert disagreement(files, seals, len(ranks)) == ""
    if files:
        gone = files.pop(lost % len(files))
        if changed:
            files.append(Member(gone.name, gone.length, xxh3_128(b"other")))
        assert disagreement(files, seals, len(ranks)) != ""


def test_a_sealed_folder_becomes_visible_at_its_commit(fs: CkptFileSystemBase) -> None:
    folder = SealedFolder(fs, "sealed/step-5")
    with folder.create("deep/a.bin") as file:
        file.write(b"abc" * 100_000)
    with folder.create("b.bin") as file:
        file.write(b"")
    assert folder.listed() == {"b.bin": 0, "deep/a.bin": 300_000}
    folder.seal(0, 1)
    assert not fs.exists("sealed")
    folder.commit(1)
    assert fs.find("sealed") == ["sealed/step-5/b.bin", "sealed/step-5/deep/a.bin"]
    assert folder.listed() == {}


def test_what_is_given_up_is_not_listed(fs: CkptFileSystemBase) -> None:
    folder = SealedFolder(fs, "sealed/6")
    for name in ("a", "b"):
        with folder.create(name) as file:
            file.write(b"1")
    folder.give_up()
    with folder.create("c") as file:
        file.write(b"2")
    folder.seal(0, 1)
    folder.commit(1)
    assert fs.find("sealed/6") == ["sealed/6/c"]


def test_a_step_that_another_process_committed_and_deleted_is_sealed_anew(
    fs: CkptFileSystemBase, url: str
) -> None:
    other = fsspec.core.url_to_fs(url, skip_instance_cache=True)[0]
    for names in (("a", "b", "c"), ("a",)):
        folders = SealedFolder(fs, "sealed/8"), SealedFolder(other, "sealed/8")
        for rank, folder in enumerate(folders):
            for name in names:
                with folder.create(f"{rank}{name}") as file:
                    file.write(b"1")
            folder.seal(rank, 2)
        folders[0].commit(2)
        assert fs.find("sealed/8") == [f"sealed/8/{rank}{name}" for rank in "01" for name in names]
        wait_until(lambda: not other.live.publisher.waiting_below("sealed/8"), "it is told")
        with pytest.raises(Refused, match="goes as a whole"):
            other.rm("sealed/8/1a")
        fs.rm("sealed/8", recursive=True)
    other.close()


@pytest.mark.parametrize("path", ["sealed", "sealed/7/deeper", "7"])
def test_a_path_that_ends_with_no_step_is_refused(fs: CkptFileSystemBase, path: str) -> None:
    with pytest.raises(Refused, match="no checkpoint's folder"):
        SealedFolder(fs, path)


def test_a_stream_reads_into_the_callers_memory(fs: CkptFileSystemBase) -> None:
    content = bytes(range(256)) * 20_000
    fs.pipe("stream/1/a.bin", content)
    with fs.open_stream("stream/1/a.bin") as file:
        assert (file.seek(-6, io.SEEK_END), file.read()) == (len(content) - 6, content[-6:])
        assert (file.seek(300), file.read(7)) == (300, content[300:307])
        target = bytearray(len(content))
        assert (file.seek(0), file.readinto(target)) == (0, len(content))
        assert target == content
        assert (file.read(1), file.seek(9 << 20), file.read(1)) == (b"", 9 << 20, b"")
        file.seek(1)
        assert file.read() == content[1:]
    with pytest.raises(FileNotFoundError):
        fs.open_stream("stream/1/b.bin")
