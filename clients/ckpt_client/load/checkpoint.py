"""Reading a committed checkpoint: resolve it once, keep it pinned, load what is asked for.

    resolve ──> a pinned generation ──> tier_or_store ──> a Reading: index, trees, boxes ──> arrays
       ^                                                     │
       └───────────── damaged, or its holders moved ─────────┘

Which step it is, and whether an older one may be taken, is the coordinator's decision for all
ranks. Damage that this reader finds is reported; it is asked again once the coordinator has proved
it.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ckpt.aio.clock import draw
from ckpt.base.errors import CkptError, Corrupt, Refused, Unavailable
from ckpt.base.ids import Generation, Rank, RunName, Step
from ckpt.base.printable import printable
from ckpt.base.rests import Rests
from ckpt.base.units import US_PER_S
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.loading import Resolve
from ckpt.format.messages.saving import CommitInfo
from ckpt.transfer.index_source import IndexUnreadable
from ckpt.transfer.read_job import PayloadDamaged, ReceiverStatistics
from ckpt_client.here_only import HereOnly
from ckpt_client.load.contents import Contents
from ckpt_client.load.load_counts import next_load
from ckpt_client.load.pin import Pinned
from ckpt_client.load.progress import OnProgress, ProgressTeller
from ckpt_client.load.reader_context import ReaderContext
from ckpt_client.load.reading import Reading, load_tree
from ckpt_client.load.redundancy import RedundancyAtCommit
from ckpt_client.load.tier_or_store import goes_to_store, open_reading
from ckpt_client.load.together.meeting import share_key
from ckpt_client.save.staged import wait_for_stagings
from ckpt_client.warn import warn

if TYPE_CHECKING:
    from ckpt.objects.reader import StoreStatistics
    from ckpt_client.load.tensor_info import TensorInfo

RESOLVE_COUNT_MAX: Final = 64
"""Times one load may be resolved again."""
RETRY_S: Final = (0.05, 1.0)
"""First and longest rest before that."""

_log = logging.getLogger("ckpt.restore")
Value = TypeVar("Value")


def resolve(
    context: ReaderContext,
    run: RunName,
    step: Step | None = None,
    *,
    rank: Rank | None = None,
    world_size: int | None = None,
    joined: LaunchJoined | None = None,
    launch_key: str | None = None,
    timeout_s: float = 10.0,
    fallback: bool = False,
    progress: OnProgress | None = None,
    together: bool = True,
    only: Generation | None = None,
) -> Checkpoint:
    """The committed checkpoint to read, pinned until it is closed, in a session of its own.

    With a launch, it is the same for all its ranks. Ranks of one `launch_key`, or of one world
    size, that read at the same time read each byte from the tier once, if `together`. With `only`
    it is that generation of the step or none, whatever a launch has settled.

    Raises NotFound, Unavailable after `timeout_s` (with `fallback` an older step instead), Lost
    when its damage is proved.
    """
    launch = None if joined is None else joined.launch
    turn = 0 if joined is None else joined.turn
    if joined is not None and step is not None and rank is not None:
        turn = next_load((context.cluster, run, joined.launch, rank, step))
    question = Resolve(
        run, step, launch, rank, world_size, int(timeout_s * US_PER_S), fallback, turn,
        stored=bool(context.durable), only=only,
    )  # fmt: skip
    pinned = Pinned(context, question, timeout_s)
    return Checkpoint(pinned, progress, share_key(launch_key, world_size) if together else None)


class Checkpoint(HereOnly):
    """A committed checkpoint to load from, as `Store.resolve` returns it. It is pinned against
    deletion until it is closed (or forgotten). Used by one thread at a time."""

    def __init__(
        self, pinned: Pinned, progress: OnProgress | None = None, share_key: str | None = None
    ) -> None:
        """share_key: what ranks that may read together have in common; None reads alone."""
        self._pinned = pinned
        self._share_key = share_key
        self._progress = ProgressTeller(progress)
        self._closer = weakref.finalize(self, pinned.close)
        #: The last attempt's; it is closed, and has counted.
        self._last: Reading | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _instead(self) -> str:
        return "hand on its run and step, and resolve them in the process that loads"

    def close(self) -> None:
        """Let it go: it may be deleted from now on. Idempotent."""
        self._closer()

    # ----------------------------------------------------------------------- what it is

    @property
    def info(self) -> CommitInfo:
        """All that the coordinator reported at its commit."""
        return self._pinned.resolved.info

    @property
    def run(self) -> str:
        """The name of the run that saved it."""
        return self.info.checkpoint.run

    @property
    def step(self) -> int:
        """The step's number."""
        return self.info.checkpoint.step

    @property
    def generation(self) -> Generation:
        """Which attempt to write the step it is; differs when a step was saved again."""
        return self.info.checkpoint.generation

    @property
    def world_size(self) -> int:
        """Ranks that saved it."""
        return self.info.world_size

    @property
    def redundancy(self) -> RedundancyAtCommit:
        """The losses that it survived when it was committed."""
        info = self.info
        return RedundancyAtCommit(
            info.targets_survivable, info.domains_survivable, info.domain_level
        )

    @property
    def source(self) -> str:
        """Where the last load's bytes came from: `peers`, `stager`, `store` or `tier`; several
        are joined by `+`. Empty before a load."""
        return "" if self._last is None else "+".join(sorted(self._last.sources))

    @property
    def statistics(self) -> tuple[ReceiverStatistics, ...]:
        """Statistics of the last load's reads from the tier, and from ranks that read the same."""
        return () if self._last is None else self._last.tier_statistics

    @property
    def store_statistics(self) -> StoreStatistics | None:
        """Statistics of the last load's reads from an object store, if it read one."""
        return None if self._last is None else self._last.store_statistics

    @property
    def skipped(self) -> tuple[str, ...]:
        """Newer steps that were skipped, each with its reason."""
        return self._pinned.resolved.skipped

    def tensors(self) -> list[TensorInfo]:
        """All tensors that it holds, ascending by name, with dtype, shape, shards, and the ranks
        that they belong to. Reads its index, and no tensor. Raises Unavailable and Lost.
        """
        from ckpt_client.load.tensor_info import tensor_infos

        self._check_open()
        return self._try(lambda r: tensor_infos(r.index.tensors(), r.documents))

    # ----------------------------------------------------------------------- loading

    def load(self, like: object = None, strict: bool = True, whole: bool = False) -> object:
        """This rank's own tree as it was saved, with new arrays; or one of the two below.

        like: a tree that says what to load. A Box gives a new array; arrays and Shards are filled
            in place, and must have the saved dtype and global shape; plain values are as saved.
            Values that belong to a rank come from the caller's rank, or from rank 0 if the launch
            that saved had no such rank.
        strict: refuse a name that only `like`, or only the checkpoint, has. False loads what both
            have, and leaves what only `like` has as it is there. A list or tuple must have all its
            items in `like`.
        whole: the union of all ranks' trees. Global tensors are whole arrays, even if some ranks
            have None because they hold nothing of them; values that belong to a rank are a PerRank.

        Raises Refused, by path where a leaf does not fit, for arrays of `like` that share memory in
        which the checkpoint has two things, and for a caller of another world size that passes
        neither `like` nor `whole`; Unavailable; Lost. After an error, arrays that were to be filled
        may hold anything.
        """
        self._check_open()
        if whole and like is not None:
            raise Refused("like= and whole= exclude each other")
        if like is not None:
            wait_for_stagings()
        asked = self._pinned.question
        return self._try(
            lambda reading: load_tree(
                reading, asked.rank, asked.world_size, like, strict=strict, whole=whole
            )
        )

    def read(self, plan: Callable[[Contents], Value]) -> Value:
        """Call `plan` with the contents, to read what it wants of them; return its result.

        When bytes are damaged, or have moved to other targets, `plan` is called again from the
        beginning, perhaps with another generation. Raises Unavailable, Lost, and what `plan`
        raises.
        """
        self._check_open()
        return self._try(lambda reading: plan(Contents(reading)))

    def _check_open(self) -> None:
        if not self._closer.alive:
            raise Refused("this checkpoint is closed")

    # ----------------------------------------------------------------------- trying again

    def _try(self, once: Callable[[Reading], Value]) -> Value:
        """Run it; when bytes are damaged or their holders moved, let the coordinator decide and
        run it again."""
        self._progress.begin()
        deadline = time.monotonic() + self._pinned.timeout_s
        rests = Rests(*RETRY_S, draw)
        for _ in range(RESOLVE_COUNT_MAX):
            reading = None
            try:
                if self._pinned.pin_lost:
                    self._resolve_same("the connection to the coordinator was lost")
                self._pinned.begin()
                reading = self._last = open_reading(self._pinned, self._share_key, self._progress)
                value = once(reading)
                superseded = self._pinned.confirm()
                if not superseded:
                    return value
                self._resolve_anew(superseded)
            except PayloadDamaged as error:
                judged = self._pinned.resolve_past(error)
                if judged.proved or self._pinned.resolve_moved(error.payload):
                    continue
                if not goes_to_store(self._pinned, judged.reason):
                    text = f"{error.payload} cannot be read ({error.message}), which is not proved"
                    hint = "load again when all its targets answer, or with fallback=True"
                    raise Unavailable(f"{text}: {judged.reason}", hint=hint) from error
            except (Unavailable, Corrupt) as error:
                cut_off = error.retryable and self._pinned.cut_off
                # Without a coordinator nobody judges; resolving it again waits for one.
                if not cut_off and self._walked_back(error):
                    continue
                over = time.monotonic() >= deadline and not cut_off
                if not error.retryable or over:
                    if goes_to_store(self._pinned, error.message):
                        continue
                    raise
                # Thousands of ranks lose the same target at the same instant.
                time.sleep(rests.next_s())
                self._resolve_same(error.message)
            finally:
                if reading is not None:
                    reading.close()
        raise Unavailable(
            f"{self.info.checkpoint} could not be read in {RESOLVE_COUNT_MAX} attempts"
        )

    def _walked_back(self, error: CkptError) -> bool:
        """Whether it was the tier's index that could not be read, and its loss is proved."""
        in_tier = isinstance(error, IndexUnreadable | Corrupt) and not self._pinned.resolved.stored
        return in_tier and self._pinned.resolve_past(error).proved

    def _resolve_anew(self, reason: str) -> None:
        """It was read whole, but the launch as a whole loads another: so does this rank."""
        before = self.info.checkpoint
        self._pinned.resolve()
        text = f"{before} was loaded, but {reason}: {self.info.checkpoint} is loaded for all ranks"
        warn(text)

    def _resolve_same(self, reason: str) -> None:
        """Targets may have other addresses by now; the generation must be the same."""
        before = self.info.checkpoint
        _log.warning(printable(f"{before}: {reason}; resolving it again"))
        self._pinned.resolve(None if self._pinned.shared else before.step)
        if self.info.checkpoint != before:
            text = (
                f"{before} is not to be had any more ({reason}); {self.info.checkpoint} is loaded"
            )
            warn(text)
