"""A step's folder that many processes write and one of them commits: is everything there?

Who commits must know that no file is absent: not one whose writer has died since, nor one that has
not come back after a restart of the coordinator. So each process seals what it wrote with one more,
empty file, whose name says how many files and which; the commit waits until the seals of all ranks
are there and their sum is what is listed. Seals are not part of the checkpoint.

    .sealed-RANK-WORLD_SIZE-COUNT-DIGEST
    DIGEST   exclusive or of xxh3-128 over each file's (name, length, fingerprint), in hex
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING, Final

from ckpt.base.errors import Refused
from ckpt.base.ids import CheckpointId, RunName, Step
from ckpt.base.units import counted
from ckpt.format.checksum import xxh3_128
from ckpt.format.members import Member, encode_members
from ckpt_client.fs.paths import run_of, step_of

if TYPE_CHECKING:
    from ckpt_client.fs.files import WriteFile
    from ckpt_client.fs.step_files import CkptFileSystemBase

SEAL: Final = re.compile(r"\.sealed-([0-9]+)-([0-9]+)-([0-9]+)-([0-9a-f]{32})\Z", re.ASCII)
AGREE_WAIT_S: Final = 20.0
"""After a restart of the coordinator the writers come back within seconds."""
POLL_S: Final = 0.25
RANKS_SHOWN_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class RankSeal:
    """What one rank says that it wrote."""

    rank: int
    world_size: int
    count: int
    digest: int


def seal_name(rank: int, world_size: int, members: Iterable[Member]) -> str:
    """The name of a rank's seal, in the folder."""
    files = list(members)
    return f".sealed-{rank}-{world_size}-{len(files)}-{digest_of(files):032x}"


def digest_of(members: Iterable[Member]) -> int:
    """The same for any order of the files; that of two sets together is the exclusive or of
    both.
    """
    return reduce(xor, (_digest(member) for member in members), 0)


def disagreement(files: list[Member], seals: list[RankSeal], world_size: int) -> str:
    """Why these files are not what all ranks have written; empty if they are."""
    if {seal.world_size for seal in seals} - {world_size}:
        return f"it was sealed by ranks of another world size than {world_size}"
    absent = sorted(set(range(world_size)) - {seal.rank for seal in seals})
    if absent:
        shown = ", ".join(map(str, absent[:RANKS_SHOWN_MAX]))
        more = len(absent) - RANKS_SHOWN_MAX
        return f"there is no seal of rank {shown}" + (f" and {more} more" * (more > 0))
    if len(seals) > world_size:
        return "a rank has sealed it twice"
    count = sum(seal.count for seal in seals)
    if count != len(files):
        return f"its ranks have written {counted(count, 'file')}, {len(files)} are there"
    if reduce(xor, (seal.digest for seal in seals)) != digest_of(files):
        return "the files that are there are not those that its ranks have written"
    return ""


class SealedFolder:
    """I am RUN/STEP, written by all ranks and committed by one."""

    def __init__(self, fs: CkptFileSystemBase, path: str) -> None:
        """Raises Refused for a path that does not end with its step."""
        found = step_of(path)
        if found is None or found[0] != path.count("/"):
            raise Refused(f"{path} is no checkpoint's folder", hint="name it RUN/STEP")
        self.path = path
        self._fs = fs
        self._run, self._step = RunName(run_of(path)), Step(found[1])
        #: What the names of its files begin with, below the run: `STEP/`.
        self._prefix = f"{path.rpartition('/')[2]}/"

    def create(self, name: str) -> WriteFile:
        """A file that is on its targets when it is closed, and visible with the commit."""
        return self._fs.stage(f"{self.path}/{name}")

    def seal(self, rank: int, world_size: int) -> None:
        """Declare that this rank has written all its files."""
        written = self._fs.live.publisher.staged(self.path)
        self.create(seal_name(rank, world_size, written)).close()

    def listed(self) -> dict[str, int]:
        """Name -> length of the files that wait for the commit, whoever wrote them."""
        _, files, _ = self._look()
        return {member.name.removeprefix(self._prefix): member.length for member in files}

    def commit(self, world_size: int) -> None:
        """Make visible what all ranks have sealed.

        Raises Refused, and nothing has changed, when that is not what lies there.
        """
        deadline = time.monotonic() + AGREE_WAIT_S
        while True:
            checkpoint, files, seals = self._look()
            problem = disagreement(files, seals, world_size)
            if not problem and checkpoint is not None:
                self._fs.live.publisher.commit_members(checkpoint, files)
                return
            if time.monotonic() > deadline:
                raise Refused(f"{self.path} cannot be committed: {problem}", hint="save it again")
            time.sleep(POLL_S)

    def give_up(self) -> None:
        """Take back what this process has written and nobody has committed."""
        publisher = self._fs.live.publisher
        for path in publisher.waiting_below(self.path):
            publisher.discard(path)

    def _look(self) -> tuple[CheckpointId | None, list[Member], list[RankSeal]]:
        checkpoint, members = self._fs.live.publisher.open_list(self._run, self._step)
        files: list[Member] = []
        seals: list[RankSeal] = []
        for member in members:
            if member.name.startswith(self._prefix):
                found = SEAL.match(member.name.removeprefix(self._prefix))
                if found is None:
                    files.append(member)
                else:
                    rank, world_size, count = map(int, found.groups()[:3])
                    seals.append(RankSeal(rank, world_size, count, int(found[4], 16)))
        return checkpoint, files, seals


def _digest(member: Member) -> int:
    return int.from_bytes(xxh3_128(encode_members((member,))))
