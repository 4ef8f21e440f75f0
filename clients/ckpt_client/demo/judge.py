"""Did every claim hold? From what was seen to checks and figures; pure."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.base.units import format_bytes
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.demo.course import CourseOutcome, StrikeRecord
from ckpt_client.demo.report import DemoCheck, Figures, middle
from ckpt_client.demo.words import Finished

NOT_HIT = "no burst was hit: the training ended before"


def judge(outcome: CourseOutcome, total_s: float) -> tuple[tuple[DemoCheck, ...], Figures | None]:
    """All checks, failed ones among them; no figures when there was no disturbed run to measure."""
    strike = outcome.strike
    if strike is None:
        return (DemoCheck("two targets were killed inside a burst", False, NOT_HIT),), None
    checks = (
        *_strike_checks(outcome, strike),
        *_resume_checks(outcome, strike),
        *_equality_checks(outcome),
        _final_check(outcome),
    )
    return checks, _figures(outcome, strike, total_s)


def _strike_checks(outcome: CourseOutcome, strike: StrikeRecord) -> tuple[DemoCheck, ...]:
    glimpse, after = strike.glimpse, strike.attempt_after
    cut_off = after is not None and after.ranks_certified < outcome.ranks
    # Where survivors were quick enough to commit it, they did so without the victims.
    short = any(
        view.step == glimpse.step and view.columns_missing for view in outcome.committed_before
    )
    inside = 0 < glimpse.fragments_stored < glimpse.fragments_total and (cut_off or short)
    seen = (
        f"targets {' and '.join(strike.victims)} at step {glimpse.step}, "
        f"{glimpse.fragments_stored} of {glimpse.fragments_total} fragments stored"
    )
    dead = strike.trainer_count == outcome.ranks == strike.stager_count
    return (
        DemoCheck("two targets were killed inside a burst", inside, seen),
        DemoCheck(
            "all trainers and their stagers were killed",
            dead,
            f"{strike.trainer_count} trainers, {strike.stager_count} stagers",
        ),
    )


def _resume_checks(outcome: CourseOutcome, strike: StrikeRecord) -> tuple[DemoCheck, ...]:
    words = outcome.after.resumed
    steps = sorted({word.step for word in words.values()})
    newest = len(words) == outcome.ranks and steps == [strike.newest_committed]
    rebuilt = sum(word.rebuilt_bytes for word in words.values())
    return (
        DemoCheck(
            "all ranks resumed from the newest committed step",
            newest,
            f"step {', '.join(map(str, steps)) or 'none'}, committed {strike.newest_committed}",
        ),
        DemoCheck("lost columns were rebuilt from parity", rebuilt > 0, format_bytes(rebuilt)),
    )


def _equality_checks(outcome: CourseOutcome) -> tuple[DemoCheck, ...]:
    control, after = outcome.control, outcome.after.finished
    ranks = range(outcome.ranks)
    complete = set(control) == set(after) == set(ranks)
    digests = {each.parameters for each in (*control.values(), *after.values())}
    return (
        DemoCheck(
            "parameters are bit-identical to the control run's",
            complete and len(digests) == 1,
            f"sha256 {min(digests, default='')[:16]}",
        ),
        DemoCheck(
            "optimizer state is bit-identical, rank by rank",
            complete and all(control[rank].moments == after[rank].moments for rank in ranks),
            "",
        ),
        DemoCheck(
            "every loss is bit-identical, rank by rank",
            complete and all(_same_losses(control[rank], after[rank], outcome) for rank in ranks),
            f"{outcome.steps} steps",
        ),
    )


def _same_losses(one: Finished, other: Finished, outcome: CourseOutcome) -> bool:
    return (
        len(one.losses) == len(one.own_losses) == outcome.steps
        and one.losses == other.losses
        and one.own_losses == other.own_losses
    )


def _final_check(outcome: CourseOutcome) -> DemoCheck:
    last = outcome.committed[-1] if outcome.committed else None
    held = last is not None and last.step == outcome.steps and last.targets_survivable >= 1
    detail = f"step {last.step} {_redundancy([last])}" if last is not None else "none"
    return DemoCheck("saves went on with the targets that were left", held, detail)


def _figures(outcome: CourseOutcome, strike: StrikeRecord, total_s: float) -> Figures:
    saves = (*outcome.before.saves, *outcome.after.saves)
    stalls = [save.stall_s for save in saves]
    before, after = outcome.committed_before, _after(outcome)
    both = (*before, *after)
    commits = [view.commit_s for view in both]
    loads = outcome.after.resumed.values()
    first = outcome.after.first_step_s
    resumed = min((word.step for word in loads), default=0)
    return Figures(
        stall_p50_s=middle(stalls),
        stall_max_s=max(stalls, default=0.0),
        fault_in_max_s=max((save.fault_in_s for save in saves), default=0.0),
        commit_p50_s=middle(commits),
        commit_max_s=max(commits, default=0.0),
        checkpoint_bytes=both[-1].bytes if both else 0,
        gb_per_s=middle([view.bytes / view.commit_s / 1e9 for view in both if view.commit_s > 0]),
        saves_committed=len(both),
        redundancy_before=_redundancy(before),
        redundancy_after=_redundancy(after),
        read_bytes=sum(word.bytes for word in loads),
        rebuilt_bytes=sum(word.rebuilt_bytes for word in loads),
        load_max_s=max((word.seconds for word in loads), default=0.0),
        resume_s=first - strike.killed_s if first is not None else 0.0,
        steps_repeated=max(0, strike.trained_step - resumed),
        total_s=total_s,
    )


def _after(outcome: CourseOutcome) -> list[StepView]:
    """Committed by the second launch; the steps that the first one committed are not among them."""
    known = {(view.step, view.generation) for view in outcome.committed_before}
    return [view for view in outcome.committed if (view.step, view.generation) not in known]


def _redundancy(views: Sequence[StepView]) -> str:
    """What the answers to the newest of these saves stated at their commit."""
    if not views:
        return "none"
    view = views[-1]
    targets, domains = view.targets_survivable_at_commit, view.domains_survivable_at_commit
    return f"survives {_count(targets, 'target')}, {_count(domains, view.domain_level)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
