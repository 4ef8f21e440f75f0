"""People beside a job whose coordinators are struck: some name and pin its steps, somebody says how
a target stands. What they were told is so under whoever leads then.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import cast

from ckpt.base.ids import TargetId
from ckpt.format.messages.asking import TargetChanged
from tests.sim.clockwork import Clockwork
from tests.sim.label_book import LabelBook
from tests.sim.label_nodes import OWNERS, AdminOfLabels, LabelOracles, LabelWorld
from tests.sim.last_checks import SETTLE_US
from tests.sim.leading.world import LeadingWorld, Several
from tests.sim.member_operator import MemberOperator
from tests.sim.network import Network
from tests.sim.oracles import Violation

CHANGES = 6
GAP_US = 300_000
SPAN_US = 6_000_000
"""In which they do that."""


@dataclass(slots=True)
class _Place:
    """What an admin knows of a world."""

    clock: Clockwork
    network: Network
    coordinator: Several
    oracles: LabelOracles
    seed: int
    gap_us: int = GAP_US

    @property
    def book(self) -> LabelBook:
        return self.oracles.book

    def look(self) -> None:
        """Nobody makes a catalog of the targets here."""


class People:
    """I am all of them."""

    def __init__(self, world: LeadingWorld) -> None:
        self._world = world
        self._rng = random.Random(f"people of {world.seed}")
        self._admins: list[AdminOfLabels] = []
        self._operator = MemberOperator(world.clock, world.network, world.coordinator)
        self._target: TargetId | None = None
        self._standing = ""

    @property
    def labeled(self) -> int:
        """Changes of names and pins that were done, and heard of."""
        return sum(admin.ends.count("done") for admin in self._admins)

    @property
    def stood(self) -> int:
        """Whether a target stood otherwise."""
        return int(isinstance(self._operator.answer, TargetChanged))

    def begin(self) -> None:
        """In half of all histories each."""
        world, rng = self._world, self._rng
        if rng.random() < 0.5:
            oracles = cast(LabelOracles, world.oracles)
            place = _Place(world.clock, world.network, world.several, oracles, world.seed)
            for number in range(OWNERS):
                admin = AdminOfLabels(cast(LabelWorld, place), number, CHANGES)
                self._admins.append(admin)
                world.clock.after(rng.randint(0, SPAN_US), admin.dial)
        if rng.random() < 0.5:
            self._target = rng.choice(sorted(world.targets))
            self._standing = rng.choice(["draining", "out"])
            self._operator.look()
            wish = self._operator.want
            world.clock.after(rng.randint(0, SPAN_US), wish, self._target, self._standing)

    def end(self) -> None:
        """All has healed: whoever asked is answered, and what was said of a target is so."""
        if self._target is None:
            return
        self._wait()
        if isinstance(self._operator.answer, TargetChanged):
            self._check(self._standing)
            self._operator.want(self._target, "in")
            self._wait()
            self._check("in")

    def _wait(self) -> None:
        self._world.clock.run(lambda: self._operator.answer is not None, SETTLE_US)
        if self._operator.answer is None:
            raise Violation("P4: after healing nobody answers who says how a target stands")

    def _check(self, standing: str) -> None:
        assert self._target is not None
        self._world.clock.run(self._newest_leads, SETTLE_US)
        found = self._world.several.machine.members.targets[self._target].standing.value
        if found != standing:
            raise Violation(f"P1: {self._target} was said to be {standing}, and is {found}")

    def _newest_leads(self) -> bool:
        """Who led before may not know yet that it does no more."""
        leader = self._world.several.leader
        return leader is not None and leader.term == max(self._world.book.terms)
