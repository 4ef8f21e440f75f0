"""Who holds what? The ranks tell each other once; afterwards only whether anything changed.

What several ranks hold under one name is one thing, stored once, as torch's own checkpoints take
it. So each rank must know which others have a name, or a box of a tensor: they share its writing,
and plain values are compared here, before anything is staged.

    every save           16-byte digests of shape and of values that all hold, and whether a rank
                         must refuse its own state: then all of them do, and none waits for it
    shape has changed    names and boxes, from each to each; kept for the next save
    values differ        digests by name, from each to each, to name the path
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeVar

import torch.distributed as dist

from ckpt.base.errors import Aborted, Refused
from ckpt.format.checksum import xxh3_128
from ckpt.format.tree import Scalar, ScalarNode, encode_tree
from ckpt_torch.boxes import Extent
from ckpt_torch.place import Who

KNOWN_MAX: Final = 16
"""Shapes of state that are remembered."""
Fact = TypeVar("Fact")
Box = tuple[str, Extent, Extent]
"""(name, offset, shape)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a rank holds, without any value."""

    boxes: tuple[Box, ...]
    plain: tuple[str, ...]
    """Names of plain values."""
    digest: bytes

    @classmethod
    def of(cls, boxes: Iterable[Box], plain: Iterable[str]) -> Self:
        """In whatever order they come."""
        told = tuple(sorted(boxes)), tuple(sorted(plain))
        return cls(*told, xxh3_128(repr(told).encode()))


@dataclass(frozen=True, slots=True)
class Holders:
    """Which ranks hold each box and each plain value; ascending."""

    boxes: Mapping[Box, Extent]
    plain: Mapping[str, Extent]
    world_size: int

    def common(self) -> list[str]:
        """Plain values that all ranks hold, sorted."""
        return sorted(name for name, ranks in self.plain.items() if len(ranks) == self.world_size)

    @property
    def some_partly(self) -> bool:
        """Whether a plain value is held by several ranks, but not by all."""
        return any(1 < len(ranks) < self.world_size for ranks in self.plain.values())


@dataclass(frozen=True, slots=True)
class _Told:
    """What every rank says first."""

    problem: str
    shape: bytes
    known: tuple[bytes, ...] | None
    values: bytes


_known: OrderedDict[tuple[bytes, ...], Holders] = OrderedDict()
#: Digests of all ranks' shapes -> what they told; the newest last.


def find_holders(who: Who, shape: Shape, values: Mapping[str, Scalar]) -> Holders:
    """Who holds what. Every rank of the group calls this, or `tell_problem`, at the same time.

    Where ranks cannot talk, every rank is taken to hold the same names. Raises Refused by path for
    a plain value that differs between ranks, Aborted when another rank does not save.
    """
    if not who.speaking:
        everyone = tuple(range(who.world_size))
        boxes, plain = dict.fromkeys(shape.boxes, everyone), dict.fromkeys(shape.plain, everyone)
        return Holders(boxes, plain, who.world_size)
    digest = shape.digest
    known = next((key for key in reversed(_known) if key[who.rank] == digest), None)
    common = _known[known].common() if known else []
    told = _gathered(who, _Told("", digest, known, _digest_of(values, common)))
    _raise_others(told)
    key = tuple(one.shape for one in told)
    agreed = all(one.known == key for one in told)
    holders = _known[key] if agreed else _merged(_gathered(who, shape))
    _remember(key, holders)
    if not agreed or holders.some_partly or len({one.values for one in told}) > 1:
        _compare(who, holders, values)
    return holders


def tell_problem(who: Who, problem: str) -> None:
    """In place of `find_holders`, by a rank that refuses its own state."""
    if who.speaking:
        _gathered(who, _Told(problem, b"", None, b""))


def _raise_others(told: list[_Told]) -> None:
    for rank, one in enumerate(told):
        if one.problem:
            raise Aborted(f"rank {rank} does not save: {one.problem}")


def _remember(key: tuple[bytes, ...], holders: Holders) -> None:
    _known[key] = holders
    _known.move_to_end(key)
    while len(_known) > KNOWN_MAX:
        _known.popitem(last=False)


def _merged(shapes: list[Shape]) -> Holders:
    boxes: defaultdict[Box, list[int]] = defaultdict(list)
    plain: defaultdict[str, list[int]] = defaultdict(list)
    for rank, shape in enumerate(shapes):
        for box in shape.boxes:
            boxes[box].append(rank)
        for name in shape.plain:
            plain[name].append(rank)
    return Holders(
        {box: tuple(ranks) for box, ranks in boxes.items()},
        {name: tuple(ranks) for name, ranks in plain.items()},
        len(shapes),
    )


def _compare(who: Who, holders: Holders, values: Mapping[str, Scalar]) -> None:
    """Values that several ranks hold must be equal; all ranks come here, or none."""
    mine = {name: _encoded(value) for name, value in values.items() if len(holders.plain[name]) > 1}
    first: dict[str, tuple[int, bytes]] = {}
    for rank, theirs in enumerate(_gathered(who, mine)):
        for name, digest in theirs.items():
            known_rank, known = first.setdefault(name, (rank, digest))
            if digest != known:
                raise Refused(
                    f"{name}: the value differs between ranks {known_rank} and {rank}, "
                    "and would be stored once",
                    hint="put the rank into its key, or make it equal",
                )


def _digest_of(values: Mapping[str, Scalar], names: list[str]) -> bytes:
    return xxh3_128(b"".join(_encoded(values[name]) for name in names))


def _encoded(value: Scalar) -> bytes:
    return xxh3_128(encode_tree(ScalarNode(value)))


def _gathered(who: Who, fact: Fact) -> list[Fact]:
    facts: list[Fact | None] = [None] * who.world_size
    dist.all_gather_object(facts, fact, group=who.group)
    return [one for one in facts if one is not None]
