"""Whose target is mute: asked together with its peers, it alone does not answer."""

from __future__ import annotations

from ckpt.base.limits import BEAT_US, HEDGE_US
from ckpt.format.messages.writing import TargetPace
from ckpt.protocol.events import Ticked
from ckpt.protocol.writer import payload_events as w
from ckpt.protocol.writer.lateness import GOOD_WRITE_US, LAST_STILL_US
from ckpt.protocol.writer.payload_writer import PayloadWriter
from ckpt.protocol.writer.questions import (
    ANSWER_FACTOR,
    ANSWER_US,
    ANSWER_US_MIN,
    ASK_US_MIN,
    ASK_US_PER_WAITING,
    LOOK_US_MAX,
    answer_us,
)
from tests.protocol.writerkit import CELL, manifest, new_writer, place, seal, send_all

TICK_US = 25_000
SOON_US = 1_000
GOOD = TargetPace(write_us=4_000, seal_us=8_000, waiting_count=0)


def hungry(code: str = "2+2", spares: int = 1) -> PayloadWriter:
    """Every column is accepted by a target that can be asked, and waits for credit."""
    writer = new_writer(code, stripes=4, spares=spares)
    writer.begin()
    for column in writer.columns:
        writer.handle(w.StreamAccepted(0, column.stream, 0, None, answers=True))
    return writer


def sealing(spares: int = 1) -> PayloadWriter:
    """Every column waits for its proof."""
    writer = hungry(spares=spares)
    for column in writer.columns:
        writer.handle(w.StreamCredited(0, column.stream, 4 * CELL))
        send_all(writer, column.number)
    manifest(writer)
    return writer


class Clock:
    """Ticks; who is asked answers a little later, with its pace. `gone` answer nothing."""

    def __init__(self, writer: PayloadWriter, gone: tuple[int, ...] = (), took_us: int = SOON_US):
        self.writer, self.gone, self.took_us = writer, gone, took_us
        self.pace: dict[int, TargetPace] = {}
        self.now_us = 0
        self.asks: list[tuple[int, int]] = []
        #: When, and whose target.
        self._answers: list[tuple[int, int, int]] = []

    def run(self, end_us: int, tick_us: int = TICK_US) -> list[w.WriterAction]:
        """What was done besides asking."""
        done: list[w.WriterAction] = []
        while self.now_us < end_us:
            self.now_us += tick_us
            for at_us, number, stream in [a for a in self._answers if a[0] <= self.now_us]:
                self._answers.remove((at_us, number, stream))
                told = self.pace.get(number, GOOD)
                done += self.writer.handle(w.StreamCredited(at_us, stream, 0, told))
            for action in self.writer.handle(Ticked(self.now_us)):
                if isinstance(action, w.AskTarget):
                    self._asked(action)
                else:
                    done.append(action)
            self.writer.check()
        return done

    def _asked(self, action: w.AskTarget) -> None:
        self.asks.append((self.now_us, action.column))
        if action.column not in self.gone:
            answer = self.now_us + self.took_us, action.column, action.stream
            self._answers.append(answer)


def moved(writer: PayloadWriter, number: int, stream: int) -> list[w.WriterAction]:
    column = writer.columns[number].number
    return [
        w.AbandonStream(column, stream, place(number), w.AbandonReason.SLOW),
        w.OpenStream(column, stream + len(writer.columns) - number, place(10)),
    ]


def test_a_silence_makes_all_targets_be_asked_at_once() -> None:
    clock = Clock(hungry())
    assert clock.run(ASK_US_MIN) == []
    assert clock.asks == [(ASK_US_MIN, number) for number in range(4)]


def test_a_target_that_alone_does_not_answer_loses_its_column_to_the_spare() -> None:
    for writer in (hungry(), sealing()):
        clock = Clock(writer, gone=(3,))
        stream = writer.columns[3].stream
        assert clock.run(ASK_US_MIN + ANSWER_US - TICK_US) == []
        assert clock.run(ASK_US_MIN + ANSWER_US) == moved(writer, 3, stream)


def test_targets_of_sealed_columns_are_asked_too_and_tell_that_the_way_is_open() -> None:
    writer = sealing()
    for column in range(3):
        assert seal(writer, column, 1) == []
    clock = Clock(writer, gone=(3,))
    stream = writer.columns[3].stream
    assert clock.run(ASK_US_MIN + ANSWER_US + TICK_US) == moved(writer, 3, stream)
    assert [number for _, number in clock.asks][:4] == [0, 1, 2, 3]


def test_nobody_is_mute_while_all_are() -> None:
    """This host, the network or all others stand still, whatever was sealed before."""
    for writer in (hungry(), sealing()):
        assert Clock(writer, gone=(0, 1, 2, 3)).run(HEDGE_US - TICK_US) == []
    writer = sealing()
    for column in range(3):
        seal(writer, column, 1)
    assert Clock(writer, gone=(0, 1, 2, 3)).run(HEDGE_US - TICK_US) == []


def test_where_answers_take_long_they_are_waited_for() -> None:
    took_us = 200_000
    writer = hungry()
    clock = Clock(writer, gone=(3,), took_us=took_us)
    assert clock.run(ASK_US_MIN + ANSWER_FACTOR * took_us - TICK_US) == []
    assert clock.run(ASK_US_MIN + ANSWER_FACTOR * took_us) != []


def test_time_in_which_we_did_not_look_is_charged_to_nobody() -> None:
    writer = hungry()
    clock = Clock(writer, gone=(3,))
    clock.run(ASK_US_MIN + TICK_US)
    assert clock.run(clock.now_us + 1, tick_us=450_000) == []
    assert writer.columns[3].unheard_us == TICK_US + LOOK_US_MAX


def test_an_old_target_is_never_asked_nor_called_mute() -> None:
    writer = new_writer("2+2", stripes=4, spares=1)
    writer.begin()
    for column in writer.columns:
        answers = column.number != 3
        writer.handle(w.StreamAccepted(0, column.stream, 0, None, answers=answers))
    clock = Clock(writer)
    assert clock.run(HEDGE_US - TICK_US) == []
    assert {number for _, number in clock.asks} == {0, 1, 2}


def test_in_a_crowd_questions_are_rare() -> None:
    """As many as wait at a target ask it 500 times a second, and less the longer they wait."""
    waiting = 200
    busy = TargetPace(write_us=4_000, seal_us=8_000, waiting_count=waiting)
    writer = hungry()
    for column in writer.columns:
        writer.handle(w.StreamCredited(0, column.stream, 0, busy))
    clock = Clock(writer)
    clock.pace = dict.fromkeys(range(4), busy)
    clock.run(4 * BEAT_US)
    times = sorted({at_us for at_us, _ in clock.asks})
    assert len(times) >= 2
    gaps = [later - one for one, later in zip([0, *times], times, strict=False)]
    assert min(gaps) >= waiting * ASK_US_PER_WAITING


def test_what_columns_of_the_run_took_says_how_long_an_answer_may_take() -> None:
    assert answer_us(None) == ANSWER_US
    assert answer_us(10 * HEDGE_US) == ANSWER_US
    assert ANSWER_US_MIN == answer_us(1_000) < answer_us(600_000) < ANSWER_US


def test_who_says_first_that_it_was_slow_is_not_slower_than_those_that_say_it_next() -> None:
    slow = TargetPace(write_us=20 * GOOD_WRITE_US, seal_us=0, waiting_count=0)
    writer = hungry()
    clock = Clock(writer)
    clock.run(5 * TICK_US)
    clock.pace = dict.fromkeys(range(4), slow)
    writer.handle(w.StreamCredited(clock.now_us, writer.columns[1].stream, 0, slow))
    assert clock.run(clock.now_us + HEDGE_US) == []
    stream, clock.pace = writer.columns[1].stream, {1: slow}
    assert clock.run(clock.now_us + HEDGE_US)[:2] == moved(writer, 1, stream)


def test_a_slow_target_that_speaks_between_the_answers_of_its_peers_is_late_all_the_same() -> None:
    """Without a spare. What it says alone is in doubt until they answer: no clock begins anew."""
    writer = sealing(spares=0)
    for column in range(3):
        seal(writer, column, TICK_US)
    clock = Clock(writer)
    slow = clock.pace[3] = TargetPace(20 * GOOD_WRITE_US, 8_000, 0)
    while clock.now_us < HEDGE_US:
        assert clock.run(clock.now_us + BEAT_US) == []
        writer.handle(w.StreamCredited(clock.now_us, writer.columns[3].stream, 0, slow))
    clock.run(clock.now_us + 2 * BEAT_US)
    assert writer.columns[3].late


def test_a_slow_target_that_its_peers_join_is_not_late() -> None:
    """Until they answer it is in doubt, and then it is as they are."""
    writer = hungry(spares=0)
    clock = Clock(writer)
    slow = TargetPace(20 * GOOD_WRITE_US, 0, 0)
    clock.pace = {3: slow}
    assert clock.run(HEDGE_US) == []
    clock.pace = dict.fromkeys(range(4), slow)
    writer.handle(w.StreamCredited(clock.now_us, writer.columns[3].stream, 0, slow))
    assert clock.run(2 * HEDGE_US) == []
    assert not writer.columns[3].late


def test_a_device_that_ends_nothing_while_all_others_are_done_loses_its_column() -> None:
    writer = sealing()
    for column in range(3):
        seal(writer, column, TICK_US)
    clock = Clock(writer)
    stream = writer.columns[3].stream
    clock.pace[3] = TargetPace(4_000, 8_000, 0, still_us=LAST_STILL_US)
    assert clock.run(2 * BEAT_US) == []
    clock.pace[3] = TargetPace(4_000, 8_000, 0, still_us=LAST_STILL_US + 1)
    assert clock.run(4 * BEAT_US)[:2] == moved(writer, 3, stream)
