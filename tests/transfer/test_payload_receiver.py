"""Payloads over real sockets from small targets that lie, stop or die, into the caller's memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ckpt.aio.net.serving.server import Server
from ckpt.base.errors import Unauthorized, Unavailable
from ckpt.base.ids import BootId, TargetId
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import CancelRequest, Failed, Role
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.reading import (
    ByteRuns,
    ManifestData,
    RangeDamaged,
    RangeData,
    RangesDone,
    ReadManifest,
    ReadRanges,
)
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Identity
from ckpt.protocol.reader.events import ReadLimits
from ckpt.protocol.runs.range_frames import range_frames
from ckpt.protocol.runs.run_sets import total
from ckpt.protocol.runs.wire_runs import runs_of
from ckpt.testing.network import Heard, RecordingHandler
from ckpt.transfer.assembly import CellPool
from ckpt.transfer.landings import Landings
from ckpt.transfer.payload_receiver import PayloadReceiver, read_payloads
from ckpt.transfer.read_job import PayloadDamaged, ReadJob, ReceiverOptions, ReceiverStatistics
from tests.aio.netkit import SECRET, serving
from tests.protocol.range_content import Column
from tests.protocol.reading import PAYLOAD, Columns
from tests.waiting import wait_until

CODE = Code(4, 2)
CELL = 64 * 1024
SIZE = 24 * CELL * CODE.k + 12_345
PATIENT = ReceiverOptions(SECRET, "reader")
OTHERS_MAX = 64
DATA_ALONE = [True] * CODE.k + [False] * CODE.m
STRAYS: dict[str, tuple[tuple[int, ...], ...]] = {
    "over-border": ((CELL // 2, CELL + CELL // 2),),
    "over-borders": ((0, 100), (CELL // 2, CELL + CELL // 2)),
    "endless": ((0, 100, 2, 1 << 63),),
}
"""Start and end of each range, then count and step of a comb."""
HASTY = replace(PATIENT, limits=ReadLimits(ask_bytes=1 << 20, hedge_us=200_000, timeout_us=500_000))


class SmallHolder:
    """One target that holds one column. `how` names its fault: silent, cut, damaged, broken,
    greedy, absent; over-border, over-borders, endless: its answer fits no cell; meddling: it
    answers for all others; vouching: of a cell the right bytes by another name, then half of wrong
    ones; refusing: it refuses, and then brings half; held: its questions wait for the test."""

    def __init__(self, column: int, data: Columns, how: str, prefix: str = "t") -> None:
        self.id = TargetId(f"{prefix}{column}")
        self.how = how
        self.content = memoryview(bytes(data.columns[column]))
        self.manifest = data.manifest
        self.handler = RecordingHandler(answer=self._answer)
        self.server: Server
        self.do: Callable[[Callable[[], None]], None]
        self.address = ""
        self.unix = ""
        self.asked_bytes = 0
        self.held: list[Heard] = []
        self.rest: tuple[socket.socket, bytes]
        self._broken = 2

    @property
    def where(self) -> TargetAddress:
        return TargetAddress(self.id, BootId(9), self.address, self.unix)

    def _answer(self, heard: Heard) -> None:
        if self.how == "cut" and self.asked_bytes > CELL:
            self.server.close_session(heard.session, "it died")
            return
        match heard.message:
            case ReadRanges():
                self._ranges(heard, heard.message)
            case ReadManifest():
                if self.how != "silent":
                    half = len(self.manifest) // 2
                    for at, part in ((0, self.manifest[:half]), (half, self.manifest[half:])):
                        self._send(heard, ManifestData(len(self.manifest), at), part)
            case CancelRequest():
                return
            case _:
                raise AssertionError(heard.message)

    def _ranges(self, heard: Heard, message: ReadRanges) -> None:
        if self.how == "absent":
            self._send(heard, Failed("not_found", "not here"))
        if self.how == "meddling":
            for request in {*range(1, OTHERS_MAX)} - {heard.request}:
                self._send(replace(heard, request=request), Failed("not_found", "not here"))
        if self.how == "vouching" and not self.asked_bytes:
            self.asked_bytes, first = 1, message.ranges[0]
            part = bytes(self.content[first.start : first.end])
            self.bring_half(heard.session, heard, (RangeData((ByteRuns(0, 1),), crc32(part)), part))
        if self.how == "refusing":
            self.bring_half(heard.session, heard, (Failed("not_found", "not here"), b""))
        if self.how in ("held", "half-refusing"):
            self.held.append(heard)
        if self.how == "half-refusing" and len(self.held) == 2:
            refused, begun = heard, self.held[0]
            self.bring_half(
                heard.session, begun, (Failed("not_found", "not here"), b""), refused.request
            )
        if self.how in ("silent", "absent", "vouching", "refusing", "half-refusing", "held"):
            return
        if self.how in STRAYS:
            self._stray(heard, message.ranges[0].start)
            return
        if not self.how:
            self._together(heard, message)
            return
        for each in message.ranges:
            self.asked_bytes += each.end - each.start
            part = bytes(self.content[each.start : each.end])
            crc = crc32(part)
            if self.how == "damaged" and each.start < 4 * CELL:
                self._send(heard, RangeDamaged(each.start, each.end, "checksum"))
                continue
            if self.how == "broken" and self._broken:
                # As if flipped behind the target's own check; the frame does not guard this bulk.
                self._broken -= 1
                crc ^= 1
            self._send(heard, RangeData((each,), crc), part)
            if self.how == "greedy":
                self._send(heard, RangeData((each,), crc), part)
        self._send(heard, RangesDone())

    def _stray(self, heard: Heard, start: int) -> None:
        """Bytes that were asked for, cut as nobody asks."""
        ranges = tuple(
            ByteRuns(start + low, start + high, *comb) for low, high, *comb in STRAYS[self.how]
        )
        part = bytes(sum(each.count * (each.end - each.start) for each in ranges))
        self._send(heard, RangeData(ranges, crc32(part)), part)

    def answer_held(self) -> None:
        """Each range alone, as one of whole blocks comes."""
        for heard in self.held:
            assert isinstance(heard.message, ReadRanges)
            for each in heard.message.ranges:
                part = bytes(self.content[each.start : each.end])
                self._send(heard, RangeData((each,), crc32(part)), part)
            self._send(heard, RangesDone())

    def bring_half(
        self, session: Session, question: Heard, before: tuple[Message, bytes] | None = None,
        of: int | None = None,
    ) -> None:  # fmt: skip
        """Half of what was asked there, and other bytes than these; `before`: an answer that goes
        along, to the same question unless it is `of` another.
        """
        assert isinstance(question.message, ReadRanges)
        channel = self.server._watches[session].channel
        first = question.message.ranges[0]
        part = bytes(first.end - first.start)
        half = len(part) // 2
        words = b""
        if before is not None:
            message, bulk = before
            request = question.request if of is None else of
            words = channel._writer.encode(message, request, bulk) + bulk
        words += channel._writer.encode(RangeData((first,), crc32(part)), question.request, part)
        channel.sock.send(words + part[:half])
        self.rest = channel.sock, part[half:]

    def bring_rest(self) -> None:
        """The other half, if anybody still listens."""
        sock, rest = self.rest
        with suppress(OSError):
            sock.send(rest)

    def _together(self, heard: Heard, message: ReadRanges) -> None:
        """As targets answer: short ranges share a frame."""
        runs = runs_of(message.ranges, len(self.content))
        assert runs is not None
        self.asked_bytes += total(runs)
        for data, bulk, _ in range_frames(runs, Column(self.content)):
            self._send(heard, data, bytes(bulk))
        self._send(heard, RangesDone())

    def _send(self, heard: Heard, message: Message, bulk: bytes = b"") -> None:
        self.server.send(heard.session, heard.request, message, bulk)


@contextmanager
def holders(
    data: Columns, faults: dict[int, str], unix: str = "", prefix: str = "t"
) -> Iterator[list[SmallHolder]]:
    with ExitStack() as stack:
        made = [SmallHolder(j, data, faults.get(j, ""), prefix) for j in range(CODE.n)]
        for holder in made:
            identity = Identity("cluster-a", Role.TARGET, holder.id, BootId(9))
            holder.unix = f"{unix}/{holder.id}" if unix else ""
            thread = stack.enter_context(
                serving(
                    identity=identity, handler=holder.handler, pool_bytes=8 * MiB,
                    unix=holder.unix or None,
                )
            )  # fmt: skip
            holder.server, holder.do = thread.server, thread.do
            holder.address = f"127.0.0.1:{thread.server.port or 1}"
        yield made


@pytest.fixture(scope="module")
def data() -> Columns:
    return Columns.make(CODE, SIZE, CELL, seed=3)


def job(data: Columns, made: list[SmallHolder], landings: Landings) -> ReadJob:
    return ReadJob(
        payload=PAYLOAD,
        layout=data.layout,
        manifest_digest=xxh3_128(data.manifest),
        columns=tuple(holder.id for holder in made),
        addresses={holder.id: holder.where for holder in made},
        landings=landings,
    )


def read_whole(
    data: Columns, made: list[SmallHolder], options: ReceiverOptions = PATIENT
) -> ReceiverStatistics:
    memory = np.zeros(SIZE, np.uint8)
    landings = Landings()
    landings.add_range(0, memory)
    found = read_payloads([job(data, made, landings)], options)
    assert memory.tobytes() == data.payload
    return found


def test_a_healthy_payload_comes_from_its_data_columns(data: Columns) -> None:
    with holders(data, {}) as made:
        found = read_whole(data, made)
    assert found.rebuilt_bytes == found.damaged_bytes == 0
    assert set(found.bytes_by_target) == {"t0", "t1", "t2", "t3"}
    assert found.extra_bytes < CODE.k * 4096
    assert sum(found.bytes_by_target.values()) == found.wanted_bytes + found.extra_bytes


@pytest.mark.parametrize("fault", ["silent", "cut", "damaged", "greedy", "absent"])
def test_two_columns_with_a_fault_are_replaced_by_parity(data: Columns, fault: str) -> None:
    with holders(data, {1: fault, 2: fault}) as made:
        found = read_whole(data, made, HASTY)
    assert found.rebuilt_bytes > 0


@pytest.mark.parametrize("fault", STRAYS)
def test_an_answer_that_fits_no_cell_costs_its_target_the_column(data: Columns, fault: str) -> None:
    with holders(data, {1: fault}) as made:
        found = read_whole(data, made)
    assert found.targets_out == {"t1"}


def test_no_target_answers_for_another(data: Columns) -> None:
    """All columns but its own would be proved absent."""
    with holders(data, {1: "meddling"}) as made:
        found = read_whole(data, made)
    # Where the others have ended before it answers, it meddles with nothing.
    assert found.targets_out <= {"t1"}


def test_who_answers_what_another_one_was_asked_is_cut_off(data: Columns) -> None:
    """While the other one is asked still; right answers of its own do not make up for it."""
    memory, landings = np.ones(SIZE, np.uint8), Landings()
    landings.add_range(0, memory)
    with holders(data, {0: "held", 1: "held"}) as made, PayloadReceiver(PATIENT) as receiver:
        late, thief = made[:2]

        def meddle() -> None:
            wait_until(lambda: bool(late.held and thief.held), "both are asked")
            question = replace(thief.held[0], request=late.held[0].request)
            thief.do(lambda: thief._send(question, Failed("not_found", "not here")))
            thief.do(thief.answer_held)
            late.do(late.answer_held)

        thread = threading.Thread(target=meddle)
        thread.start()
        found = receiver.read([job(data, made, landings)])
        thread.join()
    assert memory.tobytes() == data.payload
    assert found.targets_out == {"t1"}


def test_who_has_not_answered_when_a_read_fails_hears_that_it_need_not(data: Columns) -> None:
    """Its disk and its line are for other readers."""
    faults = {0: "absent", 1: "held", 4: "absent", 5: "held"}
    with holders(data, faults) as made, PayloadReceiver(PATIENT) as receiver:
        late, last = made[1], made[5]

        def refuse() -> None:
            wait_until(lambda: bool(late.held and last.held), "both are asked")
            last.do(lambda: last._send(last.held[0], Failed("not_found", "not here")))

        def cancelled() -> set[int]:
            heard = late.handler.received_
            return {one.request for one in heard if isinstance(one.message, CancelRequest)}

        landings = Landings()
        landings.add_range(0, np.zeros(SIZE, np.uint8))
        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(PayloadDamaged):
            receiver.read([job(data, made, landings)])
        thread.join()
        wait_until(lambda: {one.request for one in late.held} <= cancelled(), "the cancels")


def test_right_bytes_that_nobody_asked_for_vouch_for_no_others(data: Columns) -> None:
    with holders(data, {1: "vouching"}) as made:
        found = read_whole(data, made, HASTY)
    assert found.targets_out == {"t1"}


@pytest.mark.parametrize(("how", "options"), [("refusing", PATIENT), ("half-refusing", HASTY)])
def test_nothing_lands_where_the_bytes_of_a_column_that_was_refused_are_decoded(
    data: Columns, how: str, options: ReceiverOptions
) -> None:
    """Neither what it brings for that question, nor for another one that it was asked."""
    with holders(data, {1: how}) as made, PayloadReceiver(options) as receiver:
        whole, first = np.zeros(SIZE, np.uint8), np.zeros(100, np.uint8)
        for memory in (whole, first):
            landings = Landings()
            landings.add_range(0, memory)
            receiver.read([job(data, made, landings)])
            assert whole.tobytes() == data.payload
            made[1].do(made[1].bring_rest)


def test_what_one_target_begins_to_bring_for_another_has_no_place(data: Columns) -> None:
    """Else the other's checksum would vouch for its bytes."""
    memory, landings = np.ones(SIZE, np.uint8), Landings()
    landings.add_range(0, memory)
    with holders(data, {0: "held", 1: "held"}) as made, PayloadReceiver(HASTY) as receiver:
        late, thief = made[:2]

        def steal() -> None:
            wait_until(lambda: len(late.held) == len(thief.held) == 2, "both are asked")
            question, session = late.held[0], thief.held[0].session
            thief.do(thief.answer_held)
            thief.do(lambda: thief.bring_half(session, question))

            def taken_or_given_up() -> bool:
                asked = receiver._asked.get(question.request)
                return asked is None or bool(asked.places)

            wait_until(taken_or_given_up, "it is heard, or nobody waits any more")
            late.do(late.answer_held)

        thread = threading.Thread(target=steal)
        thread.start()
        receiver.read([job(data, made, landings)])
        thread.join()
    assert memory.tobytes() == data.payload


def test_bytes_flipped_on_their_way_are_read_again(data: Columns) -> None:
    with holders(data, {0: "broken"}) as made:
        found = read_whole(data, made)
    assert found.rebuilt_bytes == 0


def test_a_unix_socket_is_used_when_there_is_one(
    data: Columns, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with holders(data, {}, unix=str(tmp_path_factory.mktemp("u"))) as made:
        read_whole(data, made)  # Its TCP address leads nowhere.


def test_scattered_runs_land_where_they_belong_and_several_payloads_share_connections(
    data: Columns,
) -> None:
    starts = np.arange(0, SIZE - 5000, 7001, dtype=np.int64)
    lengths = np.full(len(starts), 3000, np.int64)
    places = np.arange(len(starts), dtype=np.int64)[::-1] * 3000
    payload = np.frombuffer(data.payload, np.uint8)
    wanted = np.concatenate([payload[s : s + 3000] for s in starts[::-1].tolist()])
    with holders(data, {3: "absent"}) as made:
        memories = [np.zeros(3000 * len(starts), np.uint8) for _ in range(6)]
        jobs = []
        for memory in memories:
            landings = Landings()
            landings.add(memory, starts, lengths, places)
            jobs.append(job(data, made, landings))
        told: list[int] = []
        found = read_payloads(jobs, PATIENT, told.append)
        sessions = [len(holder.handler.opened_) for holder in made]
    assert all(np.array_equal(memory, wanted) for memory in memories)
    assert told[-1] == found.wanted_bytes == 6 * len(wanted)
    assert sessions[0] == sessions[1] == 1


def test_columns_that_are_proved_absent_are_lost(data: Columns) -> None:
    absent = {0: "absent", 1: "absent", 5: "absent"}
    with holders(data, absent) as made, pytest.raises(PayloadDamaged) as caught:
        read_whole(data, made, HASTY)
    assert caught.value.payload == PAYLOAD


def test_a_silent_column_among_too_few_is_only_out_of_reach(data: Columns) -> None:
    faults = {0: "absent", 1: "absent", 5: "silent"}
    with holders(data, faults) as made, pytest.raises(Unavailable, match="out of reach"):
        read_whole(data, made, HASTY)


def test_another_secret_is_said_at_once(data: Columns) -> None:
    with holders(data, {}) as made, pytest.raises(Unauthorized):
        read_whole(data, made, replace(PATIENT, secret=b"x" * 32))


def test_a_first_small_read_reaches_all_targets_that_the_next_one_asks(data: Columns) -> None:
    with holders(data, {}) as made, PayloadReceiver(PATIENT) as receiver:
        first, memory = np.zeros(100, np.uint8), np.zeros(SIZE, np.uint8)
        for size, place in ((100, first), (SIZE, memory)):
            landings = Landings()
            landings.add_range(0, place)
            receiver.read([job(data, made, landings)])
            assert [bool(receiver._peers.get(each.id)) for each in made] == DATA_ALONE, size
        sessions = [len(holder.handler.opened_) for holder in made]
    assert memory.tobytes() == data.payload
    assert first.tobytes() == data.payload[:100]
    assert sessions == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("code", "cell_bytes", "count"),
    [(CODE, 4 * MiB, 8), (CODE, 8 * MiB, 8), (Code(10, 2), 4 * MiB, 16)],
    ids=["4+2", "large cells", "no more than 64 MiB"],
)
def test_cells_of_two_stripes_are_made_ahead(
    monkeypatch: pytest.MonkeyPatch, code: Code, cell_bytes: int, count: int
) -> None:
    """One stripe is received while that before is copied to its places."""
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(CellPool, "make_ahead", lambda _, *args: made.append(args))
    with PayloadReceiver(PATIENT) as receiver:
        receiver.expect_pieces(Layout.plan(code, 64 * MiB - 1, cell_bytes))
        assert made == []
        receiver.expect_pieces(Layout.plan(code, 64 * MiB, cell_bytes))
    assert made == [(cell_bytes, count)]


def test_an_interrupt_as_a_read_begins_leaves_neither_thread_nor_descriptor(
    data: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C of a trainer that goes on; most of a thread's start is waiting for it."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "ckpt-read":
            raise KeyboardInterrupt

    def descriptors() -> list[str]:
        return sorted(path.name for path in Path("/proc/self/fd").iterdir())

    with holders(data, {}) as made:
        landings = Landings()
        landings.add_range(0, np.zeros(100, np.uint8))
        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                read_payloads([job(data, made, landings)], PATIENT)
        assert not any(thread.name == "ckpt-read" for thread in threading.enumerate())
        # Its targets let go of their ends a little later.
        wait_until(lambda: descriptors() == before, "as before")


def test_a_target_that_is_reached_ahead_in_vain_costs_a_small_read_nothing(data: Columns) -> None:
    with holders(data, {}) as made:
        made[2].address = "127.0.0.1:1"
        memory, landings = np.zeros(100, np.uint8), Landings()
        landings.add_range(0, memory)
        found = read_payloads([job(data, made, landings)], PATIENT)
    assert memory.tobytes() == data.payload[:100]
    assert found.rebuilt_bytes == 0
    assert found.targets_out == frozenset()
