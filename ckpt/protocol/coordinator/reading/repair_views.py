"""What people see of repairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import UnsetType

from ckpt.base.units import US_PER_S, counted
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.cluster.returning import is_awaited
from ckpt.protocol.coordinator.reading.checks import START_WORKER, WORKER_HEARD_S
from ckpt.protocol.coordinator.reading.repair_answers import (
    AwaitedTarget,
    BalanceView,
    RepairTaskView,
    RepairView,
)
from ckpt.protocol.coordinator.repairing.balancing import Balancer
from ckpt.protocol.coordinator.repairing.task import RepairTask
from ckpt.protocol.coordinator.repairing.tasks import Repairs

NAMED_MAX: Final = 3
"""Most targets that one sentence names."""


def repaired(repairs: Repairs, columns: bool, address: str, now_us: int) -> tuple[str, str] | None:
    """Remedy and command for what is missing or damaged; None where repair does not make it again.

    columns: whether there are any: workers make these, and the coordinator copies documents.
    """
    if repairs.after_us is None:
        return None
    if not columns:
        return "the coordinator writes it again by itself: wait", "ckpt repair"
    if repairs.ruling.is_paused:
        return "repair is paused: let it go on", "ckpt repair resume"
    if _is_served(repairs, now_us):
        return "a worker makes it again: wait for that", "ckpt repair --wait"
    return f"{START_WORKER}: it makes it again", worker(address)


def worker(address: str) -> str:
    """The command that starts one."""
    return f"ckptd repair --coordinator {address}"


def unserved_moves(repairs: Repairs, members: Membership) -> str:
    """What is to leave its target, while nobody asks for work; empty when nothing is, or somebody
    does. A coordinator that has just begun may not have heard its workers yet.
    """
    if members.gathering or repairs.ruling.is_paused or _is_served(repairs, members.now_us):
        return ""
    due = repairs.waiting()
    leaving = [t for t in members.live() if not t.stays and t.proved] if due else []
    named = [f"{target.id} is {target.standing.value}" for target in leaving[:NAMED_MAX]]
    if len(leaving) > NAMED_MAX:
        named.append(f"and {len(leaving) - NAMED_MAX} more are")
    moves = sum(len(one.columns) for one in due if one.is_move)
    if moves:
        named.append(f"{counted(moves, 'column', 'is', 'are')} to move for balance")
    return ", ".join(named)


def _is_served(repairs: Repairs, now_us: int) -> bool:
    heard_us = repairs.heard_us
    return heard_us is not None and now_us - heard_us < WORKER_HEARD_S * US_PER_S


def repair_view(repairs: Repairs, members: Membership) -> RepairView:
    """All of it, as of now."""
    now_us, waiting, counts = members.now_us, repairs.waiting(), repairs.counts
    heard_us = repairs.heard_us
    rate, left, limits = repairs.rate, repairs.bytes_left(), repairs.ruling.limits
    measured = repairs.ruling.said.measured
    is_going = left > 0 and not repairs.ruling.is_paused
    return RepairView(
        payloads_due=len(waiting),
        columns_due=sum(len(one.columns) for one in waiting),
        worker_heard_s=None if heard_us is None else (now_us - heard_us) / US_PER_S,
        tasks=tuple(_task(task, now_us) for task in repairs.tasks.values() if task.lost),
        columns_made=counts.columns,
        bytes_made=counts.bytes,
        documents_made=repairs.documents.copied + repairs.mender.mended,
        failed=counts.failed,
        problems=(
            *((str(id), why) for id, why in sorted(counts.problems.items())),
            *((str(id), why) for id, why in sorted(repairs.documents.problems.items())),
        ),
        bytes_left=round(left),
        bytes_per_s=rate.bytes_per_s,
        left_s=rate.left_s(left) if is_going else None,
        floor_bytes=limits.floor_bytes,
        cap_bytes=limits.cap_bytes,
        paused_at_s=repairs.ruling.said.paused_at_s,
        skipped=tuple((str(id), why) for id, why in sorted(repairs.skipped.items())),
        balance=_balance(repairs.balancer),
        soon=tuple(_soon(repairs, members)),
        rebuild_after_s=None if repairs.after_us is None else repairs.after_us / US_PER_S,
        measured=None if isinstance(measured, UnsetType) else measured,
        awaited=tuple(_awaited(repairs.after_us, members)),
    )


def _soon(repairs: Repairs, members: Membership) -> Iterator[str]:
    if repairs.after_us is None:
        return
    let_in = members.seats.let_in(members.now_us)
    coming = sorted({*let_in, *(target.id for target in members.coming())})
    if coming:
        more = f" and {len(coming) - NAMED_MAX} more" if len(coming) > NAMED_MAX else ""
        verb = "is" if len(coming) == 1 else "are"
        yield f"{', '.join(coming[:NAMED_MAX])}{more} {verb} about to come"
    if not repairs.is_settled:
        yield "what is due is looked through again"
    if not repairs.documents.is_settled:
        yield "copies of indexes and commit records are looked through"


def _awaited(after_us: int | None, members: Membership) -> Iterator[AwaitedTarget]:
    """None where nothing is ever made again; who is about to come is named elsewhere."""
    if after_us is None:
        return
    now_us = members.now_us
    for target in members.all():
        if is_awaited(members, target, now_us, after_us) and not members.is_coming(target):
            away_us = now_us - members.away_since_us(target)
            yield AwaitedTarget(target.id, (after_us - away_us) / US_PER_S)


def _balance(balancer: Balancer) -> BalanceView:
    planned = balancer.planned()
    return BalanceView(
        asked=balancer.is_asked,
        columns_left=len(planned),
        bytes_left=sum(move.file_bytes for move in planned),
        columns_moved=balancer.columns_moved,
        bytes_moved=balancer.bytes_moved,
    )


def _task(task: RepairTask, now_us: int) -> RepairTaskView:
    places = [task.places[column] for column in task.lost]
    return RepairTaskView(
        payload=str(task.payload),
        columns=tuple(map(int, task.lost)),
        targets=tuple(place.target for place in places),
        worker=task.worker,
        leased_s=(now_us - task.begun_us) / US_PER_S,
        read_bytes=task.read_bytes,
        payload_bytes=task.allotment.layout.payload_bytes,
        bytes_per_s_max=task.pace.bytes_per_s,
    )
