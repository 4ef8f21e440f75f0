"""What can befall one placement group, and which losses are deadly.

A group is the set of targets that a payload's columns stay inside (ckpt.plan.placement): `domains`
failure domains of `domain_targets` each, at most `max_per_domain` columns of a payload in one.

Assumptions, which the chain (markov.py) and the trials (trials.py) share:
1. Targets are lost for good one by one, and domains as a whole, each at a constant rate and without
   regard to the others. Bursts wider than a domain are not in it.
2. What a lost target had is redundant again after a time without memory, whatever else is lost. It
   ends where the columns were made again, or where no step needs them any more.
3. A payload has min(max_per_domain, lost targets of the domain) columns at most in what a domain
   lost. While these do not exceed what its code can lose, nothing is lost.
4. The first loss beyond that is deadly where one of the group's payloads lies on all of it, which
   chance spreads. Where none lies on it, that loss is passed over.

Not in it: damage at rest that nobody has read yet. It is an erasure of one block of one payload,
and needs m losses of the same payload beside it; the tier has no pass over all bytes whose period
would bound its age. Chances are of a mission of one year, not a mean time to data loss: a mean that
is beyond every machine's life says nothing of it (Greenan, Plank and Wylie, "Mean Time to
Meaningless: MTTDL, Markov Models, and Storage System Reliability", HotStorage 2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ckpt.base.errors import Refused
from ckpt.erasure.code import Code

WHOLE: Final = -1
"""A domain that is lost as a whole, not target by target."""


class Hazards(Struct, frozen=True, gc=False):
    """What happens to a group's targets. Rates are a year, times are years."""

    target_losses: float
    """Of one target, for good, by itself."""
    domain_losses: float
    """Of one domain, for good, with all its targets."""
    target_return: float
    """Mean time until what one target had is redundant again; above 0."""
    domain_return: float
    """The same for what a whole domain had."""


class PlacementGroup(Struct, frozen=True, gc=False):
    """Where payloads lie."""

    code: Code
    domains: int
    domain_targets: int
    """In each domain."""
    max_per_domain: int = 1
    """Columns of a payload in one domain."""
    payloads: float = math.inf
    """How many lie here at once; infinity: on every set of targets that the rule allows."""

    def __post_init__(self) -> None:
        if min(self.domains, self.domain_targets, self.max_per_domain) < 1 or self.payloads < 0:
            raise Refused(f"{self} is no group of targets")
        if self.columns < self.code.k:
            room = f"{self.domains} domains of {self.domain_targets} targets"
            raise Refused(
                f"{room} have room for {self.columns} columns of a payload, {self.code} needs"
                f" {self.code.k}",
                hint="more domains, a narrower level, or more columns in one domain",
            )

    @property
    def targets(self) -> int:
        return self.domains * self.domain_targets

    @property
    def columns(self) -> int:
        """Of a payload: n, or as many as the rule leaves room for."""
        return min(self.code.n, self.domains * min(self.max_per_domain, self.domain_targets))

    @property
    def loss_max(self) -> int:
        """Columns that a payload may lose and stay readable."""
        return self.columns - self.code.k

    def weight(self, lost: int) -> int:
        """Columns of one payload at most in what a domain lost: a count of targets, or WHOLE."""
        return min(self.max_per_domain, self.domain_targets if lost == WHOLE else lost)

    def deadly(self, lost: Sequence[int]) -> float:
        """The chance that some payload lies on more of this than it can lose. `lost`: of each
        domain that lost something, as in `weight`.
        """
        if math.isinf(self.payloads):
            return 1.0
        counts = [self.domain_targets if each == WHOLE else each for each in lost]
        hit = self._hit_one_each(counts) if self.max_per_domain == 1 else self._hit(sum(counts))
        return 1.0 if hit >= 1 else -math.expm1(self.payloads * math.log1p(-hit))

    def _hit_one_each(self, counts: Sequence[int]) -> float:
        """A payload's chance to have a column on what is lost of each of these domains, where it
        takes one target of a domain. With more of them than its columns it cannot be on all.
        """
        apart = self.domains - len(counts)
        rest = self.columns - len(counts)
        if rest < 0 or apart < rest:
            return 0.0
        chosen = math.comb(apart, rest) / math.comb(self.domains, self.columns)
        return chosen * math.prod(count / self.domain_targets for count in counts)

    def _hit(self, lost: int) -> float:
        """A payload's chance to have more than it may lose among so many targets, wherever they
        are: as if no domain limited it.
        """
        ways = sum(
            math.comb(lost, held) * math.comb(self.targets - lost, self.columns - held)
            for held in range(self.loss_max + 1, min(lost, self.columns) + 1)
        )
        return ways / math.comb(self.targets, self.columns)
