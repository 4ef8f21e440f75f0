"""How tickets become transactions: many in one, whole ones, none that is too large."""

from __future__ import annotations

import asyncio
import urllib.error
from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckpt.base.ids import Generation, LaunchNumber, Rank, Step
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.catalog import (
    AttemptDecided,
    LaunchEntered,
    LaunchForgotten,
    LaunchNumbered,
    Persist,
)
from ckpt.protocol.coordinator.stores import (
    CheckpointDrained,
    StoreHolds,
    StoreOpened,
    tellings,
)
from ckpt.testing.catalog_contract import Writer, folded, found, on_a_loop, writing
from ckpt.testing.catalog_entries import RUN, attempt, checkpoint
from ckptd.catalog.etcd.history import RevisionHistory
from ckptd.catalog.etcd.keys import quoted
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, in_base64, names_in, value_of
from tests.waiting import wait_until_async

SEVEN = LaunchNumber(7)


def transactions(etcd: Etcd, place: Prefix) -> int:
    """So many since the start, which makes one itself."""
    value = value_of(etcd, place, "sequence")
    assert value is not None
    return int(value) - 1


@on_a_loop
async def test_ranks_without_a_key_enter_many_at_once_and_leave_at_once(etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    entered = [LaunchEntered(RUN, SEVEN, Rank(rank), f"host/{rank}/x") for rank in range(16_384)]
    numbered = LaunchNumbered(RUN, SEVEN, None, len(entered))
    async with writing(place) as writer:
        await writer.write(numbered)
        for entry in entered:
            writer.submit(entry)
        await writer.wait_until(lambda: len(writer.durable) == 1 + len(entered))
        assert transactions(etcd, place) <= 200
    image = await found(place)
    assert image == folded(image, [numbered, *entered])
    async with writing(place) as writer:
        await writer.write(LaunchForgotten(RUN, SEVEN))
        assert transactions(etcd, place) == 1
    assert names_in(etcd, place) == {"meta", "protocol", "term", "sequence", "count"}


@on_a_loop
async def test_large_tickets_go_one_after_the_other(etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    tickets = [
        (attempt(step), AttemptDecided(checkpoint(step), bytes([step]) * 1_100_000))
        for step in range(5)
    ]
    async with writing(place) as writer:
        for ticket in tickets:
            writer.submit(*ticket)
        await writer.wait_until(lambda: len(writer.durable) == len(tickets))
        assert transactions(etcd, place) == len(tickets)
    image = await found(place)
    assert image == folded(image, [entry for ticket in tickets for entry in ticket])


@on_a_loop
async def test_what_a_store_has_in_one_key_goes_to_pages_and_none_comes_back(etcd: Etcd) -> None:
    """An earlier version wrote it so: pages are laid beside it, and then its own key is emptied."""
    place, url = Prefix(etcd.addresses), "s3://b"
    held = {(Step(n), Generation(1 + n % 3, n)) for n in range(20_000)}
    async with writing(place) as writer:
        await writer.write(StoreOpened(StorePolicy(url)), StoreHolds(url, RUN, ()))
    own = f"store/s3%3A%2F%2Fb/{quoted(RUN)}"
    listed = " ".join(f"{step}#{generation}" for step, generation in sorted(held))
    put = {"key": in_base64(f"{place.name}:{own}"), "value": in_base64(listed)}
    asked(etcd.members[0], "/v3/kv/put", put)
    image = await found(place)
    assert image.stores[url].stored[RUN] == held
    assert value_of(etcd, place, own) == b""
    assert len([name for name in names_in(etcd, place) if name.startswith(f"{own}/")]) > 128
    async with writing(place) as writer:
        for part in tellings(held, set(sorted(held)[:300])):
            await writer.write(StoreHolds(url, RUN, part))
        await writer.write(CheckpointDrained(url, checkpoint(9)))
    image = await found(place)
    assert image.outdated == "", "no key is missed"
    assert image.stores[url].stored[RUN] == {
        *sorted(held)[:300],
        (Step(9), checkpoint(9).generation),
    }


@on_a_loop
async def test_a_value_that_etcd_would_refuse_is_refused_by_name_and_whole(etcd: Etcd) -> None:
    """What is gathered ahead of it is stored."""
    place = Prefix(etcd.addresses)
    async with writing(place) as writer:
        writer.submit(attempt(1))
        writer.submit(attempt(2), AttemptDecided(checkpoint(2), bytes(1_600_000)))
        with pytest.raises(Refused, match=r"'record/.*/2/1\.1' of 1\.53 MiB: etcd takes"):
            await writer.write(attempt(3))
        assert writer.durable == [1]
    image = await found(place)
    assert image == folded(image, [attempt(1)])


@on_a_loop
async def test_what_was_overwritten_goes_when_it_is_old(tmp_path: Path) -> None:
    """Here after a tenth of a second."""
    with Etcd(tmp_path / "etcd") as etcd:
        place, (member,) = Prefix(etcd.addresses), etcd.members
        first: dict[str, object] = {"key": in_base64(f"{place.name}:meta"), "revision": 2}
        writer = Writer(await place.open(history=RevisionHistory(kept_s=0.1, every_s=0.0)))
        await writer.write(attempt(1))
        assert asked(member, "/v3/kv/range", first)["kvs"]

        def has_gone() -> bool:
            try:
                asked(member, "/v3/kv/range", first)
            except urllib.error.HTTPError as error:
                return error.code == 400
            return False

        await wait_until_async(has_gone, "revision 2 is compacted")
        await writer.write(attempt(2))
        await writer.catalog.close()
        assert set((await found(place)).rows) == {checkpoint(1), checkpoint(2)}


@on_a_loop
async def test_a_defect_of_the_writer_is_not_waited_for_in_silence(etcd: Etcd) -> None:
    """It reaches the loop's handler, as that of any callback does, and the catalog still closes."""
    met: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: met.append(context.get("exception")))

    def durable(ticket: int) -> None:
        raise ZeroDivisionError(f"ticket {ticket}")

    place = Prefix(etcd.addresses)
    catalog = await place.open()
    catalog.start(durable, met.append)
    catalog.submit(Persist(1, (attempt(1),)))
    await wait_until_async(lambda: bool(met), "the handler has it")
    assert [str(each) for each in met] == ["ticket 1"]
    await catalog.close()
    assert set((await found(place)).rows) == {checkpoint(1)}


@pytest.mark.parametrize("below", ["/b", "-2"])
@on_a_loop
async def test_a_catalog_below_another_s_prefix_is_apart_from_it(etcd: Etcd, below: str) -> None:
    """Whichever was there first: neither takes the other's keys for its own."""
    for first in ("", below):
        outer = Prefix(etcd.addresses)
        inner = Prefix(etcd.addresses, f"{outer.name}{below}")
        places = (inner, outer) if first else (outer, inner)
        for step, place in enumerate(places):
            async with writing(place) as writer:
                await writer.write(attempt(step))
        for step, place in enumerate(places):
            assert set((await found(place)).rows) == {checkpoint(step)}
