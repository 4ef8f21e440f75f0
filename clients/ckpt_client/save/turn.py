"""One rank's turn in the save of a step, from the state to the hand-over.

    BEGUN ──pack, take──> PACKED ──copy──> COPIED ──hand_over──> OVER
      ^                                      │
      └─────────────────drop─────────────────┘      refuse: from BEGUN or PACKED to OVER

    overlap: from PACKED to OVER; another thread copies and hands over

Ranks save a step together, so a turn always ends in one of two ways: the rank hands a save over, or
it refuses, and the other ranks' saves are aborted with its reason. A rank that did neither would
let them wait.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, SupportsFloat

from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import RunName, Step
from ckpt_client.environment import RankPlace
from ckpt_client.save.copying import NUMPY, Copier
from ckpt_client.save.handle import Save
from ckpt_client.save.links.stagers import Stagers
from ckpt_client.save.metrics import given_metrics
from ckpt_client.save.overlap import OverlapCopier, SampledCopier
from ckpt_client.save.packing import PackingPlan
from ckpt_client.save.staging import Staging


class _At(enum.Enum):
    BEGUN = enum.auto()
    PACKED = enum.auto()
    COPIED = enum.auto()
    OVER = enum.auto()


STAGINGS: Final = ("copy", "overlap")


def staging_overlaps(staging: str) -> bool:
    """What users give as `staging`: whether the copy is beside the training. Raises Refused."""
    if staging not in STAGINGS:
        raise Refused(f"staging={staging!r}", hint=f"one of {', '.join(STAGINGS)}")
    return staging == "overlap"


class SaveTurn:
    """I lead one save through its order. For adapters; `Store.turn` makes me:

        with turn:
            turn.pack(state)
        save = turn.stage()

    An Exception that leaves the `with` refuses the step. What `stage` and `hand_over` raise has
    refused it already, unless there is no stager that could. A call out of order is an error of the
    adapter's, and an AssertionError.
    """

    def __init__(
        self,
        stagers: Stagers,
        run: RunName,
        step: Step,
        place: RankPlace,
        *,
        begun_s: float,
        store: object,
    ) -> None:
        """begun_s: `time.monotonic()` when the training stopped for this save.

        store: whose stagers these are; the Save keeps it open.
        """
        self._stagers = stagers
        self._store = store
        self._run = run
        self._step = step
        self._place = place
        self._begun_s = begun_s
        self._at = _At.BEGUN
        self._metrics: dict[str, float] = {}
        #: From PACKED on.
        self._packing: PackingPlan | None = None
        #: From COPIED on.
        self._staging: Staging | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and self._at in (_At.BEGUN, _At.PACKED):
            self.refuse(error)

    def pack(
        self, state: object, *, replicated: bool = False, check_finite: bool = False
    ) -> PackingPlan:
        """`lay_out` and `take`."""
        packing = self.lay_out(state, replicated=replicated)
        if check_finite:
            packing.check_finite()
        self.take(packing)
        return packing

    def lay_out(
        self, state: object, *, replicated: bool = False, keep_form: bool = True
    ) -> PackingPlan:
        """Take the state apart and lay it out; nothing is copied. Takes what `Store.save` takes.

        keep_form: know the next state of this form again; an adapter that does so says False.
        Raises Refused naming the path of what cannot be stored.
        """
        self._expect(_At.BEGUN)
        return self._stagers.pack(state, self._place, replicated=replicated, keep_form=keep_form)

    def take(self, packing: PackingPlan) -> None:
        """Save this, which was laid out elsewhere: a state of a form that is known."""
        self._expect(_At.BEGUN)
        self._packing, self._at = packing, _At.PACKED

    def say(self, metrics: Mapping[str, SupportsFloat] | None) -> None:
        """Say of the step what `Store.save` takes as `metrics`. Raises Refused."""
        self._expect(_At.BEGUN, _At.PACKED)
        self._metrics = given_metrics(metrics)

    def stage(self, copier: Copier = NUMPY) -> Save:
        """Copy and hand over, ahead of what other threads save. Raises what refused the step."""
        try:
            with self._stagers.lock:
                self.copy(copier)
                return self.hand_over()
        except BaseException:
            self.give_up()
            raise

    def overlap(self, copier: OverlapCopier | None = None) -> Save:
        """Copy and hand over beside the caller, who changes the arrays only after
        `Save.staged.follow` or `wait`. What refuses the step ends the Save.

        copier: as in `copy`, made for these arrays before they may change.
        """
        packing = self._expect(_At.PACKED)._packing
        assert packing is not None
        self._at = _At.OVER
        copier = copier or SampledCopier(packing.arrays)
        try:
            with self._stagers.lock:
                self._staging = self._stagers.staging(
                    self._run, self._step, self._place, packing, self._metrics
                )
                save = self._staging.overlap(copier, self._begun_s, self._stagers.beside.run)
        except BaseException:
            self.give_up()
            raise
        save.keep(self._store)
        return save

    def copy(self, copier: Copier = NUMPY) -> None:
        """Copy, while it is still open whether to save: `hand_over` or `drop` follows, before the
        store is closed. An error of the copy itself is raised by these.

        copier: knows what the packing's arrays are.
        """
        packing = self._expect(_At.PACKED)._packing
        assert packing is not None
        self._stagers.beside.drain()
        # Without a stager nobody could hear a refusal either.
        self._at = _At.OVER
        self._staging = self._stagers.staging(
            self._run, self._step, self._place, packing, self._metrics
        )
        self._at = _At.COPIED
        self._staging.copy(copier)

    @property
    def copy_failed(self) -> bool:
        """Whether the copy ended in an error, which `hand_over` raises."""
        staging = self._expect(_At.COPIED)._staging
        return staging is not None and staging.failure is not None

    def hand_over(self) -> Save:
        """From here on the save is the stager's. Raises what refused the step."""
        staging = self._expect(_At.COPIED)._staging
        assert staging is not None
        try:
            self._at = _At.OVER
            save = staging.hand_over(self._begun_s)
        except BaseException:
            staging.give_up()
            raise
        save.keep(self._store)
        return save

    def drop(self) -> None:
        """Forget the copy, of which nobody else hears; the turn begins again. Raises only what
        interrupted the copy, such as Ctrl-C.
        """
        staging = self._expect(_At.COPIED)._staging
        assert staging is not None
        self._staging, self._packing, self._at = None, None, _At.BEGUN
        staging.drop()

    def give_up(self) -> None:
        """After a Ctrl-C, or an error, at any step: what is not handed over never is, and the other
        ranks hear of it.
        """
        if self._staging is not None:
            self._staging.give_up()

    def refuse(self, why: Exception) -> None:
        """Let the other ranks hear that this one does not save the step: their saves of it are
        aborted, naming it and why. It counts as this rank's save: the n-th of a step meets the n-th
        of all others. Never raises: `why` is on its way up.
        """
        self._expect(_At.BEGUN, _At.PACKED)
        self._at = _At.OVER
        if self._place.world_size > 1:
            text = why.message if isinstance(why, CkptError) else repr(why)
            with suppress(CkptError, OSError):
                self._stagers.refuse(self._run, self._step, self._place, text)

    def _expect(self, *allowed: _At) -> Self:
        assert self._at in allowed, f"a turn that is {self._at.name.lower()} cannot do this"
        return self
