"""Who leaves its target: the silent and the slow by themselves. Never who waits with its peers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.limits import BEAT_US, HEDGE_US
from ckpt.base.units import MiB
from ckpt.format.messages.writing import TargetPace
from ckpt.protocol.events import Ticked
from ckpt.protocol.writer import payload_events as w
from ckpt.protocol.writer.lateness import GOOD_SEAL_US, GOOD_WRITE_US, HEDGE_LAST_US, LATE_FACTOR
from ckpt.protocol.writer.payload_writer import PayloadWriter
from tests.protocol.writerkit import (
    CELL,
    accept,
    asking,
    manifest,
    new_writer,
    place,
    seal,
    send_all,
)

TICK_US = 100_000
LONG_US = 40 * HEDGE_US
BUSY = TargetPace(write_us=4_000, seal_us=8_000, waiting_count=150)
SLOW = TargetPace(write_us=GOOD_WRITE_US + 1, seal_us=GOOD_SEAL_US + 1, waiting_count=0)


def hungry(code: str = "2+2", spares: int = 1) -> PayloadWriter:
    """Every column is accepted and waits for its first credit."""
    writer = new_writer(code, stripes=4, spares=spares)
    writer.begin()
    for column in range(len(writer.columns)):
        accept(writer, column, credit=0)
    return writer


def sealing(code: str = "2+2", spares: int = 1) -> PayloadWriter:
    """Every column waits for its proof."""
    writer = hungry(code, spares)
    for column in writer.columns:
        writer.handle(w.StreamCredited(0, column.stream, 4 * CELL))
        send_all(writer, column.number)
    manifest(writer)
    return writer


def pass_time(
    writer: PayloadWriter, beats: dict[int, TargetPace], begin_us: int, end_us: int
) -> list[w.WriterAction]:
    """Ticks, and each named column's target beats."""
    actions: list[w.WriterAction] = []
    for now_us in range(begin_us + TICK_US, end_us + 1, TICK_US):
        if now_us % BEAT_US == 0:
            for number, pace in beats.items():
                if stream := writer.columns[number].stream:
                    actions += writer.handle(w.StreamCredited(now_us, stream, 0, pace))
        actions += writer.handle(Ticked(now_us))
        writer.check()
    return actions


def test_columns_that_wait_for_busy_targets_stay_for_as_long_as_it_takes() -> None:
    for writer in (hungry(), sealing()):
        beats = dict.fromkeys(range(4), BUSY)
        assert pass_time(writer, beats, 0, LONG_US) == []


def test_a_column_that_waits_while_its_peers_are_done_stays_too() -> None:
    writer = sealing()
    for column in range(3):
        assert seal(writer, column, 1) == []
    assert pass_time(writer, {3: BUSY}, 0, LONG_US) == []


def test_a_word_without_credit_is_no_progress_and_no_credit() -> None:
    writer = hungry()
    writer.handle(w.StreamCredited(5, writer.columns[0].stream, 0, BUSY))
    assert writer.columns[0].credit_bytes == 0
    assert writer.columns[0].waiting_since_us == 0
    assert writer.next_stripe(0) is None


def test_a_silent_target_loses_its_column_while_its_peers_are_busy() -> None:
    writer = hungry()
    old = writer.columns[3]
    beats = dict.fromkeys(range(3), BUSY)
    stream = old.stream
    assert pass_time(writer, beats, 0, HEDGE_US - TICK_US) == []
    assert pass_time(writer, beats, HEDGE_US - TICK_US, HEDGE_US) == [
        w.AbandonStream(old.number, stream, place(3), w.AbandonReason.STALLED),
        w.OpenStream(old.number, stream + 1, place(10)),
    ]


def test_targets_that_are_all_silent_keep_their_columns_for_longer() -> None:
    writer = hungry()
    assert pass_time(writer, {}, 0, HEDGE_LAST_US - TICK_US) == []
    assert pass_time(writer, {}, HEDGE_LAST_US - TICK_US, HEDGE_LAST_US) != []


def test_a_target_that_is_slow_by_itself_loses_its_column_while_it_streams() -> None:
    writer = hungry()
    slow = writer.columns[1]
    stream = slow.stream
    actions = pass_time(writer, {0: BUSY, 1: SLOW, 2: BUSY, 3: BUSY}, 0, BEAT_US)
    assert actions == [
        w.AbandonStream(slow.number, stream, place(1), w.AbandonReason.SLOW),
        w.OpenStream(slow.number, stream + 3, place(10)),
    ]


def test_a_target_that_is_slow_by_itself_loses_its_column_while_it_seals() -> None:
    writer = sealing()
    beats = {0: BUSY, 1: SLOW, 2: BUSY, 3: BUSY}
    kinds = [type(action) for action in pass_time(writer, beats, 0, BEAT_US)]
    assert kinds == [w.AbandonStream, w.OpenStream]


def test_what_slows_all_targets_alike_is_nobodys_fault() -> None:
    for writer in (hungry(), sealing()):
        assert pass_time(writer, dict.fromkeys(range(4), SLOW), 0, LONG_US) == []


def test_devices_of_one_cluster_may_differ() -> None:
    slower = TargetPace(LATE_FACTOR * BUSY.write_us, LATE_FACTOR * BUSY.seal_us, 0)
    faster = TargetPace(write_us=100, seal_us=100, waiting_count=0)
    good = TargetPace(write_us=GOOD_WRITE_US, seal_us=GOOD_SEAL_US, waiting_count=0)
    for one, others in ((slower, BUSY), (good, faster)):
        for writer in (hungry(), sealing()):
            beats = dict.fromkeys(range(4), others) | {2: one}
            assert pass_time(writer, beats, 0, LONG_US) == []


def test_without_a_spare_a_slow_column_may_be_left_out_after_its_deadline() -> None:
    writer = sealing(spares=0)
    beats = dict.fromkeys(range(4), BUSY) | {3: SLOW}
    for column in range(3):
        seal(writer, column, 1)
    last = writer.columns[3]
    assert pass_time(writer, beats, 0, BEAT_US + HEDGE_US - TICK_US) == []
    actions = pass_time(writer, beats, BEAT_US + HEDGE_US - TICK_US, BEAT_US + HEDGE_US)
    assert [type(action) for action in actions] == [w.AskSpares, w.CertifyPayload]
    certified = actions[-1]
    assert isinstance(certified, w.CertifyPayload)
    assert certified.slow == ("t3",)
    assert last.stream, "it may still come to its end"


def test_a_slow_target_that_recovers_before_the_deadline_is_waited_for() -> None:
    writer = sealing(spares=0)
    for column in range(3):
        seal(writer, column, 1)
    assert pass_time(writer, {3: SLOW}, 0, HEDGE_US) == []
    assert pass_time(writer, {3: BUSY}, HEDGE_US, LONG_US) == []


def test_a_column_that_waits_for_the_coordinator_is_not_late() -> None:
    """Its target failed it; whether another can take it the coordinator has yet to say."""
    writer = sealing(spares=0)
    for column in range(3):
        seal(writer, column, 1)
    lost = writer.columns[3]
    asked = writer.handle(w.StreamLost(2, lost.stream, "reset"))
    assert asked[-1] == asking(3, "t3", among=4)
    assert pass_time(writer, {}, 0, LONG_US) == []


def test_a_begin_that_is_not_answered_goes_to_the_spare_at_hand() -> None:
    writer = new_writer("2+2", stripes=4, spares=1)
    writer.begin()
    for column in range(3):
        writer.handle(w.StreamAccepted(20_000, writer.columns[column].stream, 0))
    late = writer.columns[3]
    stream = late.stream
    assert pass_time(writer, {}, 0, TICK_US) == []
    assert pass_time(writer, {}, TICK_US, 2 * TICK_US) == [
        w.AbandonStream(late.number, stream, place(3), w.AbandonReason.SLOW),
        w.OpenStream(late.number, stream + 1, place(10)),
    ]
    assert pass_time(writer, dict.fromkeys(range(3), BUSY), 2 * TICK_US, 6 * TICK_US) == []


@pytest.mark.parametrize("opened_us", [200_000, 600_000])
def test_a_begin_that_is_late_as_its_peers_were_is_waited_for(opened_us: int) -> None:
    writer = new_writer("2+2", stripes=4, spares=1)
    writer.begin()
    for column in range(3):
        writer.handle(w.StreamAccepted(opened_us, writer.columns[column].stream, 0))
    waits_us = 7 * opened_us
    assert pass_time(writer, dict.fromkeys(range(3), BUSY), opened_us, waits_us) == []
    assert pass_time(writer, dict.fromkeys(range(3), BUSY), waits_us, 2 * waits_us) != []


def test_a_link_that_lets_little_pass_loses_its_column_and_one_that_fills_in_turn_does_not() -> (
    None
):
    writer = new_writer("2+2", stripes=64, spares=1)
    writer.begin()
    for column in range(4):
        accept(writer, column, credit=64 * MiB)
    for now_us in range(0, 600_000, 10_000):
        for column in writer.columns[:3]:
            writer.handle(w.FragmentSent(now_us, column.stream, column.next_stripe))
            writer.handle(w.SendBlocked(now_us, column.stream))
            writer.handle(w.SendMoved(now_us + 5_000, column.stream))
        slow = writer.columns[3]
        if now_us % 300_000 == 0:
            writer.handle(w.SendMoved(now_us, slow.stream))
            writer.handle(w.FragmentSent(now_us, slow.stream, slow.next_stripe))
            writer.handle(w.SendBlocked(now_us, slow.stream))
        if now_us < 500_000:
            assert writer.handle(Ticked(now_us)) == []
    actions = writer.handle(Ticked(600_000))
    assert [type(action) for action in actions] == [w.AbandonStream, w.OpenStream]
    assert actions[0].column == 3  # type: ignore[union-attr]


def test_a_link_whose_turn_has_not_come_is_not_slower_than_those_that_had_one() -> None:
    """In a crowd sockets take much at first, and are full then for all: a target, or a host, takes
    from one stream after the other. What passed before says nothing about that.
    """
    writer = new_writer("2+2", stripes=64, spares=1)
    writer.begin()
    for column in writer.columns:
        accept(writer, column.number, credit=64 * MiB)
        for _ in range(8):
            writer.handle(w.FragmentSent(10_000, column.stream, column.next_stripe))
    for column in writer.columns:
        writer.handle(w.SendBlocked(20_000, column.stream))
    for now_us in range(40_000, 2_000_000, 20_000):
        for column in writer.columns[:3]:
            writer.handle(w.SendMoved(now_us, column.stream))
            if now_us in (300_000, 600_000):
                writer.handle(w.FragmentSent(now_us, column.stream, column.next_stripe))
            writer.handle(w.SendBlocked(now_us, column.stream))
        last = writer.columns[3]
        writer.handle(w.SendMoved(now_us, last.stream))
        writer.handle(w.SendBlocked(now_us, last.stream))
        assert writer.handle(Ticked(now_us)) == []


@pytest.mark.parametrize("stripes", [2, 12])
def test_a_link_that_is_the_last_one_is_judged_by_the_pace_of_the_others(stripes: int) -> None:
    writer = new_writer("2+2", stripes=stripes, spares=1)
    writer.begin()
    for column in writer.columns:
        accept(writer, column.number, credit=64 * MiB)
    last = writer.columns[3]
    writer.handle(w.FragmentSent(1_000, last.stream, 0))
    writer.handle(w.SendBlocked(1_000, last.stream))
    manifest(writer, 1_000)
    for column in writer.columns[:3]:
        for stripe in range(stripes):
            writer.handle(w.FragmentSent(2_000 + 8_000 * stripe, column.stream, stripe))
        seal(writer, column.number, now_us=100_000)
    moved_us = None
    for now_us in range(110_000, 1_000_000, 20_000):
        writer.handle(w.SendMoved(now_us, last.stream))
        writer.handle(w.SendBlocked(now_us, last.stream))
        if writer.handle(Ticked(now_us)):
            moved_us = now_us
            break
    assert moved_us is not None
    assert moved_us <= 600_000


def test_links_that_all_let_nothing_pass_are_nobodys_fault() -> None:
    writer = new_writer("2+2", stripes=64, spares=1)
    writer.begin()
    for column in writer.columns:
        accept(writer, column.number, credit=64 * MiB)
        writer.handle(w.SendBlocked(0, column.stream))
    for now_us in range(0, 900_000, TICK_US):
        assert writer.handle(Ticked(now_us)) == []


def test_a_device_that_does_one_thing_is_compared_with_one_thing_of_those_that_do_many() -> None:
    """Each takes 0.2 s for a step, as over a network; the peers have twenty under way together."""
    many = TargetPace(write_us=40_000, seal_us=10_000, waiting_count=0, alone_us=200_000)
    lonely = TargetPace(GOOD_WRITE_US * 16, GOOD_SEAL_US + 1, waiting_count=0)
    for writer in (hungry(), sealing()):
        assert pass_time(writer, {0: many, 1: many, 2: many, 3: lonely}, 0, LONG_US) == []
    known = replace(many, alone_us=0)
    (move, *_) = pass_time(sealing(), {0: known, 1: known, 2: known, 3: lonely}, 0, LONG_US)
    assert isinstance(move, w.AbandonStream)
