"""What `store.save` gives back: a Save that is under way, and the Commit that it becomes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from ckpt.base.errors import Busy, CkptError, Unavailable, error_from_wire
from ckpt.base.ids import Generation
from ckpt.base.system_errors import Scarce
from ckpt.base.units import US_PER_S, check_seconds
from ckpt.format.messages.saving import CommitInfo
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.handlers import refuse_inside
from ckpt_client.here_only import HereOnly
from ckpt_client.locate import read_ready
from ckpt_client.save.staged import staged_already
from ckpt_client.stager import wire
from ckpt_client.warn import warn

LATE_S: Final = (30.0, 600.0)
"""Of waiting for a commit, before people hear that it is still waited for: the first time, and the
longest until the next."""
_log = logging.getLogger("ckpt.save")


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that is on stable storage and that anyone may load."""

    run: str
    step: int
    generation: Generation
    """Which attempt to write the step it is; grows when the step is saved again."""
    bytes: int
    """Bytes of all ranks, without parity."""
    world_size: int
    """How many ranks saved it."""
    code: str
    """`k+m`: k data and m parity fragments, any k of which give the bytes back."""
    targets_survivable: int
    """How many targets, whichever they are, may be lost without losing this checkpoint."""
    domains_survivable: int
    """The same for whole failure domains, which `domain_level` names."""
    domain_level: str
    columns_missing: int
    """Columns that are not on a target; a column is one target's fragments of a rank's bytes."""
    stall_s: float
    """The longest that a rank's training stood still, in seconds, without `fault_in_s`."""
    fault_in_s: float
    """Seconds that the slowest rank spent on its stager's start and its memory's first touch."""
    commit_s: float
    """Seconds from the first hand-over to the durable record."""
    committed_at_s: float
    """Wall clock in seconds since 1970, for people."""
    slowest_rank: int
    slowest_target: str
    warnings: tuple[str, ...] = ()
    """What the user should know, such as replicas that differ and were kept apart."""
    bytes_referenced: int = 0
    """How many of `bytes` did not change: they were not written again, and lie in earlier steps."""
    homes: tuple[int, ...] = ()
    """Those earlier steps. What this one needs of them stays when they are deleted."""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The step's metrics; if several ranks gave some, those of the lowest rank."""


def commit_from_info(info: CommitInfo) -> Commit:
    """What the coordinator announced, in the caller's words."""
    return Commit(
        run=info.checkpoint.run,
        step=info.checkpoint.step,
        generation=info.checkpoint.generation,
        bytes=info.payload_bytes + info.referenced_bytes,
        world_size=info.world_size,
        code=info.code,
        targets_survivable=info.targets_survivable,
        domains_survivable=info.domains_survivable,
        domain_level=info.domain_level,
        columns_missing=info.columns_missing,
        stall_s=info.stall_us / US_PER_S,
        fault_in_s=info.fault_in_us / US_PER_S,
        commit_s=info.commit_us / US_PER_S,
        committed_at_s=info.committed_at_s,
        slowest_rank=info.slowest_rank,
        slowest_target=info.slowest_target,
        warnings=info.warnings,
        bytes_referenced=info.referenced_bytes,
        homes=tuple(home.step for home in info.homes),
        metrics=info.metrics,
    )


def commit_from_view(view: StepView) -> Commit:
    """A listed checkpoint: its redundancy is what it is now, not at the write."""
    return Commit(
        run=view.run,
        step=view.step,
        generation=Generation.parse(view.generation),
        bytes=view.bytes,
        world_size=view.world_size,
        code=view.code,
        targets_survivable=view.targets_survivable,
        domains_survivable=view.domains_survivable,
        domain_level=view.domain_level,
        columns_missing=view.columns_missing,
        stall_s=view.stall_s,
        fault_in_s=view.fault_in_s,
        commit_s=view.commit_s,
        committed_at_s=view.committed_at_s,
        slowest_rank=view.slowest_rank,
        slowest_target=view.slowest_target,
        warnings=view.warnings,
        bytes_referenced=view.referenced_bytes,
        homes=view.homes,
        metrics=view.metrics,
    )


class Waiter(Protocol):
    """What a Save needs of its stager."""

    @property
    def attach(self) -> wire.Attach:
        """Where its cluster is."""

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Listen to the stager until `ready()`; False when the time is over first."""


class Save(HereOnly):
    """One rank's save, as `Store.save` returns it: copied (see `staged`), and on its way to its
    commit.
    """

    def __init__(self, run: str, step: int, rank: int, stager: Waiter) -> None:
        self.run = run
        self.step = step
        self.rank = rank
        self.staged_bytes = 0
        """Bytes that this rank stores."""
        self.stall_s = 0.0
        """Seconds that `Store.save` took here, without `fault_in_s`."""
        self.fault_in_s = 0.0
        """Seconds of the same call that the stager's start and its memory's first touch took."""
        self.skipped = False
        """The arena was full and the store's policy is to skip; nothing was staged."""
        self.staged = staged_already()
        """Whether the state may be changed; with `staging="overlap"` not at once."""
        self._stager = stager
        #: The store, which closes itself when nobody has it: until `wait` has heard the end.
        self._kept: object = None
        self._commit: Commit | None = None
        self._error: CkptError | None = None
        #: Whether somebody has heard of the error, or will elsewhere: then no later save raises it.
        self._error_told = False
        #: The commit's warnings, until `wait` or the next save has warned of them.
        self._unheard: tuple[str, ...] = ()

    def _instead(self) -> str:
        return "wait for it here, and hand on the Commit that `wait` returns"

    def __repr__(self) -> str:
        if self.skipped:
            state = "skipped"
        elif self._commit is not None:
            state = "committed"
        else:
            state = "failed" if self._error is not None else "under way"
        return f"<Save {self.run}@{self.step} rank {self.rank}: {state}>"

    @property
    def ended(self) -> bool:
        """Whether it is known to have committed or failed; does not ask."""
        return self.skipped or self._commit is not None or self._error is not None

    @property
    def failure_told(self) -> bool:
        """Whether it is known to have failed, and the error was raised or reported."""
        return self._error is not None and self._error_told

    @property
    def error(self) -> CkptError | None:
        """The error that ended it, if that is known; reading it does not count as reporting it."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> Commit:
        """Wait for the commit: then all ranks' bytes are on stable storage. Issues its warnings.

        Raises the error that ended the save; Unavailable when it is still under way after
        `timeout_s` seconds (it goes on, wait again); Busy when it was skipped.
        """
        self.wait_ended(timeout_s)
        if self._commit is not None:
            self.warn()
            return self._commit
        assert self._error is not None
        self._error_told = True
        raise self._error

    def wait_ended(self, timeout_s: float | None = None) -> None:
        """`wait`, but an error that ended the save is left for others to raise. Raises
        Unavailable, Busy.
        """
        refuse_inside()
        if timeout_s is not None:
            timeout_s = check_seconds("timeout_s", timeout_s)
        begun_s = time.monotonic()
        copied = self.staged.wait(timeout_s)
        if self.skipped:
            raise Busy(
                f"{self.run}@{self.step} was skipped: an earlier save still held the arena",
                hint="save again later, or open the store with when_full='wait'",
            )
        deadline_s = None if timeout_s is None else begun_s + timeout_s
        if not self.ended and not (copied and self._wait_until(deadline_s)):
            rests = self._rests()
            goes_on = f": {rests}" if rests else "; it goes on"
            raise Unavailable(
                f"{self.run}@{self.step} is not committed after {timeout_s:g} s{goes_on}",
                hint="wait again, or see ckpt status",
            )
        self._kept = None

    def _wait_until(self, deadline_s: float | None) -> bool:
        """Until it has ended; says now and then that it has not. False when the time is over."""
        begun_s, late_s = time.monotonic(), LATE_S[0]
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            rest_s = late_s if left_s is None else min(late_s, left_s)
            if self._stager.wait_until(lambda: self.ended, rest_s):
                return True
            if rest_s != late_s:
                return False
            late_s = min(2 * late_s, LATE_S[1])
            _log.warning(
                "%s@%s is not committed after %.0f s of waiting, which goes on: %s",
                self.run,
                self.step,
                time.monotonic() - begun_s,
                self._rests()
                or f"ckpt ls {self.run} says whom it waits for, ckpt status what is amiss",
            )

    def _rests(self) -> str:
        """That its cluster on this machine was stopped, as `ckpt local stop` does; else empty."""
        directory = self._stager.attach.directory
        try:
            if not directory or read_ready(Path(directory)) is not None:
                return ""
        except Scarce as error:  # The save goes on in its stager all the same.
            return str(error)
        return (
            f"the cluster in {directory} is not running; the save goes on once it is started, by "
            f"`ckptd local {directory}` or an open of it"
        )

    def mark_told(self) -> None:
        """Its end is reported elsewhere, to all whom it concerns: no later save raises it."""
        self._error_told = True

    def warn(self) -> None:
        """Warn of what the commit said, of each only once."""
        unheard, self._unheard = self._unheard, ()
        for text in unheard:
            warn(f"{self.run}@{self.step}: {text}")

    # ----------------------------------------------------------------------- for the stager's end

    def keep(self, store: object) -> None:
        """Keep the store from closing before `wait`, also where nobody else has it any more, as in
        `ckpt.open().save(run, step, state).wait()`.
        """
        self._kept = store

    def settle(self, outcome: wire.Outcome) -> None:
        """Take the stager's final outcome: a commit, or an error."""
        if outcome.info is not None:
            self._commit = commit_from_info(outcome.info)
            self._unheard = self._commit.warnings
        else:
            after_us = outcome.retry_after_us
            after_s = None if after_us is None else after_us / US_PER_S
            self.fail(error_from_wire(outcome.code, outcome.message, outcome.hint, after_s))

    def skip(self) -> None:
        """Mark the save as skipped, as the store's `when_full` policy wants."""
        self.skipped = True

    def fail(self, error: CkptError) -> None:
        """Mark the save as failed; the stager sends nothing more about it."""
        self._error = error

    def take_error(self) -> CkptError | None:
        """The error, if it was not raised yet; it counts as raised from now on."""
        if self._error is None or self._error_told:
            return None
        self._error_told = True
        self._error.add_note(
            f"It ended the save of {self.run}@{self.step}, which nobody waited for."
        )
        return self._error
