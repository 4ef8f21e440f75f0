"""What the stager says to coordinator and trainer: messages built from what it remembers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from ckpt.base.ids import LaunchNumber, Rank, RunName
from ckpt.base.units import align_up
from ckpt.format.members import NO_LAUNCH
from ckpt.format.messages.launches import Departure, JoinLaunch, TrainerLeft
from ckpt.format.messages.saving import (
    Certify,
    ClaimSpace,
    OpenPayload,
    PayloadGivenUp,
    PayloadPlanned,
    ReplicaPolicy,
    RequestSpares,
)
from ckpt.protocol.stager.events import (
    FullPolicy,
    HalfAsked,
    PayloadFailed,
    SaveFailed,
    SparesWanted,
)
from ckpt.protocol.stager.records import Launched, RankSave, StagerConfig


@dataclass(frozen=True, slots=True)
class SaverIdentity:
    """Whose saves these are."""

    key: str | None
    rank: Rank
    world_size: int
    process: str
    """The trainer's own incarnation, as in JoinLaunch."""


def join(who: SaverIdentity, run: Launched, now_us: int) -> JoinLaunch:
    """With the known number, so that a restarted coordinator adopts the launch, and with what it
    has forgotten: since when this process is here, and what it saved last.
    """
    fresh = JoinLaunch(run.run, who.key, who.rank, who.world_size, who.process, run.number)
    if run.number is None:
        return fresh
    again = replace(fresh, came_ago_us=now_us - run.came_us)
    if run.last is None:
        return again
    return replace(again, saved_step=run.last.step, saved_ago_us=now_us - run.last.at_us)


def claim_space(who: SaverIdentity, run: Launched, now_us: int) -> ClaimSpace:
    """What waits for the next save of a launch that was joined here."""
    assert run.number is not None
    assert run.space is not None
    stood_us = now_us - run.stands_since_us
    return ClaimSpace(run.number, who.rank, run.space, stood_us)


def open_payload(
    who: SaverIdentity, launch: LaunchNumber, save: RankSave, nth: int = 0
) -> OpenPayload:
    """Only for a payload that is handed over whole, with its generation when that is known; or for
    none at all.
    """
    handed = save.handed
    assert (handed is None) == bool(save.refused)
    return OpenPayload(
        run=save.run,
        step=save.step,
        launch=launch,
        rank=who.rank,
        world_size=who.world_size,
        process=who.process,
        payload_bytes=save.payload_bytes if handed is not None else 0,
        replicas=handed.replicas if handed is not None else ReplicaPolicy.ABORT,
        resume=save.checkpoint,
        save=save.number,
        refused=save.refused,
        homes=save.refers.homes if save.refers is not None else (),
        metrics=handed.metrics if handed is not None else {},
        nth=nth,
    )


def open_member(who: SaverIdentity, save: RankSave) -> OpenPayload:
    """The same for a file: the number comes with the plan."""
    question = open_payload(who, NO_LAUNCH, save)
    number = save.payload.rank if save.payload is not None else Rank(0)
    return replace(question, rank=number, world_size=0, member=save.member)


def certify(
    who: SaverIdentity, launch: LaunchNumber, save: RankSave, part_bytes: int
) -> Iterator[tuple[Certify, memoryview]]:
    """The frames that certify a payload: all proofs in each, the table in ascending parts."""
    assert save.handed is not None
    assert save.plan is not None
    assert save.sealed is not None
    assert save.table is not None
    table = memoryview(save.table if save.refers is None else save.refers.table)
    for offset in range(0, max(1, align_up(table.nbytes, part_bytes)), part_bytes):
        yield (
            Certify(
                payload=save.sealed.payload,
                launch=launch,
                world_size=who.world_size,
                proofs=save.sealed.proofs,
                code=save.plan.code,
                payload_bytes=save.payload_bytes,
                cell_bytes=save.plan.cell_bytes,
                manifest_digest=save.sealed.manifest_digest,
                document_offset=save.handed.document_offset,
                document_bytes=save.handed.document_bytes,
                stall_us=save.handed.stall_us,
                fault_in_us=save.handed.fault_in_us,
                table_bytes=table.nbytes,
                table_offset=offset,
                slowest_target=save.sealed.slowest_target,
                slowest_us=save.sealed.slowest_us,
                repeats=save.repeats,
                slow=save.sealed.slow,
            ),
            table[offset : offset + part_bytes],
        )


def spares(wanted: SparesWanted) -> RequestSpares:
    return RequestSpares(wanted.payload, wanted.column, wanted.failed, wanted.held, wanted.stays)


def give_up(failed: PayloadFailed) -> PayloadGivenUp:
    return PayloadGivenUp(failed.payload, failed.code, failed.message, failed.hint)


def refusal(save: RankSave, plan: PayloadPlanned, now_us: int) -> PayloadFailed:
    """What a coordinator hears that has planned a refused step."""
    return PayloadFailed(
        now_us, plan.payload, "aborted", f"refused step {save.step}: {save.refused}"
    )


def failed_certify(save: RankSave, failure: SaveFailed, now_us: int) -> PayloadFailed:
    """A certificate that is refused for good is a payload that can never commit."""
    assert save.plan is not None
    return PayloadFailed(now_us, save.plan.payload, failure.code, failure.message, failure.hint)


def trainer_left(
    who: SaverIdentity, run: RunName, launch: LaunchNumber, how: Departure
) -> TrainerLeft:
    return TrainerLeft(run, launch, who.rank, who.process, how)


def refusal_when_full(
    asked: HalfAsked, full: bool, waiting_count: int, config: StagerConfig
) -> SaveFailed | None:
    """None when the save may have a half now or may wait for one."""
    text = (
        f"step {asked.step} of run {asked.run!r}: all {config.half_count} halves of the arena "
        "hold saves that did not commit yet"
    )
    if full and asked.when_full is FullPolicy.SKIP:
        return SaveFailed("skipped", text)
    if (full and asked.when_full is FullPolicy.ERROR) or waiting_count >= config.waiting_max:
        return SaveFailed("busy", text, "wait for an earlier save, or save less often")
    return None
