"""PayloadWriter by table: whole action lists, and random interleavings with loss."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.ids import ReservationId, TargetId
from ckpt.base.limits import HEDGE_US
from ckpt.protocol.events import Ticked
from ckpt.protocol.writer import payload_events as w
from ckpt.protocol.writer.column import ColumnState
from ckpt.protocol.writer.lateness import HEDGE_LAST_US, SLOW_AFTER_US
from ckpt.protocol.writer.payload_writer import PayloadWriter
from tests.landing import examples
from tests.protocol.writerkit import (
    CELL,
    accept,
    asking,
    manifest,
    new_writer,
    place,
    plan,
    proof,
    seal,
    send_all,
)

TICK_US = 100_000


def tick_until(writer: PayloadWriter, start_us: int, end_us: int) -> list[w.WriterAction]:
    actions: list[w.WriterAction] = []
    for now_us in range(start_us, end_us + 1, TICK_US):
        actions += writer.handle(Ticked(now_us))
        writer.check()
    return actions


def streaming(code: str = "2+1", stripes: int = 2, spares: int = 1) -> PayloadWriter:
    """Begun, all accepted with ample credit, nothing sent."""
    writer = new_writer(code, stripes, spares)
    writer.begin()
    for column in range(len(writer.columns)):
        accept(writer, column)
    return writer


def sealing(code: str = "2+1", spares: int = 1) -> PayloadWriter:
    """All bytes sent, all seals asked for."""
    writer = streaming(code, spares=spares)
    for column in range(len(writer.columns)):
        assert send_all(writer, column) == []
    asked = manifest(writer)
    assert asked == [w.SealStream(c.number, c.stream) for c in writer.columns]
    return writer


def test_every_column_is_opened_at_its_planned_place() -> None:
    writer = new_writer()
    assert writer.begin() == [
        w.OpenStream(c.number, c.stream, place(c.number)) for c in writer.columns
    ]
    writer.check()


def test_an_absent_column_takes_a_spare() -> None:
    writer = new_writer("2+1", absent=(1,))
    opened = {a.column: a.place for a in writer.begin() if isinstance(a, w.OpenStream)}
    assert opened == {0: place(0), 2: place(1), 1: place(10)}


def test_an_absent_column_without_a_spare_asks_for_one() -> None:
    writer = new_writer("4+2", spares=0, absent=(5,))
    assert writer.begin()[-1] == asking(5, among=6)


def test_nothing_is_sent_before_acceptance_or_beyond_credit() -> None:
    writer = new_writer(stripes=3)
    writer.begin()
    assert writer.next_stripe(0) is None
    stream = writer.columns[0].stream
    writer.handle(w.StreamAccepted(0, stream, CELL + 1))
    assert writer.next_stripe(0) == 0
    writer.handle(w.FragmentSent(0, stream, 0))
    assert writer.next_stripe(0) is None
    writer.handle(w.StreamCredited(0, stream, CELL - 1))
    assert writer.next_stripe(0) == 1


def test_the_column_with_most_bytes_left_goes_first() -> None:
    writer = streaming()
    writer.handle(w.FragmentSent(0, writer.columns[0].stream, 0))
    assert [c.number for c in writer.send_order()] == [1, 2, 0]


def test_all_columns_sealed_certify_the_payload() -> None:
    writer = sealing()
    assert seal(writer, 0) == []
    assert seal(writer, 1) == []
    proofs = tuple(proof(writer, j) for j in range(3))
    assert seal(writer, 2) == [w.CertifyPayload(proofs)]
    writer.check()


def test_an_empty_payload_is_sealed_without_a_fragment() -> None:
    writer = new_writer(stripes=0)
    writer.begin()
    manifest(writer)
    stream = writer.columns[0].stream
    assert writer.handle(w.StreamAccepted(0, stream, 0)) == [
        w.SealStream(writer.columns[0].number, stream)
    ]


@pytest.mark.parametrize("event", [w.StreamRefused, w.StreamLost])
def test_a_broken_column_restarts_from_stripe_0_on_the_spare(event: type) -> None:
    writer = streaming()
    send_all(writer, 1)
    old = writer.columns[1].stream
    detail = ("no_space", "full") if event is w.StreamRefused else ("reset",)
    actions = writer.handle(event(5, old, *detail))
    assert actions == [
        w.AbandonStream(writer.columns[1].number, old, place(1), w.AbandonReason.BROKEN),
        w.OpenStream(writer.columns[1].number, old + 2, place(10)),
    ]
    accept(writer, 1)
    assert writer.next_stripe(1) == 0
    assert writer.next_stripe(0) == 0, "other columns go on where they were"
    writer.check()


def test_messages_of_an_abandoned_stream_change_nothing() -> None:
    writer = sealing()
    old, late_proof = writer.columns[1].stream, proof(writer, 1)
    writer.handle(w.StreamLost(5, old, "reset"))
    before = repr(writer.columns)
    for event in (
        w.StreamAccepted(6, old, 1),
        w.StreamCredited(6, old, 1),
        w.FragmentSent(6, old, 0),
        w.SendBlocked(6, old),
        w.SendMoved(6, old),
        w.StreamSealed(6, old, late_proof),
        w.StreamRefused(6, old, "failed", ""),
        w.StreamLost(6, old, ""),
    ):
        assert writer.handle(event) == []
    assert repr(writer.columns) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"target": TargetId("t9")},
        {"column_crc": 1},
        {"manifest_digest": bytes(16)},
        {"payload_bytes": 1},
        {"code": "3+1"},
    ],
)
def test_a_proof_that_does_not_fit_never_counts(changes: dict[str, object]) -> None:
    writer = sealing()
    stream = writer.columns[0].stream
    actions = writer.handle(w.StreamSealed(1, stream, proof(writer, 0, **changes)))
    assert [type(a) for a in actions] == [w.AbandonStream, w.OpenStream]
    writer.check()


def test_a_proof_before_the_seal_was_asked_changes_nothing() -> None:
    writer = streaming()
    assert writer.handle(w.StreamSealed(1, writer.columns[0].stream, proof(writer, 0))) == []
    assert writer.columns[0].state is ColumnState.STREAMING


def test_a_begin_may_be_answered_by_the_proof_that_was_lost() -> None:
    writer = sealing(spares=0)
    column = writer.columns[1]
    place = column.place
    assert place is not None
    writer.handle(w.StreamLost(5, column.stream, "reset"))
    writer.handle(w.ColumnsReopened(6, (column.number,), (place,)))
    assert (column.state, column.place) == (ColumnState.OPENING, place)
    writer.handle(w.StreamSealed(7, column.stream, proof(writer, 1)))
    assert column.state is ColumnState.SEALED
    writer.check()


def test_a_column_without_progress_moves_to_the_spare_while_its_peers_move() -> None:
    writer = sealing()
    seal(writer, 0, 1)
    seal(writer, 1, 1)
    column = writer.columns[2]
    old = column.stream
    assert tick_until(writer, TICK_US, HEDGE_US - TICK_US) == []
    assert tick_until(writer, HEDGE_US, HEDGE_US) == [
        w.AbandonStream(column.number, old, place(2), w.AbandonReason.STALLED),
        w.OpenStream(column.number, old + 1, place(10)),
    ]


def test_when_all_stand_still_nobody_moves_before_the_last_deadline() -> None:
    writer = sealing()
    assert tick_until(writer, TICK_US, HEDGE_LAST_US - TICK_US) == []
    moved = tick_until(writer, HEDGE_LAST_US, HEDGE_LAST_US)
    assert w.AbandonStream in {type(action) for action in moved}


def test_our_own_absence_is_not_charged_to_targets() -> None:
    writer = sealing()
    seal(writer, 0, 1)
    seal(writer, 1, 1)
    assert writer.handle(Ticked(20 * HEDGE_US)) == []


def test_a_column_that_waits_for_us_is_never_late() -> None:
    writer = streaming(stripes=4)
    for column in (0, 1):
        send_all(writer, column)
    assert tick_until(writer, TICK_US, 2 * HEDGE_LAST_US) == []


def test_a_late_column_without_a_spare_stays_and_may_be_left_out_from_the_floor_up() -> None:
    writer = sealing("2+2", spares=0)
    for column in range(3):
        assert seal(writer, column, 1) == []
    proofs = tuple(proof(writer, j) for j in range(3))
    column3 = writer.columns[3]
    assert tick_until(writer, TICK_US, HEDGE_US) == [
        asking(3, "t3", among=4, stays=True),
        w.CertifyPayload(proofs, (TargetId("t3"),)),
    ]
    assert column3.state is ColumnState.SEALING
    assert seal(writer, 3, HEDGE_US + 1) == [
        w.CertifyPayload((*proofs, proof(writer, 3)), (TargetId("t3"),))
    ]


def test_nothing_is_certified_below_the_floor() -> None:
    writer = sealing("2+2", spares=0)
    for column in range(2):
        seal(writer, column, 1)
    actions = tick_until(writer, TICK_US, 2 * HEDGE_LAST_US)
    assert w.CertifyPayload not in {type(action) for action in actions}


def test_a_column_for_which_no_spare_can_be_named_fails_and_the_rest_is_certified() -> None:
    writer = sealing("2+2", spares=0)
    for column in range(3):
        seal(writer, column, 1)
    lost = writer.columns[3]
    asked = writer.handle(w.StreamLost(2, lost.stream, "reset"))
    assert asked[-1] == asking(3, "t3", among=4)
    proofs = tuple(proof(writer, j) for j in range(3))
    assert writer.handle(w.SparesGiven(3, lost.number, ())) == [w.CertifyPayload(proofs)]
    assert writer.handle(w.SparesGiven(4, None, (place(20),))) == [
        w.OpenStream(lost.number, lost.stream, place(20))
    ]


def test_fewer_possible_places_than_the_floor_fail_at_once_and_name_both_numbers() -> None:
    writer = streaming("2+1", spares=0)
    column = writer.columns[0]
    writer.handle(w.StreamRefused(1, column.stream, "no_space", "full"))
    actions = writer.handle(w.SparesGiven(2, column.number, ()))
    streams = [a for a in actions if isinstance(a, w.AbandonStream)]
    assert [a.column for a in streams] == [1, 2]
    failed = actions[-1]
    assert isinstance(failed, w.FailPayload)
    assert failed.code == "unavailable"
    assert "2 live targets" in failed.message
    assert "3 are needed" in failed.message
    assert writer.done
    assert writer.handle(Ticked(HEDGE_US)) == []
    writer.check()


def test_a_spare_that_holds_another_column_of_the_payload_is_passed_over() -> None:
    writer = streaming(spares=0)
    column = writer.columns[0]
    writer.handle(w.StreamLost(1, column.stream, ""))
    given_spares = w.SparesGiven(2, column.number, (place(1), place(0), place(11)))
    assert writer.handle(given_spares) == [w.OpenStream(column.number, column.stream, place(11))]


def test_a_place_that_is_named_for_a_column_is_taken_also_where_it_failed() -> None:
    writer = streaming(spares=0)
    column = writer.columns[0]
    writer.handle(w.StreamLost(1, column.stream, "reset"))
    again = replace(place(0), reservation=ReservationId(500))
    opened = writer.handle(w.SparesGiven(2, column.number, (again,)))
    assert opened == [w.OpenStream(column.number, column.stream, again)]


def test_a_place_that_is_named_for_another_column_is_not_taken_where_it_failed() -> None:
    writer = streaming("2+2", spares=0)
    first, second = writer.columns[:2]
    writer.handle(w.StreamLost(1, first.stream, "reset"))
    writer.handle(w.StreamLost(1, second.stream, "reset"))
    again = replace(place(0), reservation=ReservationId(500))
    opened = writer.handle(w.SparesGiven(2, second.number, (again,)))
    assert opened == [w.OpenStream(second.number, second.stream, again)]


def test_a_place_goes_to_the_column_that_asked_before_one_that_was_given_up() -> None:
    writer = streaming("2+2", spares=0)
    first, second = writer.columns[:2]
    writer.handle(w.StreamLost(1, first.stream, "reset"))
    writer.handle(w.SparesGiven(2, first.number, ()))
    writer.handle(w.StreamLost(3, second.stream, "reset"))
    opened = writer.handle(w.SparesGiven(4, second.number, (place(20),)))
    assert opened == [w.OpenStream(second.number, second.stream, place(20))]
    assert first.state is ColumnState.FAILED


def test_a_target_that_came_back_with_a_new_boot_may_take_its_column_again() -> None:
    writer = streaming(spares=0)
    column = writer.columns[0]
    writer.handle(w.StreamLost(1, column.stream, ""))
    again = place(0, boot=2)
    assert writer.handle(w.SparesGiven(2, column.number, (again,))) == [
        w.OpenStream(column.number, column.stream, again)
    ]


def test_a_slow_column_moves_when_its_peers_are_far_ahead() -> None:
    writer = streaming(stripes=8)
    slow = writer.columns[2]
    writer.handle(w.FragmentSent(0, slow.stream, 0))
    writer.handle(w.SendBlocked(1, slow.stream))
    for column in (0, 1):
        send_all(writer, column)
    assert tick_until(writer, TICK_US, SLOW_AFTER_US) == []
    old = slow.stream
    assert tick_until(writer, SLOW_AFTER_US + 1, SLOW_AFTER_US + 1) == [
        w.AbandonStream(slow.number, old, place(2), w.AbandonReason.SLOW),
        w.OpenStream(slow.number, old + 1, place(10)),
    ]


def test_a_slow_column_stays_when_no_spare_is_at_hand() -> None:
    writer = streaming(stripes=8, spares=0)
    writer.handle(w.SendBlocked(1, writer.columns[2].stream))
    for column in (0, 1):
        send_all(writer, column)
    assert tick_until(writer, TICK_US, HEDGE_US - TICK_US) == []


def test_columns_lost_at_the_second_count_are_streamed_again_where_it_says() -> None:
    writer = sealing()
    for column in range(3):
        seal(writer, column)
    lost = writer.columns[1]
    reopened = w.ColumnsReopened(9, (lost.number,), (place(30),))
    assert writer.handle(reopened) == [w.OpenStream(lost.number, lost.stream, place(30))]
    assert writer.handle(reopened) == [], "a repeated message finds it on its way"
    accept(writer, 1)
    assert send_all(writer, 1) == [w.SealStream(lost.number, lost.stream)]
    proofs = tuple(proof(writer, j) for j in range(3))
    assert seal(writer, 1) == [w.CertifyPayload(proofs)]
    assert writer.handle(reopened) == [w.CertifyPayload(proofs)], "it is there: certified again"


def test_a_place_that_the_second_count_names_is_tried_also_where_the_column_failed_before() -> None:
    writer = sealing("2+2", spares=0)
    for column in range(3):
        seal(writer, column)
    failed = writer.columns[3]
    writer.handle(w.StreamLost(2, failed.stream, "reset"))
    writer.handle(w.SparesGiven(3, failed.number, ()))
    again = place(3)
    actions = writer.handle(w.ColumnsReopened(9, (failed.number,), (again,)))
    assert actions == [w.OpenStream(failed.number, failed.stream, again)]
    writer.check()


def test_two_lost_columns_may_take_each_others_places() -> None:
    writer = sealing("2+2")
    for column in range(4):
        seal(writer, column)
    numbers = (writer.columns[0].number, writer.columns[1].number)
    swapped = (place(1, boot=2), place(0, boot=2))
    actions = writer.handle(w.ColumnsReopened(9, numbers, swapped))
    assert [a.place for a in actions if isinstance(a, w.OpenStream)] == list(swapped)
    writer.check()


def test_a_stopped_writer_ends_all_streams_and_says_nothing_more() -> None:
    writer = streaming()
    live = [(c.number, c.stream) for c in writer.columns]
    assert writer.handle(w.WriterStopped(1)) == [
        w.AbandonStream(number, stream, place(number), w.AbandonReason.STOPPED)
        for number, stream in live
    ]
    assert manifest(writer) == []
    writer.check()


@settings(max_examples=examples(300))
@given(
    seed=st.integers(0, 1 << 32),
    code=st.sampled_from(["1+1", "2+1", "2+2", "4+2"]),
    stripes=st.integers(0, 4),
    spares=st.integers(0, 3),
    faults=st.integers(0, 4),
)
def test_any_interleaving_keeps_the_invariants_and_comes_to_an_end(
    seed: int, code: str, stripes: int, spares: int, faults: int
) -> None:
    random = Random(seed)
    writer = PayloadWriter(plan(code, spares), stripes * int(code[0]) * CELL, count(1), 0)
    log = list(writer.begin())
    clock = time_steps()
    manifest(writer)
    for _ in range(2000):
        if ended(log, writer):
            break
        now_us = next(clock)
        column = random.choice(writer.columns)
        if faults and random.random() < 0.05 and column.stream:
            faults -= 1
            log += writer.handle(w.StreamLost(now_us, column.stream, "fault"))
        else:
            log += next_step(writer, column.number, now_us, random.random() < 0.2)
        for ask in [a for a in log if isinstance(a, w.AskSpares)]:
            if writer.columns[ask.column].asked:
                more = (place(40 + random.randrange(5)),) if random.random() < 0.5 else ()
                log += writer.handle(w.SparesGiven(now_us, ask.column, more))
        writer.check()
    assert ended(log, writer)


def time_steps() -> Iterator[int]:
    return iter(range(1000, 1 << 40, 1000))


def ended(log: list[w.WriterAction], writer: PayloadWriter) -> bool:
    certified = any(isinstance(action, w.CertifyPayload) for action in log)
    busy = any(c.stream for c in writer.columns)
    return writer.done or (certified and not busy)


def next_step(writer: PayloadWriter, number: int, now_us: int, late: bool) -> list[w.WriterAction]:
    """What an honest target and link do next for this column."""
    column = writer.columns[number]
    match column.state:
        case ColumnState.OPENING:
            return writer.handle(w.StreamAccepted(now_us, column.stream, CELL))
        case ColumnState.STREAMING if (stripe := writer.next_stripe(number)) is not None:
            return writer.handle(w.FragmentSent(now_us, column.stream, stripe))
        case ColumnState.STREAMING:
            return writer.handle(w.StreamCredited(now_us, column.stream, CELL))
        case ColumnState.SEALING:
            return seal(writer, number, now_us)
        case _:
            return writer.handle(Ticked(now_us)) if late else []


def test_a_column_is_not_sent_to_the_target_of_another_whatever_the_second_count_names() -> None:
    writer = sealing("2+2")
    for column in range(4):
        seal(writer, column)
    reopened = w.ColumnsReopened(9, (writer.columns[0].number,), (place(1, boot=2),))
    actions = writer.handle(reopened)
    assert [a.place for a in actions if isinstance(a, w.OpenStream)] == [place(10)]
    writer.check()
