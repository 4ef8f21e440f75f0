"""`ckpt.open`: where a training script saves to and loads from.

A store has one connection to the coordinator and, once something is saved, one stager for each rank
that saves through it (nearly always one). It belongs to the process that opened it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from ckpt.base.errors import CkptError, Lost, NotFound, Refused, Unavailable
from ckpt.base.ids import check_run_name, check_step
from ckpt.base.units import format_bytes
from ckpt.format.messages.saving import ReplicaPolicy
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.connection import Connection
from ckpt_client.environment import RankPlace, find_place, next_save_number
from ckpt_client.save.copying import NUMPY, Copier
from ckpt_client.save.handle import Commit, Save, commit_from_view
from ckpt_client.save.packing import PackingPlan, PackingPlanner
from ckpt_client.save.parked_stagers import find_stager, park
from ckpt_client.save.stager_link import StagerLink
from ckpt_client.save.staging import Staging
from ckpt_client.settings import Settings, checked_settings
from ckpt_client.url import LocalUrl, RemoteUrl, parse_url

if TYPE_CHECKING:
    from ckpt_client.load.checkpoint import Checkpoint
    from ckpt_client.load.verify import VerifyReport

CLOSE_TIMEOUT_S: Final = 120.0
START_TIMEOUT_S: Final = 60.0
RESOLVE_TIMEOUT_S: Final = 30.0
DELETE_TIMEOUT_S: Final = 60.0
_steps_decoder = msgspec.json.Decoder(list[StepView])


def open(
    url: str | None = None,
    *,
    launch: str | None = None,
    replicas: str = "abort",
    when_full: str = "wait",
    unchanged: str = "warn",
    references: bool = True,
    arena_bytes_max: int | None = None,
    stager_idle_s: float = 60.0,
    start_timeout_s: float = START_TIMEOUT_S,
    durable: str | None = None,
) -> Store:
    """Connect to a store and return it. A local one that does not run is started.

    url: `ckpt+local:///DIR?targets=7&code=4+2` for a cluster on this machine, `ckpt://HOST:PORT`
        for the coordinator of any other. Default: $CKPT_STORE.
    launch: a name that all ranks of this start of the job share and no other start has. Default:
        what torchrun, Slurm, PALS or MPI say in the environment; where none of them does, ranks
        that come again begin a new launch.
    replicas: what becomes of a save whose Replicated leaves differ between ranks: `abort`, or
        `keep` each that differs.
    when_full: what a save does while earlier ones hold all of the staging memory: `wait`, `error`
        (it raises Busy) or `skip` (it stores nothing, warns, and returns a Save that says so).
    unchanged: `warn` of a save in which no tensor, or no optimizer state, has changed since the
        run's last save through this store, or `ignore` it.
    references: whether a save refers to what has not changed since the run's last committed save
        through this store (tensors of 64 KiB and more); False writes it again.
    arena_bytes_max: cap of this rank's staging memory, both halves together, in bytes. Default:
        half of the host's memory.
    stager_idle_s: how many seconds the stager stays when its store is closed: a restart reads from
        its memory, and the other ranks hear at once when this process ends.
    start_timeout_s: how many seconds to wait for a cluster that is coming up: a local one that is
        started here, or a coordinator that says that its targets are not there yet.
    durable: URL of the object store that `ckptd drain` fills, such as `s3://bucket/runs`: loads
        take from it what the tier does not have, has evicted or lost, or cannot give now.
        Default: $CKPT_DURABLE.

    Raises Refused for a bad URL or contradicting options, Unauthorized when the cluster's secret
    is missing or another, Unavailable when the cluster does not answer in time.
    """
    settings = checked_settings(
        launch=launch, replicas=replicas, when_full=when_full, unchanged=unchanged,
        references=references, arena_bytes_max=arena_bytes_max, stager_idle_s=stager_idle_s,
        start_timeout_s=start_timeout_s, durable=durable,
    )  # fmt: skip
    return Store(parse_url(url), settings)


class Store:
    """An open store, where a training's ranks save and load. `open` makes it.

    Use it in a `with`, or close it. Its methods may be called from several threads. `rank` and
    `world_size` are those of the environment (torchrun, Slurm, PALS, MPI) unless they are given;
    both or neither.
    """

    def __init__(self, url: LocalUrl | RemoteUrl, settings: Settings) -> None:
        self._url = url
        self._settings = settings
        self._pid = os.getpid()
        #: True until the connection stands, and again from the end of `close`.
        self._closed = True
        #: Guards the stagers below; held while a save is staged.
        self._lock = threading.RLock()
        self._planner = PackingPlanner()
        self._stagers: dict[RankPlace, StagerLink] = {}
        self._connection = Connection(url, settings.launch, settings.start_timeout_s)
        self._control = self._connection.control
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        # The script failed: its own error counts. Saves that are handed over go on without us.
        with suppress(CkptError):
            self._leave()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._pid == os.getpid():
            self._leave()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    # ----------------------------------------------------------------------- saving

    def prepare(
        self,
        state: object,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        replicated: bool = False,
    ) -> None:
        """Make the staging memory for states like this one, so that the first save is as fast as
        the others. Raises NoSpace, and Refused as `save` does.
        """
        layout = self.pack(state, rank=rank, world_size=world_size, replicated=replicated).layout
        with self._lock:
            self._stager(RankPlace(layout.rank, layout.world_size)).prepare(layout.half_bytes)

    def join(self, run: str, *, rank: int | None = None, world_size: int | None = None) -> None:
        """Say ahead of its first save that this process saves as that rank. For a process that
        saves as several: if it ends between two of them, the first save is aborted, not awaited.
        """
        self._check_usable()
        place = find_place(rank, world_size)
        self._connection.ensure_answers()
        self._control.join(check_run_name(run), place.rank, place.world_size)

    def save(
        self,
        run: str,
        step: int,
        state: object,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        replicated: bool = False,
        check_finite: bool = False,
    ) -> Save:
        """Copy this rank's state and return; sending and committing go on beside the training.

        state: dicts, lists and tuples of arrays (numpy's, or with `__dlpack__` or `__array__`),
            plain values, Shard, Shards and Replicated. It may be changed when this returns.
        replicated: every leaf that is no Shard is the same on all ranks, and is stored once.
        check_finite: refuse a tensor that holds NaN or infinity, by name, before anything is
            staged. Each is read once more for this.

        Raises Refused naming the path of what cannot be stored. That refuses the step: the other
        ranks' saves of it are aborted, naming this rank and why, and the next save of the step
        begins another attempt on all ranks.

        Raises the error of an earlier save that nobody has heard of, once. Nothing was staged then,
        and the other ranks' saves of this step wait: call it again.
        """
        begun_s = time.monotonic()
        self.raise_untold()
        with self.refusing(run, step, rank=rank, world_size=world_size):
            packing = self.pack(state, rank=rank, world_size=world_size, replicated=replicated)
            if check_finite:
                packing.check_finite()
        return self.save_packed(run, step, packing, begun_s=begun_s)

    def pack(
        self,
        state: object,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        replicated: bool = False,
    ) -> PackingPlan:
        """What `save` does first: take the state apart and lay it out; nothing is copied.

        Raises Refused naming the path of what cannot be stored.
        """
        self._check_usable()
        place = find_place(rank, world_size)
        policy = ReplicaPolicy(self._settings.replicas)
        packing = self._planner.plan(
            state, place.rank, place.world_size, policy, replicated=replicated
        )
        half_bytes = packing.layout.half_bytes
        if half_bytes > self._settings.arena_bytes_max:
            raise Refused(
                f"this rank's state needs {format_bytes(half_bytes)} of staging memory, "
                f"the cap is {format_bytes(self._settings.arena_bytes_max)}",
                hint="raise arena_bytes_max",
            )
        return packing

    def save_packed(self, run: str, step: int, packing: PackingPlan, *, begun_s: float) -> Save:
        """What `save` does then: copy, and hand over. What the staging raises refuses the step.

        begun_s: `time.monotonic()` when the training stopped for this save.
        """
        with self._lock:
            return self.copy_packed(run, step, packing).hand_over(begun_s)

    def copy_packed(
        self, run: str, step: int, packing: PackingPlan, *, copier: Copier = NUMPY
    ) -> Staging:
        """`save_packed` without its end, for who learns beside the copy whether to save: hand it
        over or drop it before the store is closed.

        copier: knows what the packing's arrays are.
        """
        self._check_usable()
        name, number = check_run_name(run), check_step(step)
        layout = packing.layout
        place = RankPlace(layout.rank, layout.world_size)
        with self._lock:
            self._connection.ensure_cluster()
            asked = time.monotonic()
            fresh = place not in self._stagers or not self._stagers[place].alive
            stager = self._stager(place)
            start_s = time.monotonic() - asked if fresh else 0.0
            save = next_save_number()
            staging = Staging(stager, name, number, place, save, self._settings, start_s, packing)
            staging.copy(copier)
            return staging

    def raise_untold(self) -> None:
        """What `save` does first of all: raise the error of an earlier save that nobody has heard
        of, once, and warn of what commits have said. It refuses nothing: where ranks save together,
        call it where the others hear what one of them raises.
        """
        with self._lock:
            for stager in self._stagers.values():
                error = stager.take_error()
                if error is not None:
                    raise error
                for save in stager.take_warned():
                    save.tell_warnings(stacklevel=4)

    @contextmanager
    def refusing(
        self, run: str, step: int, *, rank: int | None = None, world_size: int | None = None
    ) -> Iterator[None]:
        """What is raised inside refuses the step for this rank; see `refuse`."""
        try:
            yield
        except Exception as error:
            self.refuse(run, step, error, rank=rank, world_size=world_size)
            raise

    def refuse(
        self,
        run: str,
        step: int,
        why: Exception,
        *,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Tell the other ranks that this one does not save the step: their saves of it are aborted,
        naming it and why. It counts as this rank's save: the n-th of a step meets the n-th of all
        others. Never raises: `why` is on its way up.
        """
        with suppress(CkptError, OSError):
            self._check_usable()
            name, number, place = (
                check_run_name(run),
                check_step(step),
                find_place(rank, world_size),
            )
            if place.world_size > 1:
                with self._lock:
                    self._connection.ensure_cluster()
                    text = why.message if isinstance(why, CkptError) else repr(why)
                    self._stager(place).refuse(next_save_number(), name, number, text)

    # ----------------------------------------------------------------------- loading

    def resolve(
        self,
        run: str,
        step: int | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        timeout_s: float = RESOLVE_TIMEOUT_S,
        fallback: bool = False,
    ) -> Checkpoint:
        """The committed checkpoint of a step, else the newest: pinned against deletion until it is
        closed.

        It is the same for all ranks of a launch, with a step's number too: once one of them has
        loaded it, no other loads another, even if the step is saved again meanwhile. When all of
        them have it, or their launch has saved the step again, the next load sees the newest.

        A store that was opened with `durable` also finds what is lost in the tier, or out of reach
        for `timeout_s` seconds, and whole in the object store: it loads from there, with a warning.

        Raises NotFound; Unavailable when it is out of reach for `timeout_s` (`fallback=True` takes
        an older step instead), or when this rank has saved the step and its launch has not
        committed it yet; Lost when it is damaged beyond repair, or was lost or deleted after
        another rank of the launch had loaded it.
        """
        from ckpt_client.load.checkpoint import resolve

        self._check_usable()
        name = check_run_name(run)
        number = check_step(step) if step is not None else None
        place = find_place(rank, world_size)
        self._connection.ensure_answers()
        join = self._control.join if number is None else self._control.join_to_read
        joined = join(name, place.rank, place.world_size)
        found = resolve(
            self._connection.reader(self._settings.durable), name, number,
            rank=place.rank, world_size=place.world_size, joined=joined,
            launch_key=self._settings.launch, timeout_s=timeout_s, fallback=fallback,
        )  # fmt: skip
        if joined is not None and number is None:
            self._control.resolved(name, place.rank, place.world_size, joined.turn)
        return found

    def load(
        self,
        run: str,
        step: int | None = None,
        like: object = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        strict: bool = True,
        whole: bool = False,
        timeout_s: float = RESOLVE_TIMEOUT_S,
        fallback: bool = False,
    ) -> object:
        """`resolve`, `Checkpoint.load` and close: this rank's own tree, what `like` asks for, or
        the union of all ranks' trees (`whole`). Raises what these do.

        What the tier does not have, has evicted or has lost comes from the `durable` store, with a
        warning: the step that is named, else the newest one there.
        """
        try:
            checkpoint = self.resolve(
                run, step, rank=rank, world_size=world_size, timeout_s=timeout_s, fallback=fallback
            )
        except (NotFound, Lost) as error:
            # Lost without a number may be one that other ranks of the launch have.
            if not self._settings.durable or (step is None and isinstance(error, Lost)):
                raise
            from ckpt_client.load import from_store

            place = find_place(rank, world_size)
            return from_store.load_instead(
                self._connection, self._settings.durable, run, step, like, place, error,
                launch_key=self._settings.launch, timeout_s=timeout_s, strict=strict, whole=whole,
            )  # fmt: skip
        try:
            return checkpoint.load(like=like, strict=strict, whole=whole)
        finally:
            checkpoint.close()

    # ----------------------------------------------------------------------- looking

    def steps(self, run: str) -> list[Commit]:
        """The newest commit of each step, ascending. A run that never saved has none."""
        self._check_usable()
        self._connection.ensure_answers()
        views = _steps_decoder.decode(self._control.ask("steps", check_run_name(run)))
        newest: dict[int, Commit] = {}
        for view in views:
            if view.state == "committed":
                newest[view.step] = commit_from_view(view)
        return [newest[step] for step in sorted(newest)]

    def latest(self, run: str) -> int | None:
        """The number of the newest committed step, or None."""
        commits = self.steps(run)
        return commits[-1].step if commits else None

    def verify(self, run: str, step: int) -> VerifyReport:
        """Have the targets read a checkpoint whole, where it lies, and compare its checksums.

        Raises NotFound, Unavailable, Lost; what is damaged is in the report.
        """
        from ckpt_client.load import verify

        self._check_usable()
        self._connection.ensure_answers()
        return verify.verify(self._connection.reader(), check_run_name(run), check_step(step))

    def delete(self, run: str, step: int) -> None:
        """Delete all generations of a step. Raises NotFound, and Busy while somebody reads it."""
        from ckpt.format.messages.asking import DeleteStep, StepDeleted

        self._check_usable()
        self._connection.ensure_answers()
        question = DeleteStep(check_run_name(run), check_step(step))
        self._control.call(question, StepDeleted, timeout_s=DELETE_TIMEOUT_S)

    # ----------------------------------------------------------------------- ending

    def close(self, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
        """Wait until all that was saved is committed, then let go. Idempotent.

        Raises the error of a save that nobody has heard of yet, and Unavailable after `timeout_s`
        seconds: the stager finishes all the same what was handed over.
        """
        if self._closed:
            return
        self._check_usable()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        late = 0
        with self._lock:
            for stager in self._stagers.values():
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                with suppress(CkptError):  # A stager's end is told by its saves.
                    if not _wait_idle(stager, left):
                        late += stager.pending_count
            try:
                self.raise_untold()
            finally:
                self._leave()
        if late:
            raise Unavailable(
                f"{late} saves were not committed within {timeout_s:g} s; their stager goes on",
                hint="open the store again and look at steps()",
            )

    def _leave(self) -> None:
        self._closed = True
        for stager in self._stagers.values():
            park(self._connection.cluster, stager)
        self._stagers.clear()
        self._connection.close()

    # ----------------------------------------------------------------------- inside

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise Refused(
                f"this store was opened by process {self._pid}, this is a forked child of it",
                hint="open a store in the child",
            )
        if self._closed:
            raise Refused("this store is closed")

    def _stager(self, place: RankPlace) -> StagerLink:
        """The rank's stager; when there is none, or when it was killed, that of the store which
        this process closed last, else a new one.
        """
        known = self._stagers.get(place)
        if known is not None and known.alive:
            return known
        if known is not None:
            known.close()
        stager = self._stagers[place] = find_stager(self._connection, self._settings, place)
        return stager


def _wait_idle(stager: StagerLink, timeout_s: float | None) -> bool:
    """Until none of its saves is under way; False when time is up first."""
    return stager.wait_until(lambda: stager.pending_count == 0, timeout_s)
