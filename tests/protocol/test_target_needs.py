"""What one has to speak to a target: durable, and above every term."""

from __future__ import annotations

from collections import deque

import pytest

from ckpt.base.ids import Epoch, ReservationId
from ckpt.format.messages import Message
from ckpt.format.messages.hello import MOVES_VERSION, OLDEST_VERSION, Failed, Role
from ckpt.format.messages.targets import (
    DropGeneration,
    KeepProtocol,
    ProtocolKept,
    RegisterTarget,
    Reserve,
    Reserved,
    TargetRegistered,
)
from ckpt.protocol.events import SessionClosed, SessionOpened
from ckpt.protocol.target.term import decode_protocol, encode_protocol
from ckpt.testing.disk import FakeDisk, Fault, Keep
from tests.protocol.target_world import (
    CHECKPOINT,
    COORDINATOR,
    READER,
    WRITER,
    Column,
    TargetWorld,
    store,
)

OLDER = MOVES_VERSION - 1


def came(world: TargetWorld, version: int = MOVES_VERSION) -> list[Message]:
    """A coordinator's session stands; what is said on it."""
    world.feed(SessionClosed(world.now_us, COORDINATOR))
    world.feed(SessionOpened(world.now_us, COORDINATOR, Role.COORDINATOR, "", version))
    return world.messages(COORDINATOR)


def registered(term: int, protocol: int = MOVES_VERSION) -> TargetRegistered:
    return TargetRegistered(term, Epoch(term), 3_000_000, protocol=protocol)


def finished(disk: FakeDisk | None = None) -> TargetWorld:
    """A target of a cluster whose upgrade is finished."""
    world = TargetWorld(disk, term=0)
    came(world)
    world.tell(COORDINATOR, registered(1))
    return world


def test_what_is_needed_is_durable_before_any_command_is_obeyed() -> None:
    world = TargetWorld(term=0)
    came(world)
    world.held = deque()
    world.tell(COORDINATOR, registered(1))
    world.tell(COORDINATOR, Reserve(1, ReservationId(1), 8192))
    while world.machine.term == 0:
        assert world.messages(COORDINATOR) == []
        assert world.machine.needs == OLDEST_VERSION
        world.step()
    assert world.machine.needs == MOVES_VERSION
    while world.held:
        world.step()
    assert world.messages(COORDINATOR) == [Reserved(ReservationId(1))]
    world.disk.crash(Keep.NOTHING)
    assert TargetWorld(world.disk, boot=12, term=0).machine.needs == MOVES_VERSION


@pytest.mark.parametrize("restarted", [False, True])
def test_an_older_coordinator_is_not_obeyed_whatever_its_term(restarted: bool) -> None:
    """It may come from a copy of the catalog that was started again and again."""
    world, column = finished(), Column()
    store(world, column)
    world.messages(COORDINATOR)
    if restarted:
        world.disk.crash(Keep.NOTHING)
        world = TargetWorld(world.disk, boot=12, term=0)
    assert came(world, OLDER) == [], "it does not even hear what lies here"
    assert [each.session for each in world.closed] == [COORDINATOR]
    (report,) = [each for each in world.reports if each.text == "older coordinator"]
    assert dict(report.fields)["why"] == "it speaks protocol 2, and 3 is needed here"
    world.tell(COORDINATOR, registered(99, 0))
    world.tell(COORDINATOR, DropGeneration(99, CHECKPOINT))
    assert world.machine.column_count == 1
    # One that leads rightly is obeyed as ever.
    (register,) = came(world)
    assert isinstance(register, RegisterTarget)
    assert register.protocol == MOVES_VERSION
    world.tell(COORDINATOR, registered(2))
    world.tell(COORDINATOR, DropGeneration(2, CHECKPOINT))
    assert world.machine.column_count == 0


def test_until_it_is_said_an_older_coordinator_is_obeyed() -> None:
    world = TargetWorld(term=0)
    assert len(came(world, OLDER)) == 1
    world.tell(COORDINATOR, registered(1, 0))
    assert world.machine.registered
    assert world.machine.needs == OLDEST_VERSION


def test_a_target_that_is_there_already_hears_it_as_a_command() -> None:
    world = TargetWorld()
    world.feed(SessionClosed(world.now_us, READER))
    world.feed(SessionOpened(world.now_us, READER, Role.READER, "older", OLDER))
    world.messages(COORDINATOR)
    world.held = deque()
    world.tell(COORDINATOR, KeepProtocol(1, MOVES_VERSION))
    assert world.messages(COORDINATOR) == []
    assert world.machine.needs == OLDEST_VERSION
    while world.held:
        assert world.closed == []
        world.step()
    assert world.messages(COORDINATOR) == [ProtocolKept()]
    assert world.machine.needs == MOVES_VERSION
    assert [each.session for each in world.closed] == [READER], (
        "but not the writer, which speaks it"
    )
    world.feed(SessionOpened(world.now_us, WRITER, Role.STAGER, "older", OLDER))
    assert [each.session for each in world.closed] == [READER, WRITER]
    # Said again, it is answered again; what is needed never falls.
    world.held = None
    world.tell(COORDINATOR, KeepProtocol(1, OLDER))
    assert world.messages(COORDINATOR) == [ProtocolKept()]
    assert TargetWorld(world.disk, boot=12, term=0).machine.needs == MOVES_VERSION


def test_a_command_of_a_lower_term_says_nothing_of_it() -> None:
    world = TargetWorld(term=5)
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, KeepProtocol(4, MOVES_VERSION))
    (answer,) = world.messages(COORDINATOR)
    assert isinstance(answer, Failed)
    assert world.machine.needs == OLDEST_VERSION


def test_a_device_that_does_not_keep_it_is_said_and_asked_again() -> None:
    world = TargetWorld()
    world.messages(COORDINATOR)
    world.disk.faults.append(Fault("rename"))
    world.tell(COORDINATOR, KeepProtocol(1, MOVES_VERSION))
    (answer,) = world.messages(COORDINATOR)
    assert isinstance(answer, Failed)
    assert world.machine.needs == OLDEST_VERSION
    world.tell(COORDINATOR, KeepProtocol(1, MOVES_VERSION))
    assert world.messages(COORDINATOR) == [ProtocolKept()]


def test_a_file_that_is_damaged_says_nothing() -> None:
    data = encode_protocol(MOVES_VERSION)
    assert decode_protocol(data) == MOVES_VERSION
    for broken in (b"", data[:-1], data + b"x", bytes([data[0] ^ 1]) + data[1:]):
        assert decode_protocol(broken) == 0


@pytest.mark.parametrize("strange", [-1, 1 << 40])
def test_what_nobody_can_mean_does_no_harm(strange: int) -> None:
    world = TargetWorld()
    world.messages(COORDINATOR)
    world.tell(COORDINATOR, KeepProtocol(1, strange))
    assert world.messages(COORDINATOR) == [ProtocolKept()]
    came(world)
    world.tell(COORDINATOR, registered(2, strange))
    assert world.machine.registered
    assert world.machine.needs <= MOVES_VERSION
