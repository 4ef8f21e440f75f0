"""Is it the same etcd that answers? A member whose disk was emptied may come back as an etcd of its
own. It answers like any other, as if all keys were gone, and goes on to when the rest has no
majority.

One that was started with --force-new-cluster keeps its number, and what it had then: it is known by
how many members it knows of.

So who was answered once takes answers of that etcd alone. Another one is followed only when nobody
of the first is there any more, and it has the catalog: it was made again from a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from ckpt.base.errors import Unavailable
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.words import AnswerHeader, Range, RangeFound


class _Owner(Struct, frozen=True):
    """What `meta` says of whose it is."""

    cluster: str = ""


LEFT: Final = "it has left the other members by --force-new-cluster"


class OtherEtcd(Unavailable):
    """Its answer counts for nothing."""

    def __init__(self, id: str, why: str = "it is a member of another etcd") -> None:
        super().__init__(why)
        self.id = id


@dataclass(frozen=True, slots=True)
class EtcdSeat:
    """Who answers at one address; empty where nobody says so in time."""

    etcd: str = ""
    """The number that all answers of one etcd have."""
    member: str = ""
    """Its number among the members of that one."""
    size: int = 0
    """So many members there are, as this one knows; 0: it does not say."""


class Turnout:
    """I count who answers at the addresses of a URL. A member that is named by two of them, by a
    name and a number say, counts once; one that has left the others for none.
    """

    def __init__(self, seats: Sequence[EtcdSeat]) -> None:
        """By address, in their order."""
        self.seats = tuple(seats)
        named = {(seat.etcd, seat.member): seat for seat in seats if seat.etcd}
        self._members = tuple(named.values())

    @property
    def etcds(self) -> set[str]:
        """All that answer."""
        return {seat.etcd for seat in self._members}

    @property
    def silent(self) -> int:
        """So many addresses do not answer; what is there may be any member."""
        return sum(not seat.etcd for seat in self.seats)

    @property
    def count(self) -> int:
        """Of members that are named, each silent address for one."""
        return len(self._members) + self.silent

    def size_of(self, etcd: str) -> int:
        """So many members it has; 0: none of them says so."""
        return max(seat.size for seat in self._members if seat.etcd == etcd)

    def members_of(self, etcd: str) -> int:
        """So many of its members answer; more of them than it has have all left each other."""
        size = self.size_of(etcd)
        own = [seat for seat in self._members if seat.etcd == etcd]
        here = sum(not has_left(seat.size, size) for seat in own)
        return here if here <= (size or here) else 0

    @property
    def most(self) -> int:
        """So many may be of one etcd, with all that are silent."""
        return max(map(self.members_of, self.etcds), default=0) + self.silent

    @property
    def chosen(self) -> str:
        """Which etcd most members of the URL are of; or the only one of those that say so, if it
        has as many members as the URL: the silent ones may be its. Empty where there is none: a
        member that is an etcd of its own may have an older catalog than those that are silent.
        """
        for id in self.etcds:
            lone = len(self.etcds) == 1 and self.size_of(id) >= self.count
            if lone or 2 * self.members_of(id) > self.count:
                return id
        return ""


def has_left(size: int, known: int) -> bool:
    """Whether a member that knows so many has left an etcd of so many, by --force-new-cluster. Who
    takes members out does so one by one.
    """
    return 0 < 2 * size < known


class EtcdIdentity:
    """I know one etcd by the number that all its answers have."""

    def __init__(self, prefix: str) -> None:
        self.id = ""
        """Empty until it has answered."""
        self.cluster = ""
        """Whose catalog it has; empty until that is known."""
        self.size = 0
        """It had so many members when one of them said so; 0: none did."""
        #: member -> the term of etcd's own leader in which it said so last.
        self._said: dict[str, int] = {}
        self._meta = keys.KeySpace(prefix).full(keys.META)

    def check(self, header: AnswerHeader) -> None:
        """Raises OtherEtcd for an answer of another one."""
        self.id = self.id or header.cluster_id
        if header.cluster_id not in ("", self.id):
            raise OtherEtcd(header.cluster_id)

    def follow(self, id: str, turnout: Turnout) -> None:
        """Take the answers of that one alone from now on."""
        self.id, self.size = id, turnout.size_of(id) if id else 0
        self._said = {}

    def doubts(self, header: AnswerHeader) -> bool:
        """Whether that member is to say first how many there are. One that was started with
        --force-new-cluster keeps the etcd's number, and leads itself in a term of its own.
        """
        return bool(header.member_id) and self._said.get(header.member_id) != header.raft_term

    def why_other(self, seat: EtcdSeat) -> str:
        """Why the answers of who sits there count for nothing; empty where they count."""
        if self.id and seat.etcd not in ("", self.id):
            return OtherEtcd(seat.etcd).message
        return LEFT if has_left(seat.size, self.size) else ""

    def hear_size(self, header: AnswerHeader, size: int) -> None:
        """A member says how many there are. Raises OtherEtcd for one that has left the others."""
        self.check(header)
        if self.doubts(header) and has_left(size, self.size):
            raise OtherEtcd(header.cluster_id, LEFT)
        self.size, self._said[header.member_id] = size, header.raft_term

    @property
    def question(self) -> Range:
        """Whose answer says whether an etcd has the catalog."""
        return Range(self._meta)

    def is_answered(self, found: RangeFound) -> bool:
        """Whether that one has it."""
        try:
            owners = [msgspec.json.decode(each.value, type=_Owner) for each in found.kvs]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        return bool(self.cluster) and [each.cluster for each in owners] == [self.cluster]
