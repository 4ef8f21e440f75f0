"""`save` and `async_save`: DCP's calls, without planner and storage writer.

    state dict --boxes, holders--> tree of Shards and replicas --> Store.save

A plain tensor, array or value is the same on all ranks that have its name, and is stored once. A
DTensor or ShardedTensor is global. A value that belongs to one rank has the rank in its key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import SupportsFloat, cast

import torch
import torch.distributed as dist

from ckpt.aio.collector import collector_paused
from ckpt.aio.threads import run_beside
from ckpt.base.errors import CkptError
from ckpt.format.tree import Scalar
from ckpt_client.save.forms import Found
from ckpt_client.save.handle import Commit, Save
from ckpt_client.save.packing import PackingPlan
from ckpt_client.save.turn import SaveTurn, staging_overlaps
from ckpt_client.store import Store
from ckpt_torch.exchange import Exchange, Holders, Shape, digests_of, tell_problem
from ckpt_torch.modes import uncompiled
from ckpt_torch.place import CheckpointName, Who, find_step, find_who
from ckpt_torch.staging.copying import TorchCopier
from ckpt_torch.staging.known import Known, confirm, learn, recall, recognise, remember
from ckpt_torch.staging.parts import StateParts, parts_of
from ckpt_torch.staging.steps import is_stepping
from ckpt_torch.staging.watch import Whole
from ckpt_torch.tree import asked, check_keys


@uncompiled
def save(
    state_dict: Mapping[str, object],
    *,
    checkpoint_id: CheckpointName | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    use_collectives: bool = True,
    store: Store | str | None = None,
    allow_pickle: bool = False,
    check_finite: bool | tuple[str, ...] = False,
    metrics: Mapping[str, SupportsFloat] | None = None,
) -> Commit:
    """Save, and wait until the checkpoint is committed; every rank waits. Takes and raises what
    `async_save` does, and raises the error that ended the save.
    """
    return async_save(
        state_dict,
        checkpoint_id=checkpoint_id,
        process_group=process_group,
        no_dist=no_dist,
        use_collectives=use_collectives,
        store=store,
        allow_pickle=allow_pickle,
        check_finite=check_finite,
        metrics=metrics,
    ).result()


@uncompiled
def async_save(
    state_dict: Mapping[str, object],
    *,
    checkpoint_id: CheckpointName | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    use_collectives: bool = True,
    store: Store | str | None = None,
    allow_pickle: bool = False,
    check_finite: bool | tuple[str, ...] = False,
    metrics: Mapping[str, SupportsFloat] | None = None,
    staging: str = "copy",
) -> CommitFuture:
    """Copy the state and return. The future gives the Commit, or raises the error that ended the
    save.

    You may change the state as soon as this returns. All ranks of the process group call it. If
    nobody asks the future for its error, the next save raises it, or the closing of the store.

    state_dict: tensors, DTensors, ShardedTensors, numpy arrays and plain values in dicts, lists and
        tuples; at the top level also objects with `state_dict()`, such as models. A DTensor or
        ShardedTensor is one global tensor. Anything else must be the same on all ranks that have
        its name, and is stored once.
    checkpoint_id: `ckpt://HOST:PORT/RUN/STEP`, `ckpt+local:///DIR/RUN/STEP`, or `RUN/STEP` in
        `store` (a Store, or its URL), else in the store that $CKPT_STORE names.
    process_group: the ranks that save; default all. Without torch.distributed, rank and world size
        come from the launcher.
    no_dist: this process saves alone, as rank 0 of 1.
    use_collectives: with False no rank asks the others; all must hold the same names then.
    allow_pickle: keep objects that are not plain data as pickles; `load` must allow them too.
    check_finite: refuse floating point tensors that hold NaN or infinity, in the whole state or
        only below these top-level keys.
    metrics: what was measured at the step, such as {"loss": 0.3}, as `Store.save` takes it: numbers
        of Python, numpy or torch. If several ranks give some, those of the lowest rank count.
    staging: `copy`, or `overlap`, which returns before the state is copied. Have `guard()` make the
        optimizers' next step wait for the copy, or wait for the future's `staged` yourself before
        anything changes the state. A tensor that is seen to change too early ends the save on all
        ranks with an error that names it. Within a step of an optimizer `overlap` means `copy`.

    Raises Refused, with its path, for what cannot be stored, and for a metric that is no finite
    number, before anything is staged; if one rank refuses, all do. Raises the error of an earlier
    save that was not raised yet.
    """
    begun_s = time.monotonic()
    who = find_who(process_group, no_dist)
    if not use_collectives:
        who = Who(who.rank, who.world_size, None, False)
    with refusing_together(None, who):
        step = find_step(checkpoint_id, store)
        turn = step.turn(who.rank, who.world_size, begun_s)
    staged = stage(
        turn, step.store, state_dict, who,
        allow_pickle=allow_pickle, check_finite=check_finite, metrics=metrics, staging=staging,
    )  # fmt: skip
    return commit_future(staged)


# All that is made for each leaf, once: between two pauses Python would look through it.
@collector_paused()
def stage(
    turn: SaveTurn,
    store: Store,
    state_dict: Mapping[str, object],
    who: Who,
    *,
    allow_pickle: bool = False,
    check_finite: bool | tuple[str, ...] = False,
    metrics: Mapping[str, SupportsFloat] | None = None,
    staging: str = "copy",
    planned: bool = False,
) -> Save:
    """`async_save` once this rank's turn in `store` has begun. A state of the same form as its last
    one is only compared and copied.

    planned: it has the names that DCP's planner gives, and keys of ours.
    """
    with refusing_together(turn, who):
        # Within a step nothing says when the state changes: the guard has waited before it.
        overlaps = staging_overlaps(staging) and not is_stepping()
        # Raised later, an earlier save's error would leave the others to wait for this rank.
        store.check_for_errors()
        turn.say(metrics)
        state = asked(state_dict)
        known = None if check_finite else recall(store, who)
        found = recognise(known, state) if known is not None else None
        if found is None and not planned:
            check_keys(state)
        parts = parts_of(state, allow_pickle, check_finite) if found is None else None
        shape, plain = _told(known, found, parts)
        packing = known.layout.packing(found) if known is not None and found is not None else None
        copier = _copier_of(known, found, packing, watched=overlaps)
        digests = digests_of(plain) if who.speaking else {}
    with _refusing_alone(turn):
        exchange = Exchange(who, shape, digests)
    if packing is None or known is None or copier is None:
        with _refusing_alone(turn):
            holders = exchange.holders()
    else:
        agrees_first = overlaps or known.supposed
        staging_known = _stage_agreed if agrees_first else _copy_known
        save, holders = staging_known(turn, packing, copier, exchange, known)
        if save is not None:
            confirm(store, known, holders)
            return save
    with turn:
        parts = parts or parts_of(state, allow_pickle, check_finite)
        # The next state of this form is only compared and copied. A form that is surely one of ours
        # is learnt while the stager sends.
        learns_later = parts.all_plain
        learn_form = partial(learn, parts.settled, holders, all_plain=parts.all_plain)
        learnt = None if learns_later else learn_form()
        lay_out = partial(turn.lay_out, keep_form=learnt is None and not learns_later)
        packing, wholes = parts.laid_out(lay_out, holders)
        turn.take(packing)
        copier = TorchCopier(packing.arrays, watched=overlaps, wholes=wholes)
    save = turn.overlap(copier) if overlaps else turn.stage(copier)
    learnt = learn_form() if learns_later else learnt
    remember(store, learnt, packing.layout, shape, holders)
    return save


def _copier_of(
    known: Known | None, found: Found | None, packing: PackingPlan | None, *, watched: bool
) -> TorchCopier | None:
    """Of a state of the known form, as it is now."""
    if known is None or found is None or packing is None:
        return None
    wholes: list[Whole] = []
    if watched and found.wholes:
        places = cast(Sequence[int], known.layout.place_of(found))
        wholes = [(places[number], cast(torch.Tensor, whole)) for number, whole in found.wholes]
    return TorchCopier(
        packing.arrays, watched=watched, wholes=wholes, all_here=known.devices is None
    )


def _copy_known(
    turn: SaveTurn, packing: PackingPlan, copier: TorchCopier, exchange: Exchange, known: Known
) -> tuple[Save | None, Holders]:
    """A state of the known form, copied while the ranks still talk: nearly always they agree. No
    Save, and what they came to, when they do not.
    """
    turn.take(packing)
    try:
        turn.copy(copier)
    except BaseException:
        turn.give_up()
        with suppress(CkptError):
            _agreed(exchange, known)  # The others may have more to say, and wait for an answer.
        raise
    with _refusing_alone(turn):
        try:
            holders = _agreed(exchange, known)
        except BaseException:  # They came to save nothing.
            turn.drop()
            raise
    if known.agrees(holders) or turn.copy_failed:
        return turn.hand_over(), holders
    turn.drop()
    return None, holders


def _stage_agreed(
    turn: SaveTurn, packing: PackingPlan, copier: TorchCopier, exchange: Exchange, known: Known
) -> tuple[Save | None, Holders]:
    """The same, copied once the ranks agree; beside the training by a copier that watches it."""
    with _refusing_alone(turn):
        holders = _agreed(exchange, known)
    if not known.agrees(holders):
        return None, holders
    turn.take(packing)
    return turn.overlap(copier) if copier.watched else turn.stage(copier), holders


def _agreed(exchange: Exchange, known: Known) -> Holders:
    """What the ranks came to; where they do not talk, what is known."""
    asks = exchange.who.speaking or known.supposed
    return exchange.holders() if asks else known.holders


def _told(
    known: Known | None, found: Found | None, parts: StateParts | None
) -> tuple[Shape, Mapping[str, Scalar]]:
    """What other ranks hear of this one's state."""
    if parts is not None:
        return parts.shape(), parts.plain
    assert known is not None
    assert found is not None
    return known.shape, known.values(found)


@contextmanager
def refusing_together(turn: SaveTurn | None, who: Who) -> Iterator[None]:
    """Let all ranks hear what one rank raises before an Exchange. Where ranks talk, they hear it
    there, and no rank stages; otherwise through the store, once this rank's turn has begun.
    """
    try:
        yield
    except Exception as error:
        if who.speaking:
            tell_problem(who, error.message if isinstance(error, CkptError) else repr(error))
        elif turn is not None:
            turn.refuse(error)
        raise


@contextmanager
def _refusing_alone(turn: SaveTurn) -> Iterator[None]:
    """Let the other ranks hear through the store what cuts this one off from their talk, such as an
    abort of its process group: they may have heard all that they wait for, and save. What the ranks
    have come to together is a CkptError, and raised on all.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, CkptError):
            turn.refuse(error)
        raise


class CommitFuture(Future[Commit]):
    """The outcome of a save. If nobody asks me for its error, for example because I was dropped,
    the store raises it in its next save, or when it is closed.
    """

    def __init__(self, save: Save) -> None:
        super().__init__()
        self.staged = save.staged
        """Whether the state may be changed; with `staging="overlap"` not at once."""
        self._save = save
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Commit:
        try:
            return super().result(timeout)
        finally:
            self._note_asked()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            return super().exception(timeout)
        finally:
            self._note_asked()

    def _note_asked(self) -> None:
        if self.done():  # Else the time was over, or a Ctrl-C ended it.
            self._save.mark_told()


def commit_future(staged: Save) -> CommitFuture:
    """A future of what becomes of a save; a thread of its own waits for it. Where the system has
    none left this call does: the save is handed over, and an error would say that it is not.
    """
    future = CommitFuture(staged)

    def wait() -> None:
        try:
            staged.wait_ended()
            if staged.error is not None:
                future.set_exception(staged.error)
            else:
                future.set_result(staged.wait())
        except Exception as error:  # A warning too, where warnings are errors.
            future.set_exception(error)

    run_beside(wait)
    return future


def wait_for(pending: list[Future[Commit]]) -> None:
    """Wait until all are committed, oldest first; each leaves the list when it ends. Raises the
    first error. Whatever is under way at an error or a Ctrl-C is still in the list.
    """
    while pending:
        pending[0].exception()
        pending.pop(0).result()
