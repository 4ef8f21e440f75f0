"""Columns that are made again over real sockets: the same bytes, or an error that names why."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from ckpt.base.errors import Aborted, Corrupt, NoSpace, Unavailable
from ckpt.base.ids import ColumnId, ColumnNumber, LaunchNumber
from ckpt.base.units import MiB
from ckpt.erasure.codec import Codec
from ckpt.format.checksum import crc32
from ckpt.format.messages.writing import ColumnProof
from ckpt.native.arrays import Crcs
from ckpt.transfer import column_rebuilder
from ckpt.transfer.column_rebuilder import Check, LostColumns, RebuildRoom, Turn, rebuild_columns
from ckpt.transfer.landings import Landings
from ckpt.transfer.read_job import PayloadDamaged
from ckpt.transfer.target_links import SenderOptions
from tests.aio.netkit import SECRET
from tests.protocol.reading import PAYLOAD, Columns
from tests.transfer.targetkit import Behaviour, SmallTarget, targets
from tests.transfer.test_payload_receiver import (
    CELL,
    CODE,
    HASTY,
    SIZE,
    SmallHolder,
    holders,
    job,
)

LAUNCH = LaunchNumber(7)
SENDING = SenderOptions(SECRET, "repair", "cluster-a")


@pytest.fixture(scope="module")
def data() -> Columns:
    return Columns.make(CODE, SIZE, CELL, seed=5)


@pytest.fixture(autouse=True)
def _several_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of four stripes each; the last one has a short one as well."""
    monkeypatch.setattr(column_rebuilder, "WINDOW_BYTES", MiB)
    before = threading.active_count()
    yield
    assert threading.active_count() <= before, "no thread of a rebuild is left"


def rebuild(lost: LostColumns, turn: Turn, check: Check = lambda: None) -> tuple[ColumnProof, ...]:
    """By a room of its own."""
    with RebuildRoom(HASTY) as room:
        return rebuild_columns(lost, room, SENDING, turn, check)


def rebuilt(
    data: Columns, sources: list[SmallHolder], made: list[SmallTarget], lost: tuple[int, ...]
) -> list[int]:
    """Bytes of each turn."""
    source = job(data, sources, Landings())
    turns: list[int] = []
    places = {ColumnNumber(j): target.place(j + 1) for j, target in zip(lost, made, strict=True)}
    proofs = rebuild(LostColumns(source, LAUNCH, places), turns.append)
    assert [proof.column.column for proof in proofs] == sorted(lost)
    for j, target in zip(lost, made, strict=True):
        column = target.columns[ColumnId(PAYLOAD, ColumnNumber(j))]
        assert bytes(column.content) == bytes(data.columns[j])
        assert bytes(column.manifest) == data.manifest
        assert column.begin.launch == LAUNCH
    return turns


@pytest.mark.parametrize("lost", [(0,), (3,), (4,), (1, 5), (0, 1), (4, 5)])
def test_what_is_made_again_is_what_was_lost(data: Columns, lost: tuple[int, ...]) -> None:
    faults = dict.fromkeys(lost, "absent")
    with holders(data, faults) as sources, targets(len(lost)) as made:
        turns = rebuilt(data, sources, made, lost)
    assert (sum(turns), len(turns)) == (SIZE, 6), "each byte of the payload is read once"


class WrongCodec(Codec):
    """As a machine that computes one bit wrong, and sums what it has computed."""

    def encode_rows(
        self, rows: Sequence[int], data: Sequence[memoryview], outputs: Sequence[memoryview]
    ) -> Crcs:
        super().encode_rows(rows, data, outputs)
        outputs[0][0] ^= 1
        return np.array([crc32(cell) for cell in outputs], np.uint32)


def test_a_cell_that_is_made_wrong_is_not_sent(
    data: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may begin to compute wrong after its process has tested it."""
    monkeypatch.setattr(column_rebuilder, "trusted_codec", WrongCodec)
    with holders(data, {}) as sources, targets(1) as made:
        with pytest.raises(Corrupt, match="column 4, stripe 0: what was made is not"):
            rebuilt(data, sources, made, (4,))
        assert made[0].columns == {}


@pytest.mark.parametrize(("tail", "turns"), [(1, 2), (MiB // 4, 2), (MiB // 4 + 1, 3), (MiB, 3)])
@pytest.mark.parametrize("column", [1, 4])
def test_a_short_last_stripe_is_read_with_the_window_before_it(
    tail: int, turns: int, column: int
) -> None:
    """Each read costs questions to all sources."""
    large = Columns.make(CODE, 2 * MiB + tail, MiB // CODE.k, seed=7)
    with holders(large, {column: "absent"}) as sources, targets(1) as made:
        assert len(rebuilt(large, sources, made, (column,))) == turns


@pytest.mark.parametrize("column", [0, 2, 3])
def test_a_data_column_that_moves_is_read_alone(data: Columns, column: int) -> None:
    number = ColumnNumber(column)
    with holders(data, {}) as sources, targets(1) as made:
        turns: list[int] = []
        source = job(data, sources, Landings())
        lost = LostColumns(source, LAUNCH, {number: made[0].place(9)}, moves=number)
        rebuild(lost, turns.append)
        moved = made[0].columns[ColumnId(PAYLOAD, number)]
        assert bytes(moved.content) == bytes(data.columns[column])
        assert bytes(moved.manifest) == data.manifest
        others = [one.asked_bytes for j, one in enumerate(sources) if j != column]
        assert sources[column].asked_bytes >= sum(turns)
        assert sum(others) == 0
    assert CELL * (SIZE // (CELL * CODE.k)) <= sum(turns) <= len(moved.content)


@pytest.mark.parametrize(("size", "column"), [(100, 0), (100, 3), (CELL * CODE.k + 1, 2)])
def test_a_column_that_moves_may_have_padding_alone(size: int, column: int) -> None:
    data, number = Columns.make(CODE, size, CELL, seed=6), ColumnNumber(column)
    with holders(data, {}) as sources, targets(1) as made:
        source = job(data, sources, Landings())
        lost = LostColumns(source, LAUNCH, {number: made[0].place(9)}, moves=number)
        rebuild(lost, lambda _size: None)
        moved = made[0].columns[ColumnId(PAYLOAD, number)]
        assert bytes(moved.content) == bytes(data.columns[column])
        assert bytes(moved.manifest) == data.manifest


def test_one_that_moves_and_cannot_be_read_is_made_of_the_others(data: Columns) -> None:
    number = ColumnNumber(1)
    with holders(data, {1: "cut"}) as sources, targets(1) as made:
        source = job(data, sources, Landings())
        lost = LostColumns(source, LAUNCH, {number: made[0].place(9)}, moves=number)
        rebuild(lost, lambda _size: None)
        moved = made[0].columns[ColumnId(PAYLOAD, number)]
        assert bytes(moved.content) == bytes(data.columns[1])


@pytest.mark.parametrize("spared", [0, 5])
def test_who_is_spared_gives_nothing_while_the_others_suffice(data: Columns, spared: int) -> None:
    with holders(data, {2: "absent", spared: "greedy"}) as sources, targets(1) as made:
        source = replace(job(data, sources, Landings()), spared=frozenset({ColumnNumber(spared)}))
        lost = LostColumns(source, LAUNCH, {ColumnNumber(2): made[0].place(3)})
        rebuild(lost, lambda _size: None)
        assert sources[spared].asked_bytes == 0
        assert bytes(made[0].columns[ColumnId(PAYLOAD, ColumnNumber(2))].content) == bytes(
            data.columns[2]
        )


def test_another_column_that_fails_meanwhile_is_made_up_for(data: Columns) -> None:
    with holders(data, {2: "absent", 0: "cut"}) as sources, targets(1) as made:
        rebuilt(data, sources, made, (2,))


def test_too_few_good_columns_are_damage_and_nothing_is_sealed(data: Columns) -> None:
    faults = dict.fromkeys((0, 1, 2), "absent")
    with holders(data, faults) as sources, targets(1) as made:
        with pytest.raises(PayloadDamaged):
            rebuilt(data, sources, made, (2,))
        assert made[0].columns == {}


def test_a_target_that_takes_nothing_says_why(data: Columns) -> None:
    behaviours = {0: Behaviour(refuse=True)}
    with (
        holders(data, {2: "absent"}) as sources,
        targets(1, behaviours) as made,
        pytest.raises(NoSpace, match="the device is full"),
    ):
        rebuilt(data, sources, made, (2,))


def test_it_ends_where_its_turn_does_not_come(data: Columns) -> None:
    def turn(_size: int) -> None:
        raise Aborted("nobody needs it any more")

    with holders(data, {2: "absent"}) as sources, targets(1) as made:
        source = job(data, sources, Landings())
        lost = LostColumns(source, LAUNCH, {ColumnNumber(2): made[0].place(1)})
        with pytest.raises(Aborted):
            rebuild(lost, turn)
        assert made[0].columns == {}


@pytest.mark.parametrize("behaviour", [Behaviour(freeze_after=1), Behaviour(no_seal=True)])
def test_it_ends_while_a_target_stands_still(data: Columns, behaviour: Behaviour) -> None:
    """Its lease is another worker's by then, which sends to another target."""
    waits = 0

    def check() -> None:
        nonlocal waits
        waits += not behaviour.freeze_after or made[0].frozen.is_set()
        if waits > 3:
            raise Aborted("it is another worker's")

    with holders(data, {2: "absent"}) as sources, targets(1, {0: behaviour}) as made:
        source = job(data, sources, Landings())
        lost = LostColumns(source, LAUNCH, {ColumnNumber(2): made[0].place(1)})
        with pytest.raises(Aborted):
            rebuild(lost, lambda _size: None, check)
        made[0].thaw.set()
        assert made[0].columns == {}


def test_a_target_that_goes_with_a_column_that_it_took_is_not_dialed_again(data: Columns) -> None:
    """What it took may be gone with it: the coordinator gives another place."""
    ended = False

    def check() -> None:
        nonlocal ended
        if not ended and made[0].fragment_count:
            ended = True
            made[0].end_sessions()

    with holders(data, {2: "absent"}) as sources, targets(1, {0: Behaviour(no_seal=True)}) as made:
        source = job(data, sources, Landings())
        lost = LostColumns(source, LAUNCH, {ColumnNumber(2): made[0].place(1)})
        with pytest.raises(Unavailable):
            rebuild(lost, lambda _size: None, check)
        assert len(made[0].handler.opened_) == 1
        assert made[0].columns == {}


@pytest.mark.parametrize("launch", [1, 2])
def test_of_an_empty_payload_there_is_only_the_manifest(launch: int) -> None:
    """It is of launch 1, and what is made for another launch is not its manifest."""
    empty = Columns.make(CODE, 0, CELL, seed=1)
    with holders(empty, {}) as sources, targets(1) as made:
        source = job(empty, sources, Landings())
        lost = LostColumns(source, LaunchNumber(launch), {ColumnNumber(5): made[0].place(1)})
        if launch == 1:
            (proof,) = rebuild(lost, lambda _size: None)
            assert proof.manifest_digest == source.manifest_digest
        else:
            with pytest.raises(Corrupt, match="its manifest is another's"):
                rebuild(lost, lambda _size: None)
            assert made[0].columns == {}


def made_in(
    room: RebuildRoom, data: Columns, sources: list[SmallHolder], column: int, *away: int
) -> bool:
    """Whether it is what was lost."""
    number = ColumnNumber(column)
    with targets(1) as made:
        places = {number: made[0].place(1)}
        source = job(data, sources, Landings())
        out = {source.columns[j] for j in away}
        here = {id: where for id, where in source.addresses.items() if id not in out}
        lost = LostColumns(replace(source, addresses=here), LAUNCH, places)
        rebuild_columns(lost, room, SENDING, lambda _size: None, lambda: None)
        again = made[0].columns[ColumnId(PAYLOAD, number)]
        return bytes(again.content) == bytes(data.columns[column])


def test_a_room_serves_payload_after_payload_over_the_same_connections(data: Columns) -> None:
    with holders(data, {5: "absent"}) as sources, RebuildRoom(HASTY) as room:
        assert all(made_in(room, data, sources, column) for column in (5, 1, 4))
        assert max(len(one.handler.opened_) for one in sources) == 1


def sent_to(
    room: RebuildRoom, data: Columns, sources: list[SmallHolder], target: SmallTarget, column: int
) -> bool:
    """Whether it is there, as it was lost."""
    number = ColumnNumber(column)
    places = {number: target.place(column + 1)}
    lost = LostColumns(job(data, sources, Landings()), LAUNCH, places)
    rebuild_columns(lost, room, SENDING, lambda _size: None, lambda: None)
    again = target.columns[ColumnId(PAYLOAD, number)]
    return bytes(again.content) == bytes(data.columns[column])


def test_columns_go_to_a_target_over_the_same_connection(data: Columns) -> None:
    """Each column dialed it again."""
    with (
        holders(data, {5: "absent"}) as sources,
        targets(1) as made,
        RebuildRoom(HASTY) as room,
    ):
        assert all(sent_to(room, data, sources, made[0], column) for column in (5, 1, 4))
        assert len(made[0].handler.opened_) == 1


def test_a_target_that_has_ended_the_connection_is_dialed_again(data: Columns) -> None:
    with (
        holders(data, {5: "absent"}) as sources,
        targets(1) as made,
        RebuildRoom(HASTY) as room,
    ):
        assert sent_to(room, data, sources, made[0], 5)
        made[0].end_sessions()
        assert sent_to(room, data, sources, made[0], 1)
        assert len(made[0].handler.opened_) == 2


def test_nor_is_one_that_took_it_over_the_connection_of_an_earlier_column(data: Columns) -> None:
    with (
        holders(data, {5: "absent"}) as sources,
        targets(1) as made,
        RebuildRoom(HASTY) as room,
    ):
        assert sent_to(room, data, sources, made[0], 5)
        made[0].behaviour.no_seal, count = True, made[0].fragment_count

        def check() -> None:
            if made[0].fragment_count > count:
                made[0].end_sessions()

        lost = LostColumns(
            job(data, sources, Landings()), LAUNCH, {ColumnNumber(1): made[0].place(2)}
        )
        with pytest.raises(Unavailable):
            rebuild_columns(lost, room, SENDING, lambda _size: None, check)
        assert len(made[0].handler.opened_) == 1


def test_a_target_that_is_gone_is_dialed_once(data: Columns) -> None:
    with holders(data, {5: "absent"}) as sources, targets(1) as made:
        place = structs.replace(made[0].place(1), address="127.0.0.1:1")
        source = job(data, sources, Landings())
        with pytest.raises(Unavailable):
            rebuild(LostColumns(source, LAUNCH, {ColumnNumber(5): place}), lambda _size: None)
        assert not made[0].handler.opened_


def test_a_unix_socket_on_which_nobody_answers_is_no_target_that_is_gone(
    data: Columns, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    with holders(data, {5: "absent"}) as sources, targets(1) as made:
        place = structs.replace(made[0].place(1), unix=str(tmp_path / "dead"))
        source = job(data, sources, Landings())
        lost = LostColumns(source, LAUNCH, {ColumnNumber(5): place})
        (proof,) = rebuild(lost, lambda _size: None)
        assert proof.target == made[0].id


def test_a_column_that_was_refused_leaves_nothing_open_for_the_next(data: Columns) -> None:
    """What it was promised ends with its connection."""
    with (
        holders(data, {5: "absent"}) as sources,
        targets(2, {1: Behaviour(refuse=True)}) as made,
        RebuildRoom(HASTY) as room,
    ):
        places = {ColumnNumber(j): made[at].place(j) for at, j in enumerate((4, 5))}
        lost = LostColumns(job(data, sources, Landings()), LAUNCH, places)
        with pytest.raises(NoSpace):
            rebuild_columns(lost, room, SENDING, lambda _size: None, lambda: None)
        made[1].behaviour.refuse = False
        for target in made:
            assert sent_to(room, data, sources, target, 5)
            assert len(target.handler.opened_) == 2


@pytest.mark.parametrize("away", [(), (1,)])
def test_whoever_has_lost_a_column_is_not_asked_and_costs_no_connection(
    data: Columns, away: tuple[int, ...]
) -> None:
    """It has come back empty, or is away still. Each payload dialed all of its sources again."""
    with holders(data, {1: "absent"}) as sources, RebuildRoom(HASTY) as room:
        assert all(made_in(room, data, sources, 1, *away) for _ in range(3))
        assert sources[1].asked_bytes == 0
        assert max(len(one.handler.opened_) for one in sources) == 1


@pytest.mark.parametrize("how", ["cut", "damaged"])
def test_a_source_that_fails_one_payload_is_asked_for_the_next(data: Columns, how: str) -> None:
    with holders(data, {0: how, 5: "absent"}) as sources, RebuildRoom(HASTY) as room:
        assert made_in(room, data, sources, 5)
        sources[0].how, sources[0].asked_bytes = "", 0
        assert made_in(room, data, sources, 4)
        assert sources[0].asked_bytes > 0


def test_a_room_is_good_after_a_payload_that_could_not_be_made(data: Columns) -> None:
    faults = dict.fromkeys((0, 1, 2), "absent")
    with holders(data, faults) as sources, RebuildRoom(HASTY) as room:
        with pytest.raises(PayloadDamaged):
            made_in(room, data, sources, 2)
        sources[0].how = sources[1].how = ""
        assert made_in(room, data, sources, 2)


def test_payloads_of_other_sizes_and_cells_share_a_room(data: Columns) -> None:
    small = Columns.make(CODE, 3 * CELL, CELL // 4, seed=9)
    with RebuildRoom(HASTY) as room:
        for each in (small, data, small):
            with holders(each, {5: "absent"}) as sources:
                assert made_in(room, each, sources, 5)
