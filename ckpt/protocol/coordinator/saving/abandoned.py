"""Which attempts wait for what will not come: stagers and ranks that are away for too long.

An attempt ends then, so that its peers hear it and save again. How long is too long depends on what
is known of who is missing: each bound below has its reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from ckpt.base.ids import Rank
from ckpt.base.units import US_PER_S
from ckpt.protocol.coordinator.cluster.launch import Launch
from ckpt.protocol.coordinator.saving.attempts import Attempt, AttemptState

STAGER_AWAY_US = 15_000_000
"""A stager that left an uncertified payload must come back within this."""
UNWATCHED_US = 600_000_000
"""A rank that closed its store, and whose stager went when idle, must save within this after its
peers: as long as collectives wait for a rank. A store that is opened for each save is away between
two of them for as long as the training takes, which nobody can bound."""
RETURN_US = 4 * STAGER_AWAY_US
"""After a restart of the coordinator ranks and their stagers must come back within this."""
NOBODY_LEFT_US = 3600 * US_PER_S
"""A rank that never came must come within this after the last of the trainers that handed over has
ended: a job that was started with too few ranks never ends its save otherwise. Ranks may also be
started one after the other, as a conversion on one machine does.
"""
PEERS_WAIT_US = RETURN_US
"""How long a rank waits for peers that had saved its step, or a later one, before it came."""


def why_abandoned(attempt: Attempt, launch: Launch | None, now_us: int) -> str:
    """Empty while it is worth waiting. `launch`: the attempt's, where it is known."""
    comparing = attempt.state is AttemptState.COMPARING
    for payload in attempt.payloads.values():
        away = payload.away_since_us
        needed = not payload.certified or (comparing and payload.fingerprints is None)
        needed = needed and attempt.closed  # Of open member lists it is the file that goes.
        if needed and away is not None and now_us - away >= STAGER_AWAY_US:
            away_s = (now_us - away) // US_PER_S
            return f"the stager of rank {payload.id.rank} has been away for {away_s} s"
    if attempt.closed and not attempt.handed_over and launch is not None:
        reason = (
            _rank_gone(attempt, launch, now_us)
            or _nobody_left(attempt, launch, now_us)
            or _peers_past(attempt, launch, now_us)
        )
        if reason:
            return reason
    unclaimed = attempt.recovered and not attempt.payloads
    if unclaimed and now_us - attempt.opened_us >= RETURN_US:
        return "no stager came back for it after the coordinator restarted"
    return ""


def _rank_gone(attempt: Attempt, launch: Launch, now_us: int) -> str:
    """A rank that has not handed over and whose host died says nothing more, not even that its
    trainer left; one that ended before a peer opened the attempt is not there to save; one without
    a store may be training, or gone; one that never came is still starting.
    """
    opened_us = attempt.opened_us
    for rank in _judged(attempt, launch, now_us):
        away_since_us = launch.away_since_us(rank)
        left_us = launch.left_us(rank)
        unwatched_us = launch.unwatched_since_us(rank)
        here = rank in launch.members and launch.members[rank].here
        # Its trainer may live, and start another stager in its save of the step.
        if away_since_us is not None and now_us - max(away_since_us, opened_us) >= STAGER_AWAY_US:
            return (
                f"rank {rank} did not hand over; its stager has been away for "
                f"{(now_us - away_since_us) // US_PER_S} s without a word"
            )
        if left_us is not None and now_us - max(left_us, opened_us) >= STAGER_AWAY_US:
            return (
                f"the trainer of rank {rank} ended before it handed over its payload, and "
                f"none was started in its place within {STAGER_AWAY_US // US_PER_S} s"
            )
        if unwatched_us is not None and now_us - max(unwatched_us, opened_us) >= UNWATCHED_US:
            return (
                f"rank {rank} has no store open, and did not save this step within "
                f"{UNWATCHED_US // US_PER_S} s"
            )
        if attempt.recovered and not here and now_us - opened_us >= RETURN_US:
            return f"rank {rank} did not come back after the coordinator restarted"
    return ""


def _judged(attempt: Attempt, launch: Launch, now_us: int) -> Iterable[Rank]:
    """Of the ranks that are missing those that may be a reason: who was never heard of is none
    before its time. This is asked at each tick, also of launches that say they have a million.
    """
    waited_us = now_us - attempt.opened_us
    after_restart = attempt.recovered and waited_us >= RETURN_US
    if after_restart or (launch.all_saved and waited_us >= UNWATCHED_US):
        return attempt.missing_ranks
    return sorted(rank for rank in launch.members if rank not in attempt.payloads)


def _nobody_left(attempt: Attempt, launch: Launch, now_us: int) -> str:
    """Nobody waits for this save any more, and who is missing was never heard of."""
    last_us = attempt.opened_us
    for rank in attempt.payloads:
        left_us = launch.left_us(rank)
        if left_us is None:
            return ""
        last_us = max(last_us, left_us)
    if not attempt.payloads or now_us - last_us < NOBODY_LEFT_US:
        return ""
    never = next((rank for rank in attempt.missing_ranks if rank not in launch.members), None)
    if never is None:
        return ""
    return (
        f"rank {never} never came, and the trainers of all ranks that handed over ended more "
        f"than {NOBODY_LEFT_US // US_PER_S} s ago"
    )


def _peers_past(attempt: Attempt, launch: Launch, now_us: int) -> str:
    """A rank that joined when its peers were past its step, in an attempt that ended without it,
    may see them again: after an abort a step is saved again. But nobody said that they will come,
    and they may live on without a word.
    """
    if now_us - attempt.opened_us < PEERS_WAIT_US:
        return ""
    late = max(attempt.payloads, key=launch.joined_us, default=None)
    if late is None:
        return ""
    step, joined_us = attempt.checkpoint.step, launch.joined_us(late)
    missing = sorted(launch.saved.keys() - attempt.payloads.keys())
    past = [r for r in missing if launch.is_past(r, step, joined_us)]
    if not past:
        return ""
    ranks = ", ".join(str(rank) for rank in past)
    return (
        f"rank {late} joined when ranks {ranks} had saved this step or a later one, and "
        f"they did not save this one again within {PEERS_WAIT_US // US_PER_S} s"
    )
