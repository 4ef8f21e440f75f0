"""StagerMachine through random loss, disorder and restarts, against a small coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, ColumnNumber, Generation, Home, PayloadId, Step
from ckpt.format.messages import Message
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    Certify,
    ColumnsLost,
    HomesRefused,
    OpenPayload,
    PayloadGivenUp,
    PayloadPlanned,
)
from ckpt.protocol.events import Send, Session, SessionClosed
from ckpt.protocol.stager import events as e
from tests.landing import examples
from tests.protocol.test_stager import LAUNCH, Rig, info_of, payload_of
from tests.protocol.writerkit import DIGEST, place


class Coordinator:
    """Answers as the real one does, forgets its sessions at a crash,
    and commits what is certified.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.references = random.random() < 0.8
        self.ended: dict[CheckpointId, Message] = {}
        self.given: dict[int, PayloadId] = {}
        self.opened: dict[PayloadId, tuple[int, tuple[Home, ...]]] = {}
        """Bytes and homes of each payload that was planned."""

    def answer(self, message: Message) -> Message | None:
        match message:
            case JoinLaunch():
                return LaunchJoined(LAUNCH, references=self.references)
            case OpenPayload(step=step, save=save, resume=resume):
                if message.homes and save not in self.given and self.random.random() < 0.3:
                    return HomesRefused(message.homes, "by chance")
                payload = self.given.setdefault(save, payload_of(step, 10 + save))
                assert resume in (None, payload.checkpoint)
                said = message.payload_bytes, message.homes
                assert self.opened.setdefault(payload, said) == said, "fixed once it is planned"
                ended = self.ended.get(payload.checkpoint)
                return ended or PayloadPlanned(
                    payload, "2+1", 4096, tuple(place(j) for j in range(3)), ()
                )
            case Certify(payload=payload):
                assert self.opened[payload][0] == message.payload_bytes
                if self.random.random() < 0.3:
                    return ColumnsLost(payload, (ColumnNumber(0),), (place(30),))
                return self.end(payload.checkpoint)
            case PayloadGivenUp(payload=payload):
                return self.end(payload.checkpoint)
            case _:
                return None

    def end(self, checkpoint: CheckpointId) -> Message:
        info = replace(info_of(0), checkpoint=checkpoint)
        ending: Message = AttemptCommitted(info)
        if self.random.random() < 0.3:
            ending = AttemptAborted(checkpoint, "aborted", "by chance")
        return self.ended.setdefault(checkpoint, ending)


@settings(max_examples=examples(150))
@given(seed=st.integers(0, 1 << 32))
def test_every_save_comes_to_one_end_through_loss_and_restarts(seed: int) -> None:
    random = Random(seed)
    coordinator = Coordinator(random)
    rig = Rig()
    outcomes: dict[int, e.Outcome] = {}
    todo = rig.do(e.TrainerAttached(0))
    sessions = iter(range(1, 1 << 30))
    granted: set[int] = set()
    comparing: list[int] = []
    asked = 0
    for step in range(4000):
        rig.now_us += 50_000
        lossy = step < 1500
        if asked < 6 and random.random() < 0.1:
            asked += 1
            todo += rig.ask(asked, asked)
        if lossy and random.random() < 0.01 and rig.machine.session is not None:
            todo += rig.do(SessionClosed(rig.now_us, rig.machine.session))
        if comparing and random.random() < 0.1:
            todo += rig.do(found(rig.now_us, comparing.pop(0), random))
        if todo and random.random() < 0.9:
            action = todo.pop(random.randrange(len(todo)) if random.random() < 0.3 else 0)
            todo += react(
                rig, action, coordinator, outcomes, granted, comparing, sessions, lossy, random
            )
        else:
            todo += rig.tick()
        if asked == 6 and len(outcomes) == 6 and not todo and rig.machine.idle:
            break
    assert sorted(outcomes) == [1, 2, 3, 4, 5, 6]
    assert rig.machine.halves == [None, None]


def found(now_us: int, save: int, random: Random) -> e.ReferencesFound:
    if random.random() < 0.3:
        return e.ReferencesFound(now_us, save)
    homes = (Home(Step(0), Generation(1, 1)),)
    return e.ReferencesFound(now_us, save, homes, 7, b"small")


def react(
    rig: Rig,
    action: e.StagerAction,
    coordinator: Coordinator,
    outcomes: dict[int, e.Outcome],
    granted: set[int],
    comparing: list[int],
    sessions: Iterator[int],
    lossy: bool,
    random: Random,
) -> list[e.StagerAction]:
    """Perform one action as the shells would, with loss."""
    now_us = rig.now_us
    match action:
        case e.DialCoordinator():
            if lossy and random.random() < 0.3:
                return rig.do(e.DialFailed(now_us))
            return rig.open_session(Session(next(sessions)))
        case Send(session, request, message):
            reply = None if lossy and random.random() < 0.1 else coordinator.answer(message)
            return [] if reply is None else rig.receive(reply, request, session)
        case e.GrantHalf(save):
            if save in granted:
                return []
            granted.add(save)
            if random.random() < 0.5:
                comparing.append(save)
            handed = rig.hand_over(save, comparing=save in comparing)
            return [*handed, *rig.do(e.TableReady(now_us, save, b"table"))]
        case e.StartPayload(plan=plan):
            return rig.do(e.PayloadSealed(now_us, plan.payload, (), DIGEST))
        case e.ReopenColumns(payload):
            return rig.do(e.PayloadSealed(now_us, payload, (), DIGEST))
        case e.StopPayload(payload):
            return rig.do(e.PayloadStopped(now_us, payload))
        case e.TellTrainer(save, outcome):
            assert outcomes.setdefault(save, outcome) == outcome, "one end, never another"
            return rig.do(e.OutcomeHeard(now_us, save))
        case _:
            return []
