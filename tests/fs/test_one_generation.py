"""Ranks of a launch that read files of a step read one generation of it (decision 0017)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import fsspec
import pytest

from ckpt_client.fs.step_files import CkptFileSystemBase as FS

RANKS = 2


class Job:
    """The ranks of one launch, each with a filesystem of its own, and somebody else's."""

    def __init__(self, url: str, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._other = self._made(url)
        patch.setenv("TORCHELASTIC_RUN_ID", secrets.token_hex(4))
        self._ranks = [self._made(url) for _ in range(RANKS)]
        for fs in self._ranks:
            assert fs.live

    def _made(self, url: str) -> FS:
        made: FS = fsspec.core.url_to_fs(url, skip_instance_cache=True)[0]
        return made

    def outside(self) -> FS:
        """Of a process of no launch."""
        self._patch.delenv("RANK", raising=False)
        self._patch.delenv("WORLD_SIZE", raising=False)
        return self._other

    def rank(self, number: int) -> FS:
        """Its filesystem, in its environment."""
        self._patch.setenv("RANK", str(number))
        self._patch.setenv("WORLD_SIZE", str(RANKS))
        return self._ranks[number]

    def close(self) -> None:
        for fs in (self._other, *self._ranks):
            fs.close()


@pytest.fixture
def job(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    made = Job(url, monkeypatch)
    yield made
    made.close()


def write(fs: FS, run: str, content: bytes) -> None:
    with fs.transaction:
        for name in ("a.bin", "b.bin"):
            fs.pipe(f"{run}/5/{name}", content)


def test_a_step_that_is_written_again_between_two_ranks_reads_is_the_same_for_both(
    job: Job, run: str
) -> None:
    write(job.outside(), run, b"one")
    assert job.rank(0).cat_file(f"{run}/5/a.bin") == b"one"
    write(job.outside(), run, b"two!")
    assert job.rank(1).cat_file(f"{run}/5/b.bin") == b"one"
    assert job.rank(1).info(f"{run}/5/a.bin")["size"] == len(b"one")
    assert job.rank(0).cat_file(f"{run}/5/b.bin") == b"one"


def test_what_a_rank_writes_itself_all_ranks_read_at_once(job: Job, run: str) -> None:
    for content in (b"one", b"two!"):
        write(job.rank(0), run, content)
        for rank in range(RANKS):
            assert job.rank(rank).cat_file(f"{run}/5/a.bin") == content


def test_a_file_that_is_open_is_never_of_two_generations(job: Job, run: str) -> None:
    write(job.outside(), run, b"one" * 1000)
    with job.rank(0).open(f"{run}/5/a.bin", block_size=16) as file:
        head = file.read(3)
        write(job.outside(), run, b"two" * 1000)
        file.seek(2997)
        assert (head, file.read()) == (b"one", b"one")
