"""PayloadSender over real sockets: what arrives equals an independent encode,
and no bad target stops it.
"""

from __future__ import annotations

import mmap
import random
import resource
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckpt.aio.net.link import LinkEvent
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.base.errors import CkptError
from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
)
from ckpt.erasure import selftest
from ckpt.erasure.code import Code
from ckpt.erasure.codec import codec_for
from ckpt.format.layout import Layout
from ckpt.format.manifest import decode_manifest
from ckpt.format.messages.saving import PayloadPlanned, Place
from ckpt.protocol.stager.events import (
    PayloadFailed,
    PayloadSealed,
    PayloadStopped,
    SparesWanted,
    StartPayload,
)
from ckpt.transfer import payload_sender
from ckpt.transfer.encoder import PayloadEncoder
from ckpt.transfer.parity_ring import ParityRing
from ckpt.transfer.payload_sender import PayloadSender, SenderOptions, SenderResult
from tests.aio.netkit import SECRET
from tests.transfer.targetkit import Behaviour, SmallTarget, targets
from tests.waiting import wait_until

CELL = 64 * 1024
LAUNCH = LaunchNumber(1 << 32 | 1)


def payload_of(step: int) -> PayloadId:
    return PayloadId(CheckpointId(RunName("run"), Step(step), Generation(1, step)), Rank(0))


class Arena:
    """Anonymous memory with random bytes; what lies behind the payload is dirty on purpose."""

    def __init__(self, code: str, payload_bytes: int, seed: int = 1) -> None:
        self.layout = Layout(Code.parse(code), payload_bytes, CELL)
        self.map = mmap.mmap(-1, max(1, self.layout.padded_bytes))
        self.map[:] = random.Random(seed).randbytes(len(self.map))
        self.payload = bytes(self.map[:payload_bytes])

    def columns(self) -> list[bytes]:
        """Every column's bytes, by an encode of whole columns."""
        layout = self.layout
        padded = self.payload + bytes(layout.padded_bytes - layout.payload_bytes)
        data = [bytearray(layout.column_bytes) for _ in range(layout.code.k)]
        for stripe in range(layout.stripe_count):
            size, at = layout.cell_bytes_of(stripe), layout.fragment_offset(stripe)
            for j, column in enumerate(data):
                begin = layout.cell_offset(stripe, j)
                column[at : at + size] = padded[begin : begin + size]
        parity = [bytearray(layout.column_bytes) for _ in range(layout.code.m)]
        codec_for(layout.code).encode(
            [memoryview(c) for c in data], [memoryview(p) for p in parity]
        )
        return [bytes(column) for column in (*data, *parity)]


def start_of(
    step: int, arena: Arena, places: Sequence[Place], spares: Sequence[Place] = ()
) -> StartPayload:
    plan = PayloadPlanned(
        payload_of(step), str(arena.layout.code), CELL, tuple(places), tuple(spares)
    )
    return StartPayload(step, 0, arena.layout.payload_bytes, LAUNCH, plan)


@contextmanager
def sender() -> Iterator[PayloadSender]:
    made = PayloadSender(SenderOptions(secret=SECRET, name="test", cluster="cluster-a"))
    try:
        yield made
    finally:
        made.close()
        made.close()
        assert not any(thread.is_alive() for thread in made._threads)


def wait_result(made: PayloadSender, kind: type, log: list[SenderResult]) -> SenderResult:
    """The first result of a kind; everything seen goes to the log."""
    while True:
        for result in log:
            if isinstance(result, kind):
                log.remove(result)
                return result
        ready, _, _ = select.select([made.wakeup_fd], [], [], 30)
        assert ready, f"no {kind.__name__} within 30 s: {log}"
        log += made.results()


def stop(made: PayloadSender, step: int, log: list[SenderResult]) -> None:
    made.stop(payload_of(step))
    stopped = wait_result(made, PayloadStopped, log)
    assert isinstance(stopped, PayloadStopped)
    assert stopped.payload == payload_of(step)


def assert_holds(result: SenderResult, made: Sequence[SmallTarget], arena: Arena) -> None:
    """The proofs name targets that hold exactly the independently encoded bytes,
    and one manifest.
    """
    assert isinstance(result, PayloadSealed)
    by_id = {target.id: target for target in made}
    expected = arena.columns()
    for proof in result.proofs:
        column = by_id[proof.target].columns[proof.column]
        assert bytes(column.content) == expected[proof.column.column]
        manifest = decode_manifest(bytes(column.manifest))
        assert manifest.payload == result.payload
        assert manifest.column_crcs[proof.column.column] == proof.column_crc


@pytest.mark.parametrize(
    ("code", "payload_bytes"),
    [
        ("4+2", 5_000_001),
        ("2+1", 2 * CELL * 3),
        ("1+1", 70_000),
        ("3+0", 300_000),
        ("4+2", 1),
        ("2+1", 0),
    ],
)
def test_every_column_arrives_as_an_independent_encode_says(code: str, payload_bytes: int) -> None:
    arena = Arena(code, payload_bytes)
    n = arena.layout.code.n
    with targets(n) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made)]
        it.start(start_of(1, arena, places), memoryview(arena.map))
        log: list[SenderResult] = []
        sealed = wait_result(it, PayloadSealed, log)
        assert isinstance(sealed, PayloadSealed)
        assert [proof.column.column for proof in sealed.proofs] == list(range(n))
        assert_holds(sealed, made, arena)
        statistics = it.statistics(payload_of(1))
        assert statistics is not None
        assert statistics.bytes_sent == n * arena.layout.column_bytes
        assert statistics.bytes_resent == 0
        assert len(statistics.columns) == n
        stop(it, 1, log)


def test_consecutive_payloads_share_one_link_to_each_target() -> None:
    with targets(3) as made, sender() as it:
        log: list[SenderResult] = []
        for step in (1, 2):
            arena = Arena("2+1", 400_000, seed=step)
            places = [target.place(10 * step + j) for j, target in enumerate(made)]
            it.start(start_of(step, arena, places), memoryview(arena.map))
            assert_holds(wait_result(it, PayloadSealed, log), made, arena)
            stop(it, step, log)
        assert [len(target.handler.opened_) for target in made] == [1, 1, 1]


def test_without_a_payload_its_thread_sleeps_until_there_is_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stager has none for most of its life: looks at nothing take time from the training."""
    asked: list[int | None] = []

    class Watched(LinkLoop):
        def poll(self, timeout_us: int | None) -> list[LinkEvent]:
            asked.append(timeout_us)
            return super().poll(timeout_us)

    monkeypatch.setattr(payload_sender, "LinkLoop", Watched)
    arena = Arena("2+1", 100_000)
    with targets(3) as made, sender() as it:
        log: list[SenderResult] = []
        for step in (1, 2):
            wait_until(lambda: asked[-1:] == [None], "it sleeps")
            places = [target.place(10 * step + j) for j, target in enumerate(made)]
            it.start(start_of(step, arena, places), memoryview(arena.map))
            assert_holds(wait_result(it, PayloadSealed, log), made, arena)
            assert asked[-1] is not None, "it looks around while a payload is under way"
            stop(it, step, log)


def test_two_payloads_go_at_once() -> None:
    arenas = {step: Arena("2+1", 1_500_000, seed=step) for step in (1, 2)}
    with targets(3) as made, sender() as it:
        for step, arena in arenas.items():
            places = [target.place(10 * step + j) for j, target in enumerate(made)]
            it.start(start_of(step, arena, places), memoryview(arena.map))
        log: list[SenderResult] = []
        for _ in arenas:
            sealed = wait_result(it, PayloadSealed, log)
            assert isinstance(sealed, PayloadSealed)
            assert_holds(sealed, made, arenas[sealed.payload.checkpoint.step])


def test_a_unix_socket_is_used_when_the_place_names_one(tmp_path: Path) -> None:
    arena = Arena("2+1", 300_000)
    with targets(3, unix_directory=str(tmp_path)) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made)]
        it.start(start_of(1, arena, places), memoryview(arena.map))
        assert_holds(wait_result(it, PayloadSealed, []), made, arena)


def test_a_dead_unix_socket_falls_back_to_tcp(tmp_path: Path) -> None:
    arena = Arena("2+1", 300_000)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    with targets(3) as made, sender() as it:
        for target in made:
            target.unix = str(tmp_path / "dead")
        places = [target.place(j) for j, target in enumerate(made)]
        it.start(start_of(1, arena, places), memoryview(arena.map))
        assert_holds(wait_result(it, PayloadSealed, []), made, arena)


def test_a_dead_unix_socket_is_used_again_when_its_target_has_restarted(tmp_path: Path) -> None:
    """By TCP a stager that lives for weeks would send at twice the cost for all of them."""
    paths = [str(tmp_path / f"socket{number}") for number in range(3)]
    for path in paths:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
    arenas = {step: Arena("2+1", 300_000, seed=step) for step in (1, 2)}
    with sender() as it:
        with targets(3) as made:
            for target, path in zip(made, paths, strict=True):
                target.unix = path
            places = [target.place(j) for j, target in enumerate(made)]
            it.start(start_of(1, arenas[1], places), memoryview(arenas[1].map))
            assert_holds(wait_result(it, PayloadSealed, []), made, arenas[1])
            stop(it, 1, [])
        with targets(3, unix_directory=str(tmp_path)) as made:
            for target, path in zip(made, paths, strict=True):
                Path(target.unix).rename(path)
                target.unix = path
            places = [
                replace(target.place(j), boot=BootId(78), address="127.0.0.1:1")
                for j, target in enumerate(made)
            ]
            it.start(start_of(2, arenas[2], places), memoryview(arenas[2].map))
            assert_holds(wait_result(it, PayloadSealed, []), made, arenas[2])


@pytest.mark.parametrize("column", [0, 5], ids=["data", "parity"])
def test_a_peer_that_stops_reading_loses_its_column_to_the_spare(column: int) -> None:
    arena = Arena("4+2", 40 * 4 * CELL)
    with targets(7, {column: Behaviour(freeze_after=3)}) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made[:6])]
        it.start(start_of(1, arena, places, [made[6].place(6)]), memoryview(arena.map))
        log: list[SenderResult] = []
        sealed = wait_result(it, PayloadSealed, log)
        assert made[column].frozen.is_set()
        made[column].thaw.set()
        assert_holds(sealed, made, arena)
        assert isinstance(sealed, PayloadSealed)
        assert [p.target for p in sealed.proofs if p.column.column == column] == [made[6].id]
        statistics = it.statistics(payload_of(1))
        assert statistics is not None
        assert 0 < statistics.bytes_resent < arena.layout.column_bytes, (
            "one column, and not all of it"
        )
        stop(it, 1, log)


def test_a_refusing_target_and_a_dead_port_are_replaced_at_once() -> None:
    arena = Arena("2+2", 700_000)
    with targets(6, {1: Behaviour(refuse=True)}) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made[:4])]
        dead = made[0].place(0)
        places[0] = Place(dead.target, dead.boot, "127.0.0.1:9", dead.reservation)
        spares = [target.place(9) for target in made[4:]]
        it.start(start_of(1, arena, places, spares), memoryview(arena.map))
        sealed = wait_result(it, PayloadSealed, [])
        assert_holds(sealed, made, arena)


def test_spares_are_asked_for_and_taken_when_the_plan_had_none() -> None:
    arena = Arena("2+1", 700_000)
    with targets(4, {2: Behaviour(refuse=True)}) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made[:3])]
        it.start(start_of(1, arena, places), memoryview(arena.map))
        log: list[SenderResult] = []
        wanted = wait_result(it, SparesWanted, log)
        assert isinstance(wanted, SparesWanted)
        assert (wanted.column, wanted.failed) == (2, (made[2].id,))
        it.add_spares(payload_of(1), wanted.column, (made[3].place(3),))
        assert_holds(wait_result(it, PayloadSealed, log), made, arena)


def test_too_few_places_fail_the_payload_and_it_can_be_stopped() -> None:
    arena = Arena("2+1", 700_000)
    with targets(3, {2: Behaviour(refuse=True)}) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made)]
        it.start(start_of(1, arena, places), memoryview(arena.map))
        log: list[SenderResult] = []
        wanted = wait_result(it, SparesWanted, log)
        assert isinstance(wanted, SparesWanted)
        it.add_spares(payload_of(1), wanted.column, ())
        failed = wait_result(it, PayloadFailed, log)
        assert isinstance(failed, PayloadFailed)
        assert failed.code == "unavailable"
        stop(it, 1, log)


def test_a_column_that_the_second_count_lost_is_sent_again() -> None:
    arena = Arena("2+1", 700_000)
    with targets(4) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made[:3])]
        it.start(start_of(1, arena, places), memoryview(arena.map))
        log: list[SenderResult] = []
        wait_result(it, PayloadSealed, log)
        it.reopen(payload_of(1), (ColumnNumber(2),), (made[3].place(3),))
        again = wait_result(it, PayloadSealed, log)
        assert isinstance(again, PayloadSealed)
        assert again.proofs[2].target == made[3].id
        assert_holds(again, made, arena)


def test_a_stopped_payload_is_not_read_any_more_even_when_its_target_hangs() -> None:
    arena = Arena("2+1", 30 * 2 * CELL)
    behaviours = {j: Behaviour(freeze_after=2) for j in range(3)}
    with targets(3, behaviours) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made)]
        view = memoryview(arena.map)
        it.start(start_of(1, arena, places), view)
        for target in made:
            assert target.frozen.wait(30)
        stop(it, 1, [])
        view.release()
        arena.map.close()  # BufferError if anybody still held a view of it.


def test_stopping_an_unknown_payload_is_answered() -> None:
    with sender() as it:
        stop(it, 9, [])


def test_a_changed_arena_is_never_sealed() -> None:
    arena = Arena("2+1", 8 * 2 * CELL)
    encoder = PayloadEncoder(
        payload_of(1), LAUNCH, arena.layout, memoryview(arena.map), (ParityRing(CELL, 16), ParityRing(CELL, 4))
    )  # fmt: skip
    encoder.detach(2)
    while encoder.step():
        assert encoder.head <= 8
    assert encoder.take(0, 2) is None
    arena.map[0] ^= 1
    with pytest.raises(Exception, match="changed after it was checksummed"):
        encoder.step()


def test_nothing_is_encoded_where_the_erasure_code_gives_wrong_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(selftest.PARITY_CRC32, "4+2", (0, 0))
    monkeypatch.setattr(selftest, "self_test_once", selftest.self_test)
    arena = Arena("2+1", 8 * 2 * CELL)
    rings = ParityRing(CELL, 16), ParityRing(CELL, 4)
    with pytest.raises(CkptError, match="unsafe to start"):
        PayloadEncoder(payload_of(1), LAUNCH, arena.layout, memoryview(arena.map), rings)


def test_a_detached_parity_column_is_encoded_again_cell_by_cell() -> None:
    arena = Arena("2+2", 8 * 2 * CELL)
    ring, again = ParityRing(CELL, 16), ParityRing(CELL, 2)
    encoder = PayloadEncoder(
        payload_of(1), LAUNCH, arena.layout, memoryview(arena.map), (ring, again)
    )
    while encoder.step():
        assert encoder.head <= 8
    assert encoder.head == 4, "the window is full"
    assert encoder.starved_since_us is not None
    assert not encoder.may_go_on, "nobody need wake it while no slot comes back"
    encoder.detach(2)
    assert encoder.may_go_on
    encoder.detach(3)
    while encoder.step():
        assert encoder.head <= 8
    assert encoder.head == 8
    expected = arena.columns()
    for column in (2, 3):
        for stripe in range(8):
            assert encoder.take(stripe, column) is None
            assert encoder.step()
            cell = encoder.take(stripe, column)
            assert cell is not None
            at = stripe * CELL
            assert bytes(cell.view) == expected[column][at : at + CELL]
            cell.release()
    assert (len(ring._free), len(again._free)) == (16, 2)
    encoder.stop()
    assert encoder.quiet


def test_a_slot_is_never_given_out_twice() -> None:
    ring = ParityRing(4096, 8)
    held: set[int] = set()
    lock = threading.Lock()

    def use() -> None:
        for _ in range(500):
            slots = ring.take(2)
            if slots is None:
                continue
            with lock:
                assert not held & set(slots)
                held.update(slots)
            with lock:
                held.difference_update(slots)
            for slot in slots:
                ring.give(slot)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ring._free) == 8


def test_column_ids_in_proofs_name_this_payload() -> None:
    arena = Arena("1+1", 5000)
    with targets(2) as made, sender() as it:
        it.start(start_of(4, arena, [t.place(1) for t in made]), memoryview(arena.map))
        sealed = wait_result(it, PayloadSealed, [])
        assert isinstance(sealed, PayloadSealed)
        wanted = [ColumnId(payload_of(4), ColumnNumber(j)) for j in (0, 1)]
        assert [proof.column for proof in sealed.proofs] == wanted


def test_who_sends_shows_no_secret() -> None:
    assert "secret" not in repr(SenderOptions(secret=SECRET, name="x"))


def test_a_target_that_never_seals_is_replaced_when_its_peers_have() -> None:
    arena = Arena("2+1", 100_000)
    with targets(4, {1: Behaviour(no_seal=True)}) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made[:3])]
        it.start(start_of(1, arena, places, [made[3].place(3)]), memoryview(arena.map))
        sealed = wait_result(it, PayloadSealed, [])
        assert isinstance(sealed, PayloadSealed)
        assert [proof.target for proof in sealed.proofs] == [made[j].id for j in (0, 3, 2)]
        assert_holds(sealed, made, arena)


def test_an_arena_without_room_for_the_padding_fails_that_payload_alone() -> None:
    arena = Arena("3+1", 5000)
    with targets(4) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made)]
        it.start(start_of(1, arena, places), memoryview(arena.map)[:5000])
        failed = wait_result(it, PayloadFailed, [])
        assert isinstance(failed, PayloadFailed)
        assert failed.code == "refused"
        it.start(start_of(2, arena, places), memoryview(arena.map))
        assert_holds(wait_result(it, PayloadSealed, []), made, arena)


def test_a_payload_for_whose_parity_nothing_is_left_fails_alone() -> None:
    """Under a limit of descriptors, or of address space; the next one may find some."""
    arena = Arena("2+1", 5000)
    with targets(3) as made, sender() as it:
        places = [target.place(j) for j, target in enumerate(made)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            it.start(start_of(1, arena, places), memoryview(arena.map))
            failed = wait_result(it, PayloadFailed, [])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert isinstance(failed, PayloadFailed)
        assert failed.code == "no_space"
        assert "no memory for the parity" in failed.message
        it.start(start_of(2, arena, places), memoryview(arena.map))
        assert_holds(wait_result(it, PayloadSealed, []), made, arena)
