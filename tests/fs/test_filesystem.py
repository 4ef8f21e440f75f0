"""The filesystem on a real cluster: what is visible when, and that only whole steps are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import fsspec
import msgspec
import numpy as np
import pytest

import ckpt
from ckpt.base.errors import Refused
from ckpt.protocol.coordinator.reading.answers import MembersView
from ckpt_client.fs.step_files import CkptFileSystemBase
from tests.e2e.cluster import Cluster
from tests.waiting import wait_until

FS = CkptFileSystemBase


class Failure(Exception):
    """Of the block under test."""


@pytest.fixture
def other(url: str) -> Iterator[FS]:
    """Another process's filesystem, as far as the cluster can tell."""
    made = fsspec.core.url_to_fs(url, skip_instance_cache=True)[0]
    yield made
    made.close()


def metadata_of(*names: str) -> bytes:
    """A pickle that names data files, as torch's does: a tuple of texts."""
    texts = (b"\x8c" + bytes([len(name)]) + name.encode() for name in names)
    return b"\x80\x04(" + b"".join(texts) + b"t."


def waiting(fs: FS, run: str, step: int) -> list[str]:
    """Names in the step's open list, as the coordinator has it."""
    answer = fs.live.connection.control.ask("members", run, step)  # type: ignore[arg-type]
    return [member.name for member in msgspec.json.decode(answer, type=MembersView).members]


# --------------------------------------------------------------------------- loose files


def test_a_loose_file_is_there_when_it_is_closed_and_replaced_as_a_whole(fs: FS, run: str) -> None:
    path = f"{run}/tables/x.csv"
    with fs.open(path, "w") as file:
        file.write("a,b\n")
        assert not fs.exists(path)
    assert fs.cat(path) == b"a,b\n"
    fs.pipe(path, b"second")
    assert fs.cat(path) == b"second"
    assert fs.info(path)["size"] == 6
    fs.rm(path)
    assert not fs.exists(path)
    assert not fs.exists(run)


def test_an_empty_file_is_a_file(fs: FS, run: str) -> None:
    fs.touch(f"{run}/empty")
    assert (fs.size(f"{run}/empty"), fs.cat(f"{run}/empty")) == (0, b"")


def test_a_block_that_raises_stores_nothing(fs: FS, run: str) -> None:
    def half() -> None:
        with fs.open(f"{run}/x", "wb") as file:
            file.write(b"half")
            raise Failure

    with pytest.raises(Failure):
        half()
    assert not fs.exists(f"{run}/x")


def test_a_write_file_can_be_synced_told_and_sought(fs: FS, run: str) -> None:
    with fs.open(f"{run}/x", "wb") as file:
        file.write(b"0123456789")
        assert file.tell() == 10
        file.seek(2)
        file.write(b"ab")
        file.flush()
        os.fsync(file.fileno())
    assert fs.cat(f"{run}/x") == b"01ab456789"


def test_exclusive_creation_and_modes_that_cannot_be(fs: FS, run: str) -> None:
    with fs.open(f"{run}/x", "xb") as file:
        file.write(b"x")
    with pytest.raises(FileExistsError):
        fs.open(f"{run}/x", "xb")
    for mode in ("ab", "r+b"):
        with pytest.raises(Refused, match="written whole"):
            fs.open(f"{run}/x", mode)
    for missing in ("y", "x/y"):
        with pytest.raises(FileNotFoundError, match="no committed checkpoint holds it; see `ckpt"):
            fs.open(f"{run}/{missing}", "rb")
    with pytest.raises(IsADirectoryError):
        fs.open(run, "rb")
    with pytest.raises(IsADirectoryError):
        fs.open(run, "wb")


def test_names_are_literal_for_rm_exists_and_info(fs: FS, run: str) -> None:
    for name in ("a[1]", "a1", "a*"):
        fs.pipe(f"{run}/{name}", name.encode())
    assert fs.info(f"{run}/a*")["name"] == f"{run}/a*"
    assert not fs.exists(f"{run}/*")
    fs.rm(f"{run}/a[1]")
    assert fs.ls(run, detail=False) == [f"{run}/a*", f"{run}/a1"]
    fs.rm(f"{run}/a*")
    assert fs.ls(run, detail=False) == [f"{run}/a1"]


def test_files_are_copied_and_moved(fs: FS, run: str) -> None:
    fs.pipe(f"{run}/x", b"content")
    fs.cp(f"{run}/x", f"{run}/y")
    fs.mv(f"{run}/x", f"{run}/z")
    assert fs.ls(run, detail=False) == [f"{run}/y", f"{run}/z"]
    assert fs.cat(f"{run}/z") == b"content"


# --------------------------------------------------------------------------- transactions, steps


def test_a_transaction_commits_the_files_of_a_step_at_once(fs: FS, other: FS, run: str) -> None:
    with fs.transaction:
        for name in ("a", "sub/b"):
            fs.pipe(f"{run}/step-7/{name}", name.encode())
        assert not other.exists(f"{run}/step-7/a")
        assert waiting(fs, run, 7) == ["step-7/a", "step-7/sub/b"]
    assert other.find(run) == [f"{run}/step-7/a", f"{run}/step-7/sub/b"]
    assert other.ls(run, detail=False) == [f"{run}/step-7"]
    assert other.isdir(f"{run}/step-7/sub")
    assert other.cat(f"{run}/step-7/sub/b") == b"sub/b"


def test_a_transaction_that_raises_takes_everything_back(fs: FS, run: str) -> None:
    def half() -> None:
        with fs.transaction:
            fs.pipe(f"{run}/7/a", b"a")
            raise Failure

    with pytest.raises(Failure):
        half()
    assert not fs.exists(f"{run}/7")
    with fs.transaction:
        fs.pipe(f"{run}/7/b", b"b")
    assert fs.find(run) == [f"{run}/7/b"], "nothing of the first one came along"


def test_a_transaction_over_two_steps_is_a_commit_of_each(fs: FS, run: str) -> None:
    with fs.transaction:
        fs.pipe(f"{run}/1/a", b"1")
        fs.pipe(f"{run}/2/a", b"2")
        fs.pipe(f"{run}/loose", b"3")
    assert fs.find(run) == [f"{run}/1/a", f"{run}/2/a", f"{run}/loose"]


def test_of_two_writes_in_a_transaction_the_last_counts(fs: FS, run: str) -> None:
    with fs.transaction:
        fs.pipe(f"{run}/1/a", b"first")
        fs.pipe(f"{run}/1/a", b"second")
    assert fs.cat(f"{run}/1/a") == b"second"


def test_a_file_alone_in_a_step_is_committed_but_never_replaces_others(fs: FS, run: str) -> None:
    fs.pipe(f"{run}/1/model.safetensors", b"one")
    fs.pipe(f"{run}/1/model.safetensors", b"two")
    assert fs.cat(f"{run}/1/model.safetensors") == b"two"
    with pytest.raises(Refused, match=r"other files \(1/model\.safetensors\)") as caught:
        fs.open(f"{run}/1/config.json", "wb")
    assert "transaction" in caught.value.hint


def test_a_committed_step_goes_as_a_whole(fs: FS, run: str) -> None:
    with fs.transaction:
        fs.pipe(f"{run}/1/a", b"a")
        fs.pipe(f"{run}/1/sub/b", b"b")
    for call in (lambda: fs.rm(f"{run}/1/a"), lambda: fs.rm(f"{run}/1/sub", recursive=True)):
        with pytest.raises(Refused, match="goes as a whole"):
            call()
    fs.rm(f"{run}/1", recursive=True)
    assert not fs.exists(run)
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{run}/1", recursive=True)


def test_what_a_rollback_has_set_aside_is_not_there_until_it_is_brought_back(
    fs: FS, url: str, run: str
) -> None:
    for step in (5, 6):
        with fs.transaction:
            fs.pipe({f"{run}/{step}/a.bin": b"first", f"{run}/{step}/b.bin": b"first"})
    with ckpt.open(url) as store:
        store.rollback(run, 5)
        assert fs.ls(run, detail=False) == [f"{run}/5"]
        assert not fs.exists(f"{run}/6/a.bin")
        with pytest.raises(FileNotFoundError):
            fs.cat_file(f"{run}/6/b.bin")
        with fs.transaction:
            fs.pipe(f"{run}/6/a.bin", b"again")
        assert fs.ls(f"{run}/6", detail=False) == [f"{run}/6/a.bin"]
        assert fs.cat_file(f"{run}/6/a.bin") == b"again"
        store.rollback(run, 5)
        store.untag(run, "aside-6.2")
    assert fs.ls(f"{run}/6", detail=False) == [f"{run}/6/a.bin"]


def test_an_open_file_is_read_from_its_generation_while_the_next_is_committed(
    fs: FS, other: FS, run: str
) -> None:
    fs.pipe(f"{run}/1/a", b"old" * 100)
    with fs.open(f"{run}/1/a", "rb", block_size=10) as file:
        assert file.read(3) == b"old"
        other.pipe(f"{run}/1/a", b"new" * 100)
        assert file.read() == b"old" * 99
    assert fs.cat(f"{run}/1/a") == b"new" * 100


def test_checkpoints_of_ranks_are_no_files(fs: FS, url: str, run: str) -> None:
    with ckpt.open(url) as store:
        store.save(run, 1, {"w": np.arange(3)}, rank=0, world_size=1).wait()
    assert not fs.exists(run)
    with fs.transaction:
        fs.pipe(f"{run}/2/a", b"a")
    assert fs.ls(run, detail=False) == [f"{run}/2"]


def test_a_step_of_files_loads_as_a_dict_of_bytes(fs: FS, url: str, run: str) -> None:
    with fs.transaction:
        fs.pipe(f"{run}/3/a", b"abc")
        fs.pipe(f"{run}/3/sub/#b", b"")
    with ckpt.open(url) as store:
        tree = store.load(run, 3, whole=True)
    assert isinstance(tree, dict)
    assert bytes(tree["3"]["a"]) == b"abc"
    assert tree["3"]["sub"]["#b"].size == 0


# --------------------------------------------------------------------------- reading


def test_ranges_are_read_and_damage_at_rest_is_mended(fs: FS, directory: Path, run: str) -> None:
    content = np.random.default_rng(1).bytes(3_000_000)
    fs.pipe(f"{run}/1/x", content)
    fs.live.steps.close()
    columns = Cluster(directory, "").columns_of(run)
    for files in list(columns.values())[:1]:
        for column in files:
            Cluster(directory, "").flip(column, 1000)
    assert fs.cat_file(f"{run}/1/x", 999, 2_000_000) == content[999:2_000_000]
    assert fs.cat_file(f"{run}/1/x", -10) == content[-10:]
    assert fs.cat_ranges([f"{run}/1/x"] * 2, [0, 5], [3, 9]) == [content[:3], content[5:9]]
    with fs.open(f"{run}/1/x", "rb", block_size=1 << 20) as file:
        file.seek(-22, os.SEEK_END)
        assert file.read() == content[-22:]
        file.seek(0)
        assert file.read() == content


# --------------------------------------------------------------------------- torch's protocol


def test_the_rename_of_the_metadata_commits_exactly_what_it_names(
    fs: FS, other: FS, run: str
) -> None:
    folder = f"{run}/step-100"
    fs.pipe(f"{folder}/__0_0.distcp", b"rank 0")
    other.pipe(f"{folder}/__1_0.distcp", b"rank 1")
    other.pipe(f"{folder}/__2_0.distcp", b"of an earlier try")
    fs.pipe(f"{folder}/.metadata.tmp", metadata_of("__0_0.distcp", "__1_0.distcp"))
    assert not fs.exists(folder)
    assert not fs.exists(f"{folder}/.metadata.tmp")
    fs.rename(f"{folder}/.metadata.tmp", f"{folder}/.metadata")
    names = [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert other.find(folder) == [f"{folder}/{name}" for name in names]
    assert other.cat(f"{folder}/__1_0.distcp") == b"rank 1"
    assert waiting(fs, run, 100) == []


def test_a_missing_data_file_refuses_the_commit_by_name(
    fs: FS, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt_client.fs.publishing.MEMBERS_WAIT_S", 0.0)
    fs.pipe(f"{run}/1/__0_0.distcp", b"0")
    fs.pipe(f"{run}/1/.metadata.tmp", metadata_of("__0_0.distcp", "__1_0.distcp"))
    with pytest.raises(Refused, match=r"1/__1_0\.distcp"):
        fs.mv(f"{run}/1/.metadata.tmp", f"{run}/1/.metadata")
    assert not fs.exists(f"{run}/1")
    fs.pipe(f"{run}/1/__1_0.distcp", b"1")
    fs.mv(f"{run}/1/.metadata.tmp", f"{run}/1/.metadata")
    assert len(fs.find(f"{run}/1")) == 3


def test_a_step_saved_again_replaces_the_old_one_only_at_its_commit(fs: FS, run: str) -> None:
    for content in (b"old", b"new"):
        fs.pipe(f"{run}/1/__0_0.distcp", content)
        fs.pipe(f"{run}/1/.metadata.tmp", metadata_of("__0_0.distcp"))
        if content == b"new":
            fs.rm(f"{run}/1/.metadata")  # As torch does before it renames.
            assert fs.cat(f"{run}/1/__0_0.distcp") == b"old"
        fs.mv(f"{run}/1/.metadata.tmp", f"{run}/1/.metadata")
    assert fs.cat(f"{run}/1/.metadata")
    assert fs.cat(f"{run}/1/__0_0.distcp") == b"new"


def test_data_files_come_from_the_generation_whose_metadata_was_read(
    fs: FS, other: FS, run: str
) -> None:
    def save(writer: FS, content: bytes) -> None:
        writer.pipe(f"{run}/1/__0_0.distcp", content)
        writer.pipe(f"{run}/1/.metadata.tmp", metadata_of("__0_0.distcp"))
        writer.mv(f"{run}/1/.metadata.tmp", f"{run}/1/.metadata")

    save(other, b"old")
    fs.cat(f"{run}/1/.metadata")
    save(other, b"new")
    assert fs.cat(f"{run}/1/__0_0.distcp") == b"old"
    fs.cat(f"{run}/1/.metadata")
    assert fs.cat(f"{run}/1/__0_0.distcp") == b"new"


def test_a_file_that_its_writer_removes_is_not_committed(fs: FS, run: str) -> None:
    def half() -> None:
        with fs.open(f"{run}/1/__0_0.distcp", "wb") as file:
            file.write(b"x")
            fs.rm(f"{run}/1/__0_0.distcp")  # As torch does, then raises.
            raise Failure

    with pytest.raises(Failure):
        half()
    fs.pipe(f"{run}/1/__1_0.distcp", b"y")
    assert waiting(fs, run, 1) == ["1/__1_0.distcp"]
    fs.rm(f"{run}/1", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{run}/1/__1_0.distcp")


def test_a_metadata_of_each_rank_is_refused_by_name(fs: FS, run: str) -> None:
    with pytest.raises(Refused, match=r"__0\.metadata\.tmp") as caught:
        fs.open(f"{run}/1/__0.metadata.tmp", "wb")
    assert "use_collectives" in caught.value.hint


def test_what_waits_for_its_commit_is_not_renamed(fs: FS, run: str) -> None:
    fs.pipe(f"{run}/1/__0_0.distcp", b"x")
    with pytest.raises(Refused, match="not committed yet"):
        fs.mv(f"{run}/1/__0_0.distcp", f"{run}/1/__1_0.distcp")
    fs.pipe(f"{run}/1/.metadata.tmp", metadata_of())
    with pytest.raises(Refused, match="can only become"):
        fs.mv(f"{run}/1/.metadata.tmp", f"{run}/1/other")
    fs.rm(f"{run}/1", recursive=True)


# --------------------------------------------------------------------------- processes


def script(text: str, *arguments: str) -> str:
    """A Python process of its own; what it printed."""
    line = [sys.executable, "-W", "error", "-c", text, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_trainer_never_loads_fsspec(url: str) -> None:
    script(
        "import sys, ckpt\n"
        "ckpt.open(sys.argv[1]).close()\n"
        "assert not {'fsspec', 'pandas', 'torch'} & set(sys.modules), sorted(sys.modules)",
        url,
    )


def test_a_url_is_enough_for_fsspec(url: str, fs: FS, run: str) -> None:
    printed = script(
        "import sys, fsspec\n"
        "with fsspec.open(sys.argv[1], 'wb') as f: f.write(b'there')\n"
        "print(fsspec.open(sys.argv[1]).open().read())",
        f"{url}/{run}/x",
    )
    assert printed == "b'there'"
    assert fs.cat(f"{run}/x") == b"there"
    assert fsspec.core.url_to_fs(fs.unstrip_protocol(f"{run}/x")) == (fs, f"{run}/x")


def test_the_remote_form_reaches_the_same_files(
    directory: Path, fs: FS, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = json.loads((directory / "ready.json").read_text())["address"]
    monkeypatch.setenv("CKPT_SECRET_FILE", str(directory / "secret"))
    fs.pipe(f"{run}/x", b"content")
    remote, path = fsspec.core.url_to_fs(f"ckpt://{address}/{run}/x")
    assert remote.cat(path) == b"content"
    assert remote.unstrip_protocol(path) == f"ckpt://{address}/{run}/x"
    remote.close()


def test_a_filesystem_that_was_sent_on_and_a_forked_child_have_connections_of_their_own(
    url: str, fs: FS, run: str
) -> None:
    fs.pipe(f"{run}/x", b"content")
    copy = ForkingPickler.loads(ForkingPickler.dumps(fs))  # As multiprocessing sends it.
    assert copy.cat(f"{run}/x") == b"content"
    printed = script(
        "import os, sys, fsspec, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "fs, path = fsspec.core.url_to_fs(sys.argv[1])\n"
        "assert fs.cat(path) == b'content'\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if fs.cat(path) == b'content' else 1)\n"
        "print(os.waitpid(child, 0)[1], fs.cat(path))",
        f"{url}/{run}/x",
    )
    assert printed == "0 b'content'"


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_nothing_and_its_space_comes_back(
    directory: Path, url: str, fs: FS, run: str
) -> None:
    script(
        "import os, signal, sys, fsspec\n"
        "fs, path = fsspec.core.url_to_fs(sys.argv[1])\n"
        "fs.pipe(path, bytes(100_000))\n"
        "os._exit(0)",
        f"{url}/{run}/1/__0_0.distcp",
    )
    cluster = Cluster(directory, "")
    assert any(cluster.columns_of(run).values())
    assert not fs.exists(run)
    wait_until(lambda: not any(cluster.columns_of(run).values()), "its space is free", 60.0)
    assert not fs.exists(run)


def test_a_commit_outlives_the_coordinator(fs: FS, other: FS, directory: Path, run: str) -> None:
    fs.pipe(f"{run}/1/__0_0.distcp", b"rank 0")
    other.pipe(f"{run}/1/__1_0.distcp", b"rank 1")
    cluster = Cluster(directory, "")
    before = cluster.coordinator_pid
    os.kill(before, signal.SIGKILL)
    fs.pipe(f"{run}/1/.metadata.tmp", metadata_of("__0_0.distcp", "__1_0.distcp"))
    fs.mv(f"{run}/1/.metadata.tmp", f"{run}/1/.metadata")
    assert cluster.coordinator_pid != before
    assert fs.cat(f"{run}/1/__1_0.distcp") == b"rank 1"
