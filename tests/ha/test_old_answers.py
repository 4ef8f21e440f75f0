"""What stands before etcd answers a read with what was there earlier: nobody begins with that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ckpt.base.errors import Unavailable
from ckpt.testing.catalog_contract import found, on_a_loop, writing
from ckpt.testing.catalog_entries import attempt, checkpoint
from tests.ha.members import Etcd, Member
from tests.ha.places import Prefix
from tests.ha.test_mirror import Standby
from tests.stores.proxy import Proxy, Request

Answer = tuple[int, dict[str, str], bytes]


class Keeper(Proxy):
    """I answer each page as I did when I was asked for it first, while `keeps`."""

    def __init__(self, port: int) -> None:
        self.keeps = True
        self._kept: dict[bytes, Answer] = {}
        super().__init__(port)

    def forward(self, request: Request, headers: dict[str, str]) -> Answer:
        answer = super().forward(request, headers)
        if not self.keeps or b'"limit":1000' not in request.body:
            return answer
        return self._kept.setdefault(request.body, answer)


@contextmanager
def kept(member: Member) -> Iterator[Keeper]:
    keeper = Keeper(member.port)
    try:
        yield keeper
    finally:
        keeper.close()


@on_a_loop
async def test_a_term_begins_with_nothing_older_than_itself(etcd: Etcd) -> None:
    with kept(etcd.members[0]) as keeper:
        place = Prefix(f"127.0.0.1:{keeper.port}")
        await found(place)
        async with writing(Prefix(etcd.addresses, place.name)) as writer:
            await writer.write(attempt(1))
        with pytest.raises(Unavailable, match="with what was there earlier"):
            await found(place)
        keeper.keeps = False
        assert set((await found(Prefix(etcd.addresses, place.name))).rows) == {checkpoint(1)}


@on_a_loop
async def test_a_copy_of_who_stands_by_is_made_of_nothing_older_than_its_revision(
    etcd: Etcd,
) -> None:
    with kept(etcd.members[0]) as keeper:
        place = Prefix(f"127.0.0.1:{keeper.port}")
        await found(place)
        async with writing(Prefix(etcd.addresses, place.name)) as writer:
            await writer.write(attempt(1))
            standby = Standby(place.url)
            with pytest.raises(Unavailable, match="with what was there earlier"):
                await standby.mirror._read()
            keeper.keeps = False
        await standby.mirror.stop()
        await standby.client.close()
