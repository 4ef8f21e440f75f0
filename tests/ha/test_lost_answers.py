"""Answers of etcd that are lost, and requests that come late: each transaction is done once."""

from __future__ import annotations

import json

import pytest

from ckpt.base.errors import Busy
from ckpt.protocol.coordinator.catalog import RowAborted, RowState
from ckpt.testing.catalog_contract import Writer, folded, found, on_a_loop, writing
from ckpt.testing.catalog_entries import attempt, checkpoint, entries_by_chance
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, no_fault, proxied, value_of
from tests.stores.proxy import Fault, Request

TRANSACTION = "/v3/kv/txn"
CUTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.CUT_ANSWER, Fault.FULL_AFTER)


@pytest.mark.parametrize("fault", CUTS, ids=lambda fault: fault.name)
@on_a_loop
async def test_each_ticket_is_stored_once_whatever_becomes_of_answers(
    etcd: Etcd, fault: Fault
) -> None:
    """Every second transaction has another answer, that which takes the catalog among them."""

    def decide(request: Request) -> Fault:
        lost = request.path == TRANSACTION and request.number % 2
        return fault if lost else Fault.NONE

    entries = entries_by_chance(7, 24)
    with proxied(etcd.members[0], no_fault) as proxy:
        place = Prefix(f"127.0.0.1:{proxy.port}")
        await found(place)  # There is one: none is begun in an etcd that is full.
        proxy.decide = decide
        async with writing(place) as writer:
            for entry in entries:
                await writer.write(entry)
            assert writer.durable == list(range(1, 25))
            assert value_of(etcd, place, "sequence") == b"25"  # And that of the start's own check.
        assert sum(each is fault for _, each in proxy.log) > 8
        image = await found(place)
    assert image == folded(image, entries)


@on_a_loop
async def test_a_request_that_comes_late_puts_nothing_old_back(etcd: Etcd) -> None:
    """It was repeated and others followed: by the leader's key alone it would still be taken."""
    late: list[bytes] = []

    def decide(request: Request) -> Fault:
        if request.path != TRANSACTION or late:
            return Fault.NONE
        late.append(request.body)
        return Fault.CUT_BEFORE

    with proxied(etcd.members[0], no_fault) as proxy:
        place = Prefix(f"127.0.0.1:{proxy.port}")
        async with writing(place) as writer:
            proxy.decide = decide
            await writer.write(attempt(1))
            await writer.write(RowAborted(checkpoint(1), "aborted", "rank 3 left"))
            done = asked(etcd.members[0], TRANSACTION, _json(late[0]))
            assert "succeeded" not in done
            await writer.write(attempt(2))
        image = await found(place)
    assert image.rows[checkpoint(1)].state is RowState.ABORTED


@on_a_loop
async def test_a_late_request_of_who_was_deposed_does_nothing(etcd: Etcd) -> None:
    kept: list[bytes] = []

    def decide(request: Request) -> Fault:
        kept.append(request.body)
        return Fault.CUT_BEFORE

    with proxied(etcd.members[0], no_fault) as proxy:
        place = Prefix(etcd.addresses)
        older = Writer(await place.by_way_of(f"127.0.0.1:{proxy.port}").open())
        proxy.decide = decide
        older.submit(attempt(1))
        async with writing(place) as newer:
            # The newer one has written as often, then more often: the leader's key says it all.
            for step in (2, 3):
                assert value_of(etcd, place, "sequence") == b"%d" % (step - 1)
                bodies = [body for body in kept if b"compare" in body]
                assert bodies
                for body in bodies:
                    assert "succeeded" not in asked(etcd.members[0], TRANSACTION, _json(body))
                await newer.write(attempt(step))
            proxy.decide = no_fault
            await older.wait_until(lambda: bool(older.failures))
            assert [type(each) for each in older.failures] == [Busy]
            assert f"the coordinator of term {newer.catalog.image.term}" in str(older.failures[0])
            await older.catalog.close()
    assert set((await found(place)).rows) == {checkpoint(2), checkpoint(3)}


def _json(body: bytes) -> object:
    return json.loads(body)
