"""Is it the same etcd that answers? A member whose disk was emptied may come back as an etcd of its
own. It answers like any other, as if all keys were gone, and goes on to when the rest has no
majority.

So who was answered once takes answers of that etcd alone. Another one is followed only when nobody
of the first is there any more, and it has the catalog: it was made again from a snapshot.
"""

from __future__ import annotations

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
