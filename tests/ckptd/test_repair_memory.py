"""Memory that payloads share which are made again at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ckpt.base.errors import Aborted
from ckpt.base.ids import BootId, ColumnNumber, LaunchNumber, ReservationId, TargetId
from ckpt.base.limits import CELL_BYTES_MAX
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.saving import Place
from ckpt.transfer.column_rebuilder import LostColumns, RebuildRoom
from ckpt.transfer.landings import Landings
from ckpt.transfer.read_job import ReadJob
from ckptd.repair.memory import MemoryShares
from ckptd.repair.worker import HANDS, MEMORY_BYTES_MAX
from tests.protocol.reading import PAYLOAD
from tests.waiting import wait_until


def never() -> bool:
    return False


def at_once() -> bool:
    """Who would wait raises Aborted."""
    return True


def keep() -> None:
    raise AssertionError("what fits stays")


def taking(take: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_a_hand_whose_share_is_large_enough_keeps_what_it_has() -> None:
    shares = MemoryShares(100)
    shares.take("a", 60, lambda: None, at_once)
    shares.take("a", 60, keep, at_once)
    shares.take("a", 10, keep, at_once)


def test_what_does_not_fit_waits_until_others_have_given_back() -> None:
    shares = MemoryShares(100)
    shares.take("a", 60, lambda: None, never)
    let_go, has = threading.Event(), threading.Event()

    def take() -> None:
        shares.take("b", 60, let_go.set, never)
        has.set()

    thread = taking(take)
    assert let_go.wait(10)
    assert not has.is_set()
    shares.give_back("a")
    thread.join(10)
    assert has.is_set()


def test_one_share_may_be_larger_than_all_when_it_is_alone() -> None:
    shares = MemoryShares(100)
    shares.take("a", 500, lambda: None, at_once)
    shares.take("a", 600, lambda: None, at_once)


def test_who_asks_again_comes_after_who_waits() -> None:
    shares = MemoryShares(100)
    shares.take("small", 10, lambda: None, never)
    order: list[str] = []
    waits = threading.Event()

    def take_large() -> None:
        shares.take("large", 95, waits.set, never)
        order.append("large")
        shares.give_back("large")

    thread = taking(take_large)
    assert waits.wait(10)
    # It is in line once it has let go of what it had: under the same lock.
    wait_until(lambda: bool(shares._waiting), "it waits")
    shares.take("small", 10, lambda: None, never)
    order.append("small")
    thread.join(10)
    assert order == ["large", "small"]


def test_who_waits_ends_when_it_is_stopped() -> None:
    shares = MemoryShares(100)
    shares.take("a", 60, lambda: None, never)
    with pytest.raises(Aborted):
        shares.take("b", 60, lambda: None, lambda: True)
    shares.give_back("a")
    shares.take("c", 100, lambda: None, never)


def needed(*lost: int, away: tuple[int, ...] = ()) -> int:
    """Bytes, for columns of the largest cells of which others are out of reach."""
    code = Code(4, 2)
    layout = Layout(code, 64 * code.k * CELL_BYTES_MAX, CELL_BYTES_MAX)
    ids = [TargetId(f"t{j}") for j in range(code.n)]
    addresses = {
        id: TargetAddress(id, BootId(1), "127.0.0.1:1") for j, id in enumerate(ids) if j not in away
    }
    source = ReadJob(PAYLOAD, layout, b"", tuple(ids), addresses, Landings())
    place = Place(TargetId("t6"), BootId(1), "127.0.0.1:1", ReservationId(1))
    places = {ColumnNumber(j): place for j in lost}
    return RebuildRoom.bytes_for(LostColumns(source, LaunchNumber(1), places))


@pytest.mark.parametrize("column", [0, 3, 4, 5])
def test_payloads_with_the_largest_cells_are_made_again_beside_each_other(column: int) -> None:
    """Hands that do not fit beside each other wait, and each payload touches fresh memory."""
    assert HANDS * needed(column) <= MEMORY_BYTES_MAX


def test_what_is_made_and_what_is_read_in_place_of_data_is_counted() -> None:
    """A parity column that is made has memory, and so has one that is read for data."""
    one = needed(0, 4) - needed(0)
    assert one > 0
    assert needed(0) == needed(3) == needed(4) == needed(5)
    assert needed(0, 1) == needed(4, 5) == needed(0) + one
    assert needed(0, away=(1,)) == needed(4, away=(1,)) == needed(0) + one
    assert needed(0, away=(0,)) == needed(0), "it is one column"
    assert needed(4, away=(5,)) == needed(4), "nobody would have read it"
