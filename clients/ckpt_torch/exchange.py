"""Who holds what? The ranks tell each other once; afterwards only whether anything changed.

What several ranks hold under one name is one thing, stored once, as torch's own checkpoints take
it. So each rank must know which others have a name, or a box of a tensor: they share its writing,
and plain values are compared here, before anything is staged.

    every save           digests of shape and of values that all hold, and whether a rank must
                         refuse its own state: then all of them do, and none waits for it
    a rank refuses       why
    shape has changed    names and boxes, from each to each; kept for the next save
    values differ        digests by name, from each to each, to name the path

The first line is one collective of a few bytes. Beside four ranks on two cores it took 10 ms, all
of them waiting: so it is under way while the caller copies (`Exchange`).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self, TypeVar

import torch
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


@dataclass(frozen=True)
class Shape:
    """What a rank holds, without the values."""

    boxes: tuple[Box, ...]
    plain: tuple[str, ...]
    """Names of plain values."""

    @cached_property
    def digest(self) -> bytes:
        """Equal where all else is; only ranks that talk ask for it."""
        return xxh3_128(repr((self.boxes, self.plain)).encode())

    @classmethod
    def of(cls, boxes: Iterable[Box], plain: Iterable[str]) -> Self:
        """The shape of these, in any order."""
        return cls(tuple(sorted(boxes)), tuple(sorted(plain)))


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
    def all_common(self) -> bool:
        """Whether all ranks hold all of it."""
        counts = {*map(len, self.boxes.values()), *map(len, self.plain.values())}
        return counts <= {self.world_size}

    @property
    def some_partly(self) -> bool:
        """Whether a plain value is held by several ranks, but not by all."""
        return any(1 < len(ranks) < self.world_size for ranks in self.plain.values())


_DIGEST_BYTES: Final = 16
_NO_DIGEST: Final = bytes(_DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class _Told:
    """What every rank says first."""

    refuses: bool
    shape: bytes
    known: bytes
    """Digest of all ranks' shapes, as this rank expects them."""
    values: bytes

    def encoded(self) -> bytes:
        """| 0: refuses | 1: shape | 17: known | 33: values |, of one size."""
        return bytes((self.refuses,)) + self.shape + self.known + self.values

    @classmethod
    def decoded(cls, record: bytes) -> Self:
        at = range(1, len(record), _DIGEST_BYTES)
        return cls(bool(record[0]), *(record[one : one + _DIGEST_BYTES] for one in at))


#: Digests of all ranks' shapes -> who held what then; the newest last, at most KNOWN_MAX.
_known: OrderedDict[tuple[bytes, ...], Holders] = OrderedDict()


class Exchange:
    """I have sent the other ranks what this one holds, and hear of theirs.

    Every rank of the group makes me, or calls `tell_problem`, at the same time, and asks me for
    `holders`, whatever happens to it meanwhile: the others may have more to say.
    """

    def __init__(self, who: Who, shape: Shape, digests: Mapping[str, bytes]) -> None:
        """digests: as `digests_of` the plain values."""
        self.who = who
        """The ranks that talk, and this one of them."""
        self._shape = shape
        self._digests = digests
        #: What all ranks said when this one last said the same; a key of `_known`.
        self._key = next((key for key in reversed(_known) if _is_own(key, who, shape)), None)
        #: The first round, under way from here until `holders`; None where ranks cannot talk.
        self._round: _Round | None = None
        if who.speaking:
            common = _known[self._key].common() if self._key else []
            known = _NO_DIGEST if self._key is None else _digest_of_key(self._key)
            told = _Told(False, shape.digest, known, _digest_of(digests, common))
            self._round = _Round(who, told.encoded())

    def holders(self) -> Holders:
        """Who holds what; ask once.

        Where ranks cannot talk, every rank is taken to hold the same names. Raises Refused by path
        for a plain value that differs between ranks, Aborted when another rank does not save.
        """
        who, shape = self.who, self._shape
        if self._round is None:
            everyone = tuple(range(who.world_size))
            boxes, plain = (
                dict.fromkeys(shape.boxes, everyone),
                dict.fromkeys(shape.plain, everyone),
            )
            return Holders(boxes, plain, who.world_size)
        told = [_Told.decoded(record) for record in self._round.wait()]
        if any(one.refuses for one in told):
            _raise_problems(_gathered(who, ""))
        key = tuple(one.shape for one in told)
        agreed = all(one.known == _digest_of_key(key) for one in told)
        holders = _known[key] if agreed else _merged(_gathered(who, shape))
        _remember(key, holders)
        if not agreed or holders.some_partly or len({one.values for one in told}) > 1:
            _compare(who, holders, self._digests)
        return holders


def digests_of(values: Mapping[str, Scalar]) -> dict[str, bytes]:
    """By name. Raises Refused by path for a text that cannot be stored."""
    digests = {}
    for name, value in values.items():
        try:
            digests[name] = xxh3_128(encode_tree(ScalarNode(value)))
        except Refused as error:
            raise Refused(f"{name}: {error.message.removeprefix('state: ')}") from None
    return digests


def tell_problem(who: Who, problem: str) -> None:
    """Report a problem in the place of an Exchange: this rank refuses its own state."""
    if who.speaking:
        _Round(who, _Told(True, _NO_DIGEST, _NO_DIGEST, _NO_DIGEST).encoded()).wait()
        _gathered(who, problem or "it raised an error without a text")


def _is_own(key: tuple[bytes, ...], who: Who, shape: Shape) -> bool:
    return len(key) == who.world_size and key[who.rank] == shape.digest


def _raise_problems(problems: list[str]) -> None:
    for rank, problem in enumerate(problems):
        if problem:
            raise Aborted(f"rank {rank} does not save: {problem}")


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


def _compare(who: Who, holders: Holders, digests: Mapping[str, bytes]) -> None:
    """Values that several ranks hold must be equal; all ranks come here, or none."""
    mine = {name: digest for name, digest in digests.items() if len(holders.plain[name]) > 1}
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


def _digest_of(digests: Mapping[str, bytes], names: list[str]) -> bytes:
    return xxh3_128(b"".join([digests[name] for name in names]))


def _digest_of_key(key: tuple[bytes, ...]) -> bytes:
    return xxh3_128(b"".join(key))


class _Round:
    """One record of each rank, all of one size, on their way to all."""

    def __init__(self, who: Who, record: bytes) -> None:
        device = _device_of(who.group)
        mine = torch.frombuffer(bytearray(record), dtype=torch.uint8).to(device)
        records = torch.empty(who.world_size, len(record), dtype=mine.dtype, device=device)
        self._records = list(records)
        self._work = dist.all_gather(self._records, mine, group=who.group, async_op=True)

    def wait(self) -> list[bytes]:
        """By rank."""
        if self._work is not None:
            self._work.wait()
        return [bytes(one.tolist()) for one in self._records]


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Whose tensors the group moves."""
    kinds = [kind.partition(":")[0] for kind in dist.get_backend_config(group).split(",")]
    return torch.device("cpu" if "cpu" in kinds else kinds[0])


def _gathered(who: Who, fact: Fact) -> list[Fact]:
    facts: list[Fact | None] = [None] * who.world_size
    dist.all_gather_object(facts, fact, group=who.group)
    return [one for one in facts if one is not None]
