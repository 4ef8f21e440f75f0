"""What must hold of a store while all around it dies, and what must be left when all is quiet."""

from __future__ import annotations

import os
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import ckpt
from ckpt.base.errors import NotFound, Unavailable
from ckpt.base.ids import Generation
from tests.soak.job import Said
from tests.soak.rank import RUN
from tests.soak.states import RANKS, check_whole
from tests.waiting import wait_until

LOOK_TIMEOUT_S: Final = 20.0
SAMPLE: Final = 3
COLUMNS: Final = 6
"""Of a payload under 4+2."""
LEFT_S: Final = 240.0


class Judge:
    """I look at one run through a store of my own, and remember what it has promised."""

    def __init__(self, store: ckpt.Store, seed: int, keep: int) -> None:
        self._store = store
        self._seed = seed
        self._keep = keep
        self._random = random.Random(seed)
        self._latest = 0
        #: (step, generation) -> the launch that its content names.
        self._launches: dict[tuple[int, str], int] = {}
        #: step -> the newest generation listed so far.
        self._generations: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self.unavailable: list[str] = []

    @property
    def latest(self) -> int:
        return self._latest

    def look(self) -> None:
        """At what is committed now, and at the content of some of it; targets may be down."""
        steps = self.list_steps()
        chosen = self._random.sample(steps, min(SAMPLE - 1, len(steps))) + steps[-1:]
        for step in chosen:
            try:
                self._load(step)
            except Unavailable as error:
                self.counts["out of reach"] += 1
                self.unavailable.append(f"{step}: {error}")
            except NotFound:
                newest = self.list_steps()[-self._keep :]
                assert step not in newest, f"step {step} is kept but not found"
                self.counts["deleted meanwhile"] += 1

    def look_at_all(self) -> None:
        """All targets are there: every committed step must load."""
        for step in self.list_steps():
            self._load(step)

    def list_steps(self) -> list[int]:
        """The committed steps; what was once newest, or once kept, may not be gone."""
        commits = self._store.steps(RUN)
        listed = {commit.step: str(commit.generation) for commit in commits}
        latest = max(listed, default=0)
        assert latest >= self._latest, f"latest went back from {self._latest} to {latest}"
        self._latest = latest
        # Deleted is the oldest, and only when there are enough newer ones.
        known = {**self._generations, **listed}
        for step in sorted(known)[-self._keep :]:
            assert step in listed, f"step {step} was committed and is gone"
            before = self._generations.get(step, listed[step])
            assert _age(listed[step]) >= _age(before), f"step {step} went back to {listed[step]}"
        self._generations = known
        self.counts["listed"] += 1
        return sorted(listed)

    def list_kept(self) -> set[int]:
        """The committed steps, and deleted ones whose bytes they refer to."""
        commits = self._store.steps(RUN)
        return {c.step for c in commits} | {home for c in commits for home in c.homes}

    def compare(self, said: Iterable[Said]) -> Counter[str]:
        """What ranks were told agrees: with each other, and with what is listed. Counts it."""
        counts: Counter[str] = Counter()
        resumed: dict[int, set[tuple[object, object, object]]] = {}
        for one in said:
            words = one.words
            counts[f"{one.event} {words.get('code', '')}".strip()] += 1
            if one.event == "resumed":
                resumed.setdefault(one.launch, set()).add(
                    (words["step"], words["generation"], words["by"])
                )
            if one.event == "committed":
                step = words["step"]
                assert isinstance(step, int)
                assert step <= self._latest, f"step {step} was announced and is not there"
                found = self._generations.get(step)
                if found is not None:
                    assert _age(found) >= _age(str(words["generation"]))
        for launch, places in resumed.items():
            assert len(places) == 1, f"launch {launch} went on from several places: {places}"
        return counts

    def _load(self, step: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Nothing is damaged: no step may be passed over.
            with self._store.resolve(RUN, step, timeout_s=LOOK_TIMEOUT_S) as checkpoint:
                union = checkpoint.load(whole=True)
                generation = str(checkpoint.generation)
                self.counts["with homes"] += bool(checkpoint.info.homes)
        launch = check_whole(union, self._seed, step)
        assert self._launches.setdefault((step, generation), launch) == launch
        self.counts["loaded"] += 1


def names_targets(text: str) -> bool:
    """Whether an error says which targets are missed."""
    return re.search(r"\bt\d\b", text) is not None


def _age(generation: str) -> Generation:
    """Generations in their order."""
    return Generation.parse(generation)


def descriptor_count(pid: int) -> int:
    """Of a process, without files of the store: it keeps a bounded number open for readers.

    One that was deleted meanwhile counts: its space is not free.
    """
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            path = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        # Its notes are among them: who has just started has read them, and others evict them soon.
        is_stored = re.search(r"/(columns|staging|documents)/|/targets/[^/]+/(?!lock$)", path)
        kept = is_stored and "(deleted)" not in path
        count += not kept
    return count


def resident_bytes(pid: int) -> int:
    """Of a process; pages that it shares count in full, but for what a target has borrowed."""
    total, counts = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = line.split(maxsplit=1)[0]
        if not head.endswith(":"):
            counts = not ("memfd:ckpt-" in line and " r--s " in line)
        elif counts and head == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


def column_counts(directory: Path) -> Counter[tuple[str, str]]:
    """Sealed column files of all targets, by (step, generation) as their names spell them."""
    counts: Counter[tuple[str, str]] = Counter()
    for path in directory.glob("targets/*/columns/*"):
        _, step, generation, _, _ = path.name.rsplit("-", 4)
        counts[step, generation] += 1
    return counts


def staged_count(directory: Path) -> int:
    """Files that lie aside on all targets: space for a next save, and columns not sealed yet."""
    return sum(1 for _ in directory.glob("targets/*/staging/*"))


def check_left(directory: Path, targets: str, judge: Judge) -> None:
    """Each column of what is kept lies on one target, and nothing else does. `targets`: a pattern
    of their directories.
    """

    def columns() -> list[str]:
        return [path.name for path in directory.glob(f"{targets}/columns/*")]

    def buried() -> set[int]:
        """Steps, of tombstones: one stays as long as others refer to what was deleted."""
        stones = directory.glob(f"{targets}/documents/tombstone-*")
        return {int(path.name.split("-")[2]) for path in stones}

    kept, listed = judge.list_kept(), set(judge.list_steps())
    wait_until(
        lambda: len(columns()) == len(kept) * RANKS * COLUMNS == len(set(columns())),
        "nothing is there twice, and nothing of what was deleted", LEFT_S,
    )  # fmt: skip
    wait_until(lambda: buried() == kept - listed, "no other tombstone", LEFT_S)


def tell(text: str) -> None:
    """Into the test's report, and seen at once with -s."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
