"""What targets say of the bytes that they read at rest, and what follows for one checkpoint."""

from __future__ import annotations

from math import isfinite

from ckpt.base.ids import TargetId
from ckpt.base.shell_words import quoted
from ckpt.base.units import format_age, format_seconds
from ckpt.format.messages.targets import ROT_NAMED_MAX, Rot, ScrubReport
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.reading.answers import Check, ReadingView, RotView, ScrubView
from ckpt.protocol.coordinator.reading.checks import check


def reading_view(
    checkpoint: KeptCheckpoint, checkpoints: Checkpoints, members: Membership
) -> ReadingView | None:
    """When its bytes were read, or that they were not; None while their places are not known."""
    holders = (checkpoint, *checkpoints.homes_of(checkpoint))
    is_known = len(holders) == 1 + len(checkpoint.homes)
    if not is_known or any(one.placement is None for one in holders):
        return None
    here: set[TargetId] = set()
    away: set[TargetId] = set()
    for holder in holders:
        for rank, placed in (holder.placement or {}).items():
            now = set(checkpoints.columns_now(holder, rank))
            for j, target in enumerate(placed.columns):
                if target is not None:
                    (here if j in now else away).add(target)
        for copies in (checkpoints.index_copies, checkpoints.record_copies):
            here.update(target.id for target in copies(holder))
        here.update(target.id for target in checkpoints.label_copies(holder))
    since = {id: _whole_since_s(members, id) for id in sorted(here)}
    read = {id: at_s for id, at_s in since.items() if at_s > checkpoint.info.committed_at_s}
    oldest = min(read, key=lambda id: (read[id], id), default=None)
    return ReadingView(
        since_s=0 if oldest is None else read[oldest],
        target=oldest or "",
        read=tuple(read),
        unread=tuple(id for id in since if id not in read),
        away=tuple(sorted(away)),
    )


def _whole_since_s(members: Membership, id: TargetId) -> int:
    scrub = members.targets[id].scrub
    return 0 if scrub is None else scrub.whole_since_s


def scrub_view(report: ScrubReport) -> ScrubView:
    return ScrubView(
        period_s=_period_s(report),
        pass_began_s=report.pass_began_s,
        pass_ended_s=report.pass_ended_s,
        oldest_s=report.oldest_s,
        late_s=report.late_s,
        rot_count=report.rot_count,
        rot=tuple(_rot_view(one) for one in report.rot[:ROT_NAMED_MAX]),
        whole_since_s=report.whole_since_s,
    )


def _period_s(report: ScrubReport) -> float:
    """What is no number would leave the whole status unreadable."""
    return report.period_s if isfinite(report.period_s) else 0.0


def _rot_view(rot: Rot) -> RotView:
    checkpoint, damage = rot.checkpoint, rot.damage
    return RotView(
        run=checkpoint.run,
        step=checkpoint.step,
        generation=str(checkpoint.generation),
        kind=damage.kind,
        rank=rot.rank,
        column=rot.column,
        region=damage.region,
        start=damage.start,
        end=damage.end,
        why=damage.why,
    )


def late_check(target: Target) -> Check:
    """A file of the target waits for its scrub longer than it should."""
    assert target.scrub is not None
    late, period = format_seconds(target.scrub.late_s), format_age(int(_period_s(target.scrub)))
    text = f"{target.id}: a file was to be read {late} ago, within a period of {period}"
    remedy = "have it read while nobody saves or loads; where that is too slow give it more of the"
    remedy += " device (--scrub-percent), or a longer period (--scrub-period-s)"
    return check("SCRUB_LATE", text, remedy, f"ckpt scrub {quoted(target.id)}")
