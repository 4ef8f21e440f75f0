"""A target of tables that keeps columns and scrubs: what it read, says and was alarmed by."""

from __future__ import annotations

from collections import Counter

from ckpt.base.ids import CheckpointId, Generation
from ckpt.base.units import KiB
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.scrubbing import AskScrub, ScrubState
from ckpt.protocol.target.at_rest.scrub_note import (
    SCRUB_FILE,
    ScrubNote,
    decode_scrub_note,
)
from ckpt.protocol.target.core import TargetLimits, column_name
from ckpt.protocol.target.disk_events import ReadAt
from ckpt.testing.disk import Keep
from tests.protocol.target_world import (
    CHECKPOINT,
    READER,
    Column,
    TargetWorld,
    put_document,
    store,
)

S = 1_000_000
PERIOD_S = 700
FIRST_S = 100
LIMITS = TargetLimits(scrub_period_us=PERIOD_S * S, read_piece_bytes=64 * KiB)
OTHER = CheckpointId(CHECKPOINT.run, CHECKPOINT.step, Generation(1, 5))


def columns(count: int = 3) -> list[Column]:
    return [Column(rank=rank) for rank in range(count)]


def stored(
    some: list[Column], *, limits: TargetLimits = LIMITS, documents: bool = True
) -> TargetWorld:
    world = TargetWorld(limits=limits)
    for number, column in enumerate(some, start=1):
        store(world, column, request=20 + number, reservation=number)
    if documents:
        put_document(world, DocumentKind.RECORD, b"the record of it")
    return world


def file_of(column: Column) -> str:
    return f"columns/{column_name(column.id)}"


def reads_of(world: TargetWorld) -> Counter[str]:
    """Bytes read at rest, by file, since the last call."""
    found: Counter[str] = Counter()
    for action in world.performed:
        if isinstance(action, ReadAt) and action.at_rest:
            found[action.file] += action.length
    world.performed.clear()
    return found


def run_for(world: TargetWorld, seconds: float) -> None:
    for _ in range(round(seconds * 10)):
        world.tick(us=S // 10)


def state(world: TargetWorld, *, begin: bool = False) -> ScrubState:
    world.tell(READER, AskScrub(begin))
    answer = world.messages(READER)[-1]
    assert isinstance(answer, ScrubState)
    return answer


def passed(world: TargetWorld, seconds: float = 30) -> ScrubState:
    """Asked for, and waited for."""
    assert state(world, begin=True).is_asked
    run_for(world, seconds)
    return state(world)


def alarms(world: TargetWorld) -> list[str]:
    found = [dict(each.fields) for each in world.reports if each.text == "rot"]
    return [str(each["region"]) for each in found]


def again(world: TargetWorld, *, limits: TargetLimits = LIMITS, later_s: int = 1) -> TargetWorld:
    """What a power cut leaves of it, started again; its clock goes on."""
    world.disk.crash(Keep.NOTHING)
    now_us = world.now_us + later_s * S
    return TargetWorld(world.disk, boot=12, limits=limits, now_us=now_us)


def ended_in(world: TargetWorld) -> int:
    """When the last pass ended, as is durable."""
    note = decode_scrub_note(world.disk.durable(SCRUB_FILE) or b"") or ScrubNote()
    return note.pass_ended_s
