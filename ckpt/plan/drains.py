"""Which committed checkpoints go to an object store, in which order, and which of its own may go.

A store's policy stands in its URL: `s3://bucket/prefix?every=10&keep=5&runs=llama*`.

    every   drain each Nth committed step of a run [1]: the first, then every Nth after the last
            that the store has; steps that the tier has dropped since count
    keep    so many newest steps of a run stay in the store [all]
    runs    names of runs, with * and ?, comma between several [*]
    checksum    crc32 or md5: what an s3:// store compares each body with [crc32]

What there is to do follows from what is committed and what the store has: nothing else needs to
survive a crash.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import Generation, RunName, Step
from ckpt.format.messages.keeping import COUNT_MAX
from ckpt.plan.keeping.retention import expired

Held = tuple[Step, Generation]
"""A generation of a run in a store."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The newest committed generation of a step in the tier."""

    run: RunName
    step: Step
    generation: Generation
    payload_bytes: int
    committed_at_s: float


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """One store and what it shall hold."""

    url: str
    every: int = 1
    keep: int | None = None
    runs: tuple[str, ...] = ("*",)
    checksum: str = field(default="", compare=False)
    """How it is written, which the coordinator need not know."""

    def wants(self, run: RunName) -> bool:
        """Whether this store is for that run."""
        return any(fnmatchcase(run, pattern) for pattern in self.runs)


def check_policy(policy: StorePolicy) -> StorePolicy:
    """The same, or Refused for counts that nobody can go by, or no catalog has room for."""
    keep = 1 if policy.keep is None else policy.keep
    if not (1 <= policy.every <= COUNT_MAX and 1 <= keep <= COUNT_MAX):
        text = f"object store {policy.url!r}: every={policy.every}, keep={policy.keep}"
        raise Refused(text, hint=f"both are whole numbers from 1 to {COUNT_MAX}")
    return policy


def parse_policies(text: str) -> tuple[StorePolicy, ...]:
    """Stores, separated by blanks. Raises Refused naming what is wrong."""
    found = tuple(_policy(word) for word in text.split())
    urls = [policy.url for policy in found]
    if not found:
        raise Refused("no object store is named", hint="such as s3://bucket/prefix?keep=5")
    if len(set(urls)) != len(urls):
        raise Refused("an object store is named twice")
    return found


class StoredSteps:
    """What a store has of one run. A run that goes on for a year leaves a hundred thousand
    generations there, and every save asks: no question walks through them.
    """

    def __init__(self, generations: set[Held] | None = None) -> None:
        """It is this set from then on; who changes it otherwise makes another one of me."""
        self.generations: set[Held] = set() if generations is None else generations
        #: The newest generation of each step.
        self._by_step = dict(sorted(self.generations))
        #: Ascending.
        self._steps = list(self._by_step)

    def add(self, one: Held) -> None:
        """It has this as well now."""
        step, generation = one
        self.generations.add(one)
        if not self.has(step):
            insort(self._steps, step)
        self._by_step[step] = max(generation, self._by_step.get(step, generation))

    def has(self, step: Step) -> bool:
        """Whether it has any generation of the step."""
        return step in self._by_step

    def replaces(self, one: Held) -> bool:
        """Whether it has a newer generation of the step."""
        step, generation = one
        return self._by_step.get(step, generation) > generation

    @property
    def newest(self) -> Step | None:
        """The highest step."""
        return self._steps[-1] if self._steps else None

    def last(self, count: int) -> list[Step]:
        """At most so many newest steps, ascending."""
        return self._steps[-count:]

    def after(self, step: Step | None) -> list[Step]:
        """Steps above it, ascending; all for None."""
        return self._steps[0 if step is None else bisect_right(self._steps, step) :]


def due(
    policy: StorePolicy,
    committed: Sequence[Committed],
    stored: StoredSteps,
    gone: Collection[Step] = (),
) -> list[Committed]:
    """What one run's steps lack in the store, oldest commit first.

    `gone` are steps that were committed and are in the tier no more: above the newest that the
    store has they count among each Nth. What `keep` would delete again is left out.
    """
    by_step, newest = {one.step: one for one in committed}, stored.newest
    wanted: list[Committed] = []
    passed = policy.every - 1 if newest is None else 0
    passing = (step for step in gone if newest is None or step > newest)
    for step in sorted({*by_step, *passing}):
        one = by_step.get(step)
        if stored.has(step):
            if one is not None and (step, one.generation) not in stored.generations:
                wanted.append(one)  # A newer generation of a step that the store has.
            continue
        if newest is not None and step < newest and policy.every > 1:
            continue  # It was passed over when its turn was.
        passed += 1
        if passed >= policy.every and one is not None:
            wanted.append(one)
            passed = 0
    if policy.keep is not None:
        steps = sorted({*stored.last(policy.keep), *(one.step for one in wanted)})
        kept = set(steps[-policy.keep :])
        wanted = [one for one in wanted if one.step in kept]
    return sorted(wanted, key=lambda one: (one.committed_at_s, one.step))


def surplus(policy: StorePolicy, stored: Sequence[Held]) -> list[Held]:
    """What may be deleted from the store: replaced generations, and steps beyond `keep`."""
    return expired(stored, policy.keep)


_OPTIONS: Final = ("every", "keep", "runs", "checksum")
_CHECKSUMS: Final = ("crc32", "md5")
_HINT: Final = "every=N, keep=N, runs=PATTERN, checksum=crc32|md5"


def _policy(word: str) -> StorePolicy:
    url, _, query = word.partition("?")
    if "://" not in url:
        raise Refused(f"object store {word!r} is not of the form SCHEME://PLACE")
    values: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, equals, text = part.partition("=")
        if name not in _OPTIONS or not equals or not text or name in values:
            raise Refused(f"object store {word!r}: {part!r}", hint=_HINT)
        values[name] = text
    if values.get("checksum", "md5") not in _CHECKSUMS:
        raise Refused(f"object store {word!r}: {values['checksum']!r} is no checksum", hint=_HINT)
    policy = StorePolicy(
        url.rstrip("/"),
        _count(word, values.get("every", "1")),
        _count(word, values["keep"]) if "keep" in values else None,
        tuple(values.get("runs", "*").split(",")),
        values.get("checksum", ""),
    )
    return check_policy(policy)


def _count(word: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise Refused(f"object store {word!r}: {text!r} is not a whole number from 1")
    return int(text)
