"""Does a load read the tier or an object store? It is decided here alone.

    the coordinator names a generation ──whole in the tier──────────────────> TierReading
                                       ──lost or away, whole in a store─────> StoredReading
    the coordinator names none ──the store of `durable` has it──────────────> StoredReading

What needs an object store's library is imported when a store is read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from ckpt.base.errors import CkptError, Lost, NotFound, Unavailable
from ckpt.base.ids import CheckpointId, Step, check_run_name, check_step
from ckpt.base.printable import printable
from ckpt.base.units import US_PER_S
from ckpt.format.messages.loading import ConfirmLoad, LoadConfirmed
from ckpt_client.connection import Connection
from ckpt_client.environment import RankPlace
from ckpt_client.load import load_counts
from ckpt_client.load.pin import Pinned
from ckpt_client.load.progress import ProgressTeller
from ckpt_client.load.reading import Reading, load_tree
from ckpt_client.load.tier_reading import TierReading
from ckpt_client.load.together.meeting import ANSWER_SLACK_S, open_meeting, share_key
from ckpt_client.settings import Settings
from ckpt_client.warn import warn

if TYPE_CHECKING:
    from ckpt.objects.reader import StoredCheckpoint, Together

_log = logging.getLogger("ckpt.restore")


# ------------------------------------------------------------------ what the coordinator has named


def open_reading(pinned: Pinned, share_key: str | None, progress: ProgressTeller) -> Reading:
    """The next attempt's. Raises Lost or Unavailable when only a store has the generation and it is
    not there either; Corrupt, Refused, Unavailable of the store.

    share_key: what ranks that may read together have in common; None reads alone.
    """
    resolved, checkpoint = pinned.resolved, pinned.resolved.info.checkpoint
    if not resolved.stored:
        return TierReading(pinned, share_key, progress)
    from ckpt_client.load.stored_reading import StoredReading
    from ckpt_client.load.together.chunks import StoreTogether

    reason: CkptError = Lost(f"{checkpoint} is lost in the tier")
    if resolved.away:
        reason = Unavailable(f"{checkpoint} is out of reach in the tier: {resolved.away}")
    urls = list(dict.fromkeys([pinned.context.durable, *resolved.stored]))
    stored = _first_holding(checkpoint, urls, reason)
    together: Together | None = None
    if resolved.sharing and share_key is not None:
        together = StoreTogether(pinned.meeting(), share_key)
    warn(f"{reason.message}; it is loaded from {stored.url}")
    return StoredReading(stored, together)


def goes_to_store(pinned: Pinned, reason: str) -> bool:
    """Whether a store has, whole, the generation that the tier cannot give now: then the next
    attempt reads that.
    """
    if pinned.resolved.stored or not pinned.context.durable:
        return False
    before = pinned.resolved.info.checkpoint
    _log.warning(printable(f"{before}: {reason}; asking for an object store that has it"))
    try:
        pinned.resolve(None if pinned.shared else before.step, away=True)
    except Unavailable:
        return False
    return bool(pinned.resolved.stored)


def _first_holding(
    checkpoint: CheckpointId, stores: Sequence[str], reason: CkptError
) -> StoredCheckpoint:
    from ckpt.objects.reader import StoredCheckpoint
    from ckpt.objects.sinks.stores import open_sink

    run, step, generation = checkpoint.run, checkpoint.step, checkpoint.generation
    for url in stores:
        with suppress(NotFound):
            return StoredCheckpoint.open(open_sink(url), run, step, generation)
    text = f"{reason.message}, and not to be found in {' or '.join(stores)}"
    raise type(reason)(text, hint=reason.hint)


# -------------------------------------------------------------- what the coordinator does not know


def load_unresolved(
    connection: Connection,
    settings: Settings,
    reason: NotFound | Lost,
    run: str,
    step: int | None,
    place: RankPlace,
    like: object,
    *,
    timeout_s: float,
    strict: bool,
    whole: bool,
) -> object:
    """A step from the object store, without a number the newest one there, because of why the
    coordinator names none; warns.

    Raises that reason when there is no store, or it has not got the step either; Lost when other
    ranks of the launch have another generation, because the step was saved, or drained, again
    meanwhile.
    """
    # Lost without a number may be one that other ranks of the launch have.
    if not settings.durable or (step is None and isinstance(reason, Lost)):
        raise reason
    from ckpt.objects.reader import open_stored
    from ckpt.objects.sinks.stores import open_sink
    from ckpt_client.load.stored_reading import StoredReading
    from ckpt_client.load.together.chunks import StoreTogether

    context = connection.reader(settings.durable)
    number = None if step is None else check_step(step)
    try:
        stored = open_stored(open_sink(context.durable), check_run_name(run), number)
    except NotFound:
        raise reason from None
    warn(f"{run}@{stored.header.step} is loaded from {stored.url}: {reason.message}")
    with ExitStack() as held:
        held.callback(stored.close)
        key = share_key(settings.launch, place.world_size)
        together: Together | None = None
        if key is not None:
            together = StoreTogether(held.enter_context(open_meeting(context, timeout_s)), key)
        reading = StoredReading(stored, together)
        state = load_tree(reading, place.rank, place.world_size, like, strict=strict, whole=whole)
        _confirm(connection, stored, number, place, timeout_s)
        return state


def _confirm(
    connection: Connection,
    stored: StoredCheckpoint,
    step: Step | None,
    place: RankPlace,
    timeout_s: float,
) -> None:
    """Ask whether all ranks of the launch load what this one has found in the store."""
    control, id = connection.control, CheckpointId(*stored.header.key)
    run = id.run
    join = control.join if step is None else control.join_to_read
    joined = join(run, place.rank, place.world_size)
    if place.world_size == 1 or joined is None or not joined.by_number:
        return
    key = (connection.cluster, run, joined.launch, place.rank, id.step)
    number = load_counts.next_load(key)
    turn = joined.turn if step is None else number
    question = ConfirmLoad(
        run, joined.launch, place.rank, turn, id, int(timeout_s * US_PER_S), step, stored=True
    )
    answer, _ = control.call(question, LoadConfirmed, timeout_s=timeout_s + ANSWER_SLACK_S)
    if answer.superseded:
        raise Lost(
            f"{id} was loaded from {stored.url}, but {answer.superseded}: two generations would "
            "meet in one job",
            hint="end all ranks and start them again",
        )
    load_counts.confirmed(key, number)
    if step is None:
        control.resolved(run, place.rank, place.world_size, turn)
