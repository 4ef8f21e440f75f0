"""Is it the same etcd that answers? A member whose disk was emptied may come back as an etcd of its
own. It answers like any other, as if all keys were gone, and goes on to when the rest has no
majority.

So who was answered once takes answers of that etcd alone. Another one is followed only when nobody
of the first is there any more, and it has the catalog: it was made again from a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from ckpt.base.errors import Unavailable
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.words import AnswerHeader, Range, RangeFound


class _Owner(Struct, frozen=True):
    """What `meta` says of whose it is."""

    cluster: str = ""


class OtherEtcd(Unavailable):
    """Its answer counts for nothing."""

    def __init__(self, id: str) -> None:
        super().__init__("it is a member of another etcd")
        self.id = id


@dataclass(frozen=True, slots=True)
class EtcdSeat:
    """Who answers at one address; empty where nobody says so in time."""

    etcd: str = ""
    """The number that all answers of one etcd have."""
    member: str = ""
    """Its number among the members of that one."""


class Turnout:
    """I count who answers at the addresses of a URL. A member that is named by two of them, by a
    name and a number say, counts once.
    """

    def __init__(self, seats: Sequence[EtcdSeat]) -> None:
        """By address, in their order."""
        self.seats = tuple(seats)
        self._members = set(seats) - {EtcdSeat()}

    @property
    def etcds(self) -> set[str]:
        """All that answer."""
        return {seat.etcd for seat in self._members}

    @property
    def silent(self) -> int:
        """So many addresses do not answer; what is there may be any member."""
        return self.seats.count(EtcdSeat())

    @property
    def count(self) -> int:
        """Of members that are named, each silent address for one."""
        return len(self._members) + self.silent

    def members_of(self, etcd: str) -> int:
        """So many of its members answer."""
        return sum(seat.etcd == etcd for seat in self._members)

    @property
    def majority(self) -> str:
        """Which etcd most of them are of; empty where there is none."""
        return next((id for id in self.etcds if 2 * self.members_of(id) > self.count), "")

    @property
    def most(self) -> int:
        """So many may be of one etcd, with all that are silent."""
        return max(map(self.members_of, self.etcds), default=0) + self.silent


class EtcdIdentity:
    """I know one etcd by the number that all its answers have."""

    def __init__(self, prefix: str) -> None:
        self.id = ""
        """Empty until it has answered."""
        self.cluster = ""
        """Whose catalog it has; empty until that is known."""
        self._meta = keys.KeySpace(prefix).full(keys.META)

    def check(self, header: AnswerHeader) -> None:
        """Raises OtherEtcd for an answer of another one."""
        self.id = self.id or header.cluster_id
        if header.cluster_id not in ("", self.id):
            raise OtherEtcd(header.cluster_id)

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
