"""Keys of a catalog in etcd hold the fold: written ticket by ticket, and read back."""

from __future__ import annotations

import random
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, Rank, Step
from ckpt.base.units import KiB
from ckpt.format.messages.hello import OLDEST_VERSION
from ckpt.plan.drains import Held, StorePolicy
from ckpt.protocol.coordinator.catalog import (
    AttemptDecided,
    CatalogEntry,
    LaunchEntered,
    LaunchForgotten,
    LaunchNumbered,
    RowCommitted,
)
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.stores import (
    CheckpointDrained,
    StoreHolds,
    StoreOpened,
    tellings,
)
from ckpt.testing.catalog_entries import (
    RUN,
    apply_all,
    attempt,
    checkpoint,
    entries_by_chance,
    every_entry,
)
from ckptd.catalog.etcd.census import census, lacking
from ckptd.catalog.etcd.folding import OPERATIONS_MAX, Writes, fold
from ckptd.catalog.etcd.keys import KINDS
from ckptd.catalog.etcd.loading import images_of, load
from ckptd.catalog.etcd.values import count_of, whole

SEVEN = LaunchNumber(7)


class Keys:
    """What an etcd would hold."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.image = CatalogImage(1, protocol=OLDEST_VERSION)
        self.count = 0

    def write(self, *entries: CatalogEntry) -> Writes:
        writes = fold(self.image, entries)
        self.put(writes)
        return writes

    def put(self, writes: Writes) -> None:
        self.count += writes.added
        for name, value in writes.values.items():
            self.held.pop(name, None)
            if value is not None:
                self.held[name] = value
        for start in writes.sweeps:
            assert not any(name.startswith(start) for name in writes.values), "etcd refuses that"
            self.held = {k: v for k, v in self.held.items() if not k.startswith(start)}


@pytest.mark.parametrize("seed", range(12))
def test_what_is_read_is_the_fold_however_the_entries_came(seed: int) -> None:
    entries, chance, stored = entries_by_chance(seed, 400), random.Random(seed), Keys()
    together = Writes()
    merged = Keys()
    while entries:
        size = chance.randrange(1, 9)
        taken, entries = entries[:size], entries[size:]
        writes = stored.write(*taken)
        assert load(1, stored.held.items()) == stored.image
        assert stored.count == count_of(stored.image) == len(stored.held)
        both = together.merged(writes)
        if both is None:
            merged.put(together)
        together = writes if both is None else both
    merged.put(together)
    assert merged.held == stored.held, "many tickets in one transaction say the same"
    assert merged.count == stored.count


def test_every_kind_of_entry_is_read_back() -> None:
    stored = Keys()
    stored.write(*every_entry())
    assert load(1, stored.held.items()) == apply_all(CatalogImage(1), every_entry())


def test_a_state_alone_is_written_without_its_record() -> None:
    stored = Keys()
    stored.write(attempt(1), AttemptDecided(checkpoint(1), b"r" * 4096))
    assert set(stored.write(RowCommitted(checkpoint(1))).values) == {"row/run%2F%C3%A4%20b/1/1.1"}


def test_a_launch_of_many_ranks_goes_in_two_operations() -> None:
    stored = Keys()
    stored.write(LaunchNumbered(RUN, SEVEN, None, 16_384))
    for rank in range(16_384):
        writes = stored.write(LaunchEntered(RUN, SEVEN, Rank(rank), f"host/{rank}/x"))
        assert writes.count == 1
    assert stored.write(LaunchForgotten(RUN, SEVEN)).count == 2
    assert stored.held == {}


def drained(count: int) -> set[Held]:
    """Of a run that has saved so often, with other runs beside it now and then."""
    return {(Step(10 * n), Generation(1 + n // 3_000, n + n // 1000)) for n in range(count)}


def test_a_store_s_long_history_costs_a_drain_no_more_than_a_short_one() -> None:
    """In one key the list outgrew a transaction at 90,000 generations: that ended the term."""
    stored, url, held = Keys(), "s3://b", drained(8_000)
    stored.write(StoreOpened(StorePolicy(url)))
    for part in tellings(set(), held):
        writes = stored.write(StoreHolds(url, RUN, part))
        writes.check("a part of what a worker says")
    assert stored.image.stores[url].stored[RUN] == held
    for counter in range(200_000, 200_010):
        id = CheckpointId(RUN, Step(counter * 10), Generation(3, counter))
        writes = stored.write(CheckpointDrained(url, id))
        assert writes.count <= 1
        assert writes.value_bytes < 8 * KiB
    *_, last = tellings(stored.image.stores[url].stored[RUN], set())
    assert last == ()
    for part in tellings(stored.image.stores[url].stored[RUN], drained(1000)):
        stored.write(StoreHolds(url, RUN, part)).check("a part of what a worker says")
    assert load(1, stored.held.items()) == stored.image
    assert stored.count == count_of(stored.image) == len(stored.held)


@pytest.mark.parametrize("sparse", [1, 1000])
def test_no_part_of_what_is_said_of_a_store_claims_what_it_neither_had_nor_has(sparse: int) -> None:
    known = {(Step(n), Generation(1, n * sparse)) for n in range(400)}
    has = {(Step(n), Generation(1, n * sparse)) for n in range(200, 600)}
    *parts, last = tellings(known, has)
    assert last == tuple(sorted(has))
    assert all(known & has <= set(part) <= known | has for part in parts)
    assert list(tellings(has, has)) == [tuple(sorted(has))], "it is said all the same"


def test_what_one_transaction_cannot_take_is_refused_by_name() -> None:
    large = fold(CatalogImage(1), [attempt(1), AttemptDecided(checkpoint(1), bytes(2 << 20))])
    with pytest.raises(Refused, match=r"'record/run%2F.*/1/1\.1' of 2 MiB"):
        large.check("a ticket")
    many = fold(CatalogImage(1), [attempt(step) for step in range(OPERATIONS_MAX)])
    with pytest.raises(Refused, match="128 writes"):
        many.check("a ticket")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("row/run/1/1.1", b"{}"),
        ("row/run/one/1.1", b""),
        ("record/run/1/1.1", b"of no row"),
        ("launch/run/7/rank/0", b"of no launch"),
        ("launch/run/7", b"\xff"),
        ("store/s3/run", b"1#1.1"),
        ("position", b"1"),
        ("target/t0", b"[]"),
        ("forgotten", b"\xff"),
    ],
)
def test_a_key_that_cannot_be_read_is_named(name: str, value: bytes) -> None:
    with pytest.raises(Corrupt, match=name):
        load(1, [(name, value)])


def test_a_later_version_s_kinds_are_left_alone() -> None:
    assert load(1, [("stars/run/1", b"bright")]) == CatalogImage(1, protocol=OLDEST_VERSION)


def rebuilt() -> CatalogImage:
    """What no entry makes."""
    image = apply_all(CatalogImage(1), every_entry())
    image.rebuilt_term, image.rebuilt_from = 3, 4
    image.passed_over = {checkpoint(8), checkpoint(9, 2)}
    return image


def test_a_whole_image_has_the_keys_that_its_entries_led_to() -> None:
    stored = Keys()
    stored.write(*every_entry())
    assert dict(whole(apply_all(CatalogImage(1), every_entry()))) == stored.held
    assert load(1, whole(rebuilt())) == rebuilt()
    assert count_of(rebuilt()) == len(list(whole(rebuilt())))


def test_keys_that_are_gone_are_missed_in_the_term_after_that_which_noted_their_number() -> None:
    image = apply_all(CatalogImage(2), every_entry())
    there = list(whole(image))
    noted = census(1, len(there))
    assert lacking([*there, ("count", noted)], image) == ""
    assert lacking([*there, ("count", census(1, len(there) + 2))], image) == (
        f"2 of its {len(there) + 2} keys in etcd are gone, which somebody has removed"
    )
    for unsure in (census(0, 999), census(2, 999), b"", b"1", b"1 many", b"1 2 3", b"\xff"):
        assert lacking([*there, ("count", unsure)], image) == ""
    # Of a later version: it is nothing that this one counts.
    assert lacking([*there, ("stars", b""), ("count", noted)], image) == ""


def test_the_page_s_table_has_a_row_for_each_key_that_is_written() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text()
    _, _, section = page.partition("## Catalog in etcd")
    rows = re.findall(r"^\| `([\w/]+)` \|", section, re.MULTILINE)
    shapes = {row: re.compile(re.sub("[A-Z]+", "[^/]+", row)) for row in rows}
    stored, written = Keys(), {"meta", "leader", "term", "sequence", "count", "coordinator/a"}
    written.add("copying")
    written |= {name for name, _ in whole(rebuilt())}
    for entry in [*every_entry(), LaunchEntered(RUN, SEVEN, Rank(0), "host/1/x")]:
        written |= stored.write(entry).values.keys()
    met = {
        name: [row for row, shape in shapes.items() if shape.fullmatch(name)] for name in written
    }
    assert all(len(found) == 1 for found in met.values()), met
    assert {row for found in met.values() for row in found} == set(rows)
    kinds = {name: [kind for kind in KINDS if name.startswith(kind)] for name in written}
    assert all(len(found) == 1 for found in kinds.values()), kinds
    assert {kind for found in kinds.values() for kind in found} == set(KINDS)


def test_the_second_image_is_alike_and_shares_nothing_that_an_entry_changes() -> None:
    keys = Keys()
    for entry in every_entry():
        keys.write(entry)
        image, other = images_of(1, list(keys.held.items()))
        assert other == image
        shared = _that_change(image) & _that_change(other)
        assert shared == set(), type(entry).__name__


def _that_change(of: object) -> set[int]:
    """Ids of all objects in it that are not for good as they are."""
    match of:
        case dict():
            parts: list[object] = [*of.keys(), *of.values()]
        case set() | list() | tuple() | frozenset():
            parts = list(of)
        case _ if is_dataclass(of):
            parts = [getattr(of, each.name) for each in fields(of)]
        case _:
            return set()
    # Frozen dataclasses have a hash.
    own = {id(of)} if type(of).__hash__ is None else set()
    return own.union(*map(_that_change, parts))
