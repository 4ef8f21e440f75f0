"""A stager begins a moment later while every processor is wanted, and loses nothing by it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ckpt.aio.secret import make_secret
from ckpt.base.units import MiB
from ckpt.protocol.stager.records import SaveState
from ckpt_client.save.copying import HalfWriter
from ckpt_client.save.packing import PackingPlan, plan_packing
from ckpt_client.save.state import flatten
from ckpt_client.stager import wire
from ckpt_client.stager.arena import map_half
from ckpt_client.stager.channel import TrainerChannel
from ckpt_client.stager.patience import HOLD_US_MAX, Courtesy, CrowdPatience, is_crowded
from ckpt_client.stager.shell import StagerShell
from tests.client.stagerkit import handed
from tests.no_descriptors import no_descriptors
from tests.waiting import wait_until

WAIT_S = 60.0


def packed() -> PackingPlan:
    return plan_packing(flatten({"a": np.zeros(MiB, np.uint8)}), 0, 1)


@pytest.mark.parametrize(
    ("text", "crowded"),
    [
        ("0.10 0.20 0.30 3/400 17\n", True),  # Two others and the one who asks.
        ("9.10 9.20 9.30 2/400 17\n", False),
        ("0.10 0.20 0.30\n", False),
        ("a b c d/e f\n", False),
    ],
)
def test_two_processors_are_crowded_by_two_other_tasks(
    tmp_path: Path, text: str, crowded: bool
) -> None:
    (tmp_path / "loadavg").write_text(text)
    assert is_crowded(tmp_path / "loadavg", 2) is crowded


def test_a_host_that_does_not_tell_is_not_crowded(tmp_path: Path) -> None:
    assert not is_crowded(tmp_path / "none", 2)


def test_what_is_kept_is_due_once_there_is_room_or_the_time_is_over() -> None:
    answers = [True, True, False]
    patience = CrowdPatience(lambda: answers.pop(0))
    packing = packed()
    first, second = handed(1, packing), handed(2, packing)
    assert patience.due(0) is None
    patience.keep(first, 0)
    assert [patience.due(1), patience.due(2), patience.due(3)] == [None, None, first]
    assert not patience.keeps
    patience = CrowdPatience(lambda: True)
    patience.keep(second, 10)
    assert patience.due(HOLD_US_MAX + 9) is None
    assert patience.due(HOLD_US_MAX + 10) is second
    assert patience.end() is None


class Trainer:
    """The other end of a stager that is in this process, and always finds it crowded."""

    def __init__(self, directory: Path) -> None:
        make_secret(directory / "secret")
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        attach = wire.Attach(
            pid=os.getpid(),
            process="host/1/test",
            rank=0,
            world_size=1,
            key=None,
            directory=str(directory),
            address="",
            cluster="c1",
            secret_file=str(directory / "secret"),
            arena_bytes_max=64 * MiB,
            idle_s=WAIT_S,
        )
        crowded = CrowdPatience(lambda: True)
        self.shell = StagerShell(TrainerChannel(theirs), attach, Courtesy(0), crowded)
        self._halves: dict[int, HalfWriter] = {}

    def say(self, packet: wire.FromTrainer) -> None:
        self.socket.send(wire.encode_packet(packet))
        self.shell.turn()

    def save(self, number: int) -> None:
        """Staged and handed over."""
        packing = packed()
        self.say(wire.AskHalf(number, "run", number, packing.layout.half_bytes, "wait"))
        self._granted(number).write(packing)
        self.say(handed(number, packing))

    def state(self, number: int) -> SaveState:
        return self.shell._machine.saves[number].state

    def _granted(self, number: int) -> HalfWriter:
        granted: list[int] = []

        def hear() -> bool:
            self.shell.turn()
            with suppress(BlockingIOError):
                while not granted:
                    self._hear(*wire.receive_packet(self.socket), number, granted)
            return bool(granted)

        wait_until(hear, "the grant")
        return self._halves[granted[0]]

    def _hear(self, packet: bytes, descriptor: int | None, number: int, granted: list[int]) -> None:
        match wire.decode_from_stager(packet):
            case wire.HalfReady(half, half_bytes):
                assert descriptor is not None
                self._halves[half] = HalfWriter(map_half(descriptor, half_bytes).memory)
            case wire.HalfGranted(save, half) if save == number:
                granted.append(half)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    made = Trainer(tmp_path)
    with made.socket:
        yield made
    made.shell.close()


def test_a_save_that_is_kept_begins_with_whatever_the_trainer_says_next(trainer: Trainer) -> None:
    trainer.save(1)
    assert trainer.state(1) is SaveState.STAGING
    trainer.say(wire.HeardOutcome(0))  # Of an earlier save: that is no reason.
    assert trainer.state(1) is SaveState.STAGING
    trainer.save(2)
    assert [trainer.state(1), trainer.state(2)] == [SaveState.OPENING, SaveState.STAGING]
    trainer.say(wire.Detach())
    assert trainer.state(2) is SaveState.OPENING


def test_a_trainer_that_ends_at_once_has_handed_its_save_over(trainer: Trainer) -> None:
    trainer.save(1)
    assert trainer.state(1) is SaveState.STAGING
    trainer.socket.close()
    trainer.shell.turn()
    assert trainer.state(1) is SaveState.OPENING


def test_a_trainer_that_talks_nonsense_has_handed_its_save_over(trainer: Trainer) -> None:
    trainer.save(1)
    trainer.socket.send(b"nonsense")
    trainer.shell.turn()
    assert trainer.state(1) is SaveState.OPENING


def test_a_stager_that_cannot_look_after_its_cluster_keeps_what_it_holds(
    trainer: Trainer, tmp_path: Path
) -> None:
    """It may have a connection to each of many targets when the coordinator is lost."""
    trainer.save(1)
    (tmp_path / "ready.json").write_text("{}")
    (tmp_path / "supervisor.lock").touch()

    def has_tried() -> bool:
        trainer.shell.turn()
        return "Too many open files" in trainer.shell._complaint

    with no_descriptors():
        wait_until(has_tried, "a try to dial")
    assert 1 in trainer.shell._machine.saves
