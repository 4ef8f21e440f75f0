"""Which ranks say what of one thing, for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ckpt.base.ids import Rank

RANKS_NAMED_MAX: Final = 8


def ranks_text(ranks: Sequence[Rank]) -> str:
    """`rank 3`, `ranks 0, 1, 2`, `ranks 0, 1, .., 7 and 1016 more`."""
    named = ", ".join(str(rank) for rank in ranks[:RANKS_NAMED_MAX])
    more = f" and {len(ranks) - RANKS_NAMED_MAX} more" if len(ranks) > RANKS_NAMED_MAX else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}"


def group(values: Sequence[tuple[Rank, str]]) -> list[tuple[str, tuple[Rank, ...]]]:
    """Ranks by what they said, most ranks first, then the group of the lowest rank."""
    groups: defaultdict[str, list[Rank]] = defaultdict(list)
    for rank, value in values:
        groups[value].append(rank)
    return sorted(((v, tuple(r)) for v, r in groups.items()), key=lambda g: (-len(g[1]), g[1]))


def by_fingerprint(values: Sequence[tuple[Rank, bytes]]) -> list[tuple[str, tuple[Rank, ...]]]:
    """The same of what was fingerprinted."""
    return group([(rank, fingerprint.hex()) for rank, fingerprint in values])


def odd_ranks(groups: Sequence[tuple[str, tuple[Rank, ...]]]) -> tuple[Rank, ...]:
    """All ranks outside the largest group."""
    return tuple(sorted(rank for _, ranks in groups[1:] for rank in ranks))


def few(groups: Sequence[tuple[str, tuple[Rank, ...]]]) -> Sequence[tuple[str, tuple[Rank, ...]]]:
    """As many as people read."""
    return groups[:RANKS_NAMED_MAX]


def groups_text(groups: Sequence[tuple[str, tuple[Rank, ...]]]) -> str:
    """Who agrees with whom."""
    return " against ".join(ranks_text(ranks) for _, ranks in reversed(few(groups)))
