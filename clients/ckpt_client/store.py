"""`ckpt.open`: where a training script saves to and loads from.

A store has one connection to the coordinator and, once something is saved, one stager for each rank
that saves through it (nearly always one). It belongs to the process that opened it.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, SupportsFloat
from weakref import WeakSet

import msgspec

from ckpt.base.errors import CkptError, Lost, NotFound, Refused, Unavailable
from ckpt.base.ids import RunName, check_run_name, check_step
from ckpt.base.units import check_seconds, counted
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.connection import Connection
from ckpt_client.environment import RankPlace, find_place, find_saver
from ckpt_client.handlers import refuse_inside
from ckpt_client.here_only import HereOnly
from ckpt_client.keeper import Keeper
from ckpt_client.save.handle import Commit, Save, commit_from_view
from ckpt_client.save.links.stagers import Stagers
from ckpt_client.save.preparation import Preparation
from ckpt_client.save.turn import SaveTurn, staging_overlaps
from ckpt_client.settings import Settings, checked_settings
from ckpt_client.url import LocalUrl, RemoteUrl, parse_url

if TYPE_CHECKING:
    from ckpt_client.control import Control
    from ckpt_client.load.checkpoint import Checkpoint
    from ckpt_client.load.verify import VerifyReport
    from ckpt_client.preemption.guard import PreemptionGuard

CLOSE_TIMEOUT_S: Final = 120.0
START_TIMEOUT_S: Final = 60.0
RESOLVE_TIMEOUT_S: Final = 30.0
GRACE_S: Final = 30.0
"""Kubernetes' own, and torchrun's."""
SIGNALS: Final = ("SIGTERM", "SIGUSR1")
_steps_decoder = msgspec.json.Decoder(list[StepView])
#: Of this process and of those that it was forked from.
_open_stores: Final[WeakSet[Store]] = WeakSet()


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
        taken from the environment (torchrun, Slurm, PALS, MPI); without one there, ranks that come
        again begin a new launch.
    replicas: what to do when Replicated leaves differ between ranks: `abort` the save, or `keep`
        each value that differs.
    when_full: what a save does while earlier ones hold all of the staging memory: `wait`, `error`
        (it raises Busy) or `skip` (it stores nothing, warns, and returns a Save that says so).
    unchanged: `warn` of a save in which no tensor, or no optimizer state, has changed since the
        run's last save through this store, or `ignore` it.
    references: whether a save refers to what has not changed since the run's last committed save
        through this store (tensors of 64 KiB and more); False writes it again.
    arena_bytes_max: the most bytes of staging memory for this rank, both halves together. Default:
        half of the host's memory, or of what the job's control group may have.
    stager_idle_s: how many seconds the stager stays after its store is closed, so that a restart
        can read from its memory, and the other ranks hear at once when this process ends.
    start_timeout_s: how many seconds to wait for a cluster that is coming up: a local one that this
        call starts, or one whose coordinator says that its targets are not there yet.
    durable: URL of the object store that `ckptd drain` fills, such as `s3://bucket/runs`: loads
        take from it what the tier does not have, has evicted or lost, or cannot give now.
        Default: $CKPT_DURABLE.

    Raises Refused for a bad URL or contradicting options, Unauthorized when the cluster's secret is
    missing or wrong, Unavailable when the cluster does not answer in time.
    """
    refuse_inside()
    settings = checked_settings(
        launch=launch, replicas=replicas, when_full=when_full, unchanged=unchanged,
        references=references, arena_bytes_max=arena_bytes_max, stager_idle_s=stager_idle_s,
        start_timeout_s=start_timeout_s, durable=durable,
    )  # fmt: skip
    return Store(parse_url(url), settings)


class Store(HereOnly, Keeper):
    """An open store: a training's ranks save to it and load from it. `open` returns it.

    Use it in a `with`, or close it. Its methods may be called from several threads. `rank` and
    `world_size` come from the environment (torchrun, Slurm, PALS, MPI); give both, or neither.
    """

    def __init__(self, url: LocalUrl | RemoteUrl, settings: Settings) -> None:
        self._url = url
        self._settings = settings
        self._pid = os.getpid()
        #: True until the connection stands, and again from the end of `close`.
        self._closed = True
        self._connection = Connection(url, settings.launch, settings.start_timeout_s)
        self._stagers = Stagers(self._connection, settings)
        self._control = self._connection.control
        #: They end with this store.
        self._guards: set[PreemptionGuard] = set()
        self._closed = False
        _open_stores.add(self)

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
            for guard in self._guards:
                guard.store_is_gone()
            self._leave()

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""
        return self._closed

    # ----------------------------------------------------------------------- saving

    def prepare(
        self,
        state: object,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        replicated: bool = False,
    ) -> Future[None]:
        """Start this rank's stager and make its staging memory, beside the training, so that the
        first save of a state like this one is as fast as the others.

        It reads nothing of the state, and no save needs to wait for it. Call it again when the
        state has grown. The future is done when all is ready, or raises what a save would: NoSpace,
        Unavailable, Aborted. You need not ask it: its error is logged.

        Raises Refused as `save` does.
        """
        preparation = self.preparation(rank=rank, world_size=world_size)
        return preparation.begin(preparation.lay_out(state, replicated=replicated))

    def preparation(self, *, rank: int | None = None, world_size: int | None = None) -> Preparation:
        """`prepare` in parts, for adapters."""
        self._check_usable()
        return Preparation(self._stagers, find_place(rank, world_size))

    def join(self, run: str, *, rank: int | None = None, world_size: int | None = None) -> None:
        """Announce, before its first save, that this process saves as that rank. For a process that
        saves as several ranks: if it ends between two of them, the first save is aborted, not
        awaited.
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
        metrics: Mapping[str, SupportsFloat] | None = None,
        staging: str = "copy",
    ) -> Save:
        """Copy this rank's state and return; sending and committing go on beside the training.

        state: dicts, lists and tuples of arrays (numpy's, or with `__dlpack__` or `__array__`),
            plain values, Shard, Shards and Replicated. It may be changed when this returns. A
            numpy scalar is an array without axes, and loads as one.
        replicated: every leaf that is not a Shard is the same on all ranks, and is stored once.
        check_finite: refuse a tensor that holds NaN or infinity, and name it, before anything is
            staged. This reads each tensor once more.
        metrics: what was measured at the step, such as {"loss": 0.3}: at most 64 finite numbers.
            `keep(best=...)` chooses by them; `steps`, `ckpt ls --json` and `ckpt show` list them.
            If several ranks give some, those of the lowest rank count.
        staging: `copy`, or `overlap`, which returns before the state is copied and copies it beside
            the training: change nothing of it before `Save.staged.wait()`. An array that is seen to
            change earlier ends the save on all ranks with an error that names it; only a sample of
            its elements is compared. With `overlap` a lack of staging memory ends the Save, not
            this call.

        Raises Refused, with its path, for what cannot be stored. That refuses the step: the other
        ranks' saves of it are aborted with this rank's name and reason, and the next save of the
        step begins another attempt on all ranks.

        Raises, once, the error of an earlier save that was not raised yet. Nothing was staged
        then, and the other ranks' saves of this step wait: call it again.
        """
        turn = self.turn(run, step, rank=rank, world_size=world_size)
        self.check_for_errors()
        with turn:
            turn.say(metrics)
            overlaps = staging_overlaps(staging)
            turn.pack(state, replicated=replicated, check_finite=check_finite)
        return turn.overlap() if overlaps else turn.stage()

    def turn(
        self,
        run: str,
        step: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        begun_s: float | None = None,
    ) -> SaveTurn:
        """`save` in parts, for adapters whose ranks talk to each other in between.

        begun_s: `time.monotonic()` when the training stopped for this save; default: now.
        """
        self._check_usable()
        name, number, place = check_run_name(run), check_step(step), find_saver(rank, world_size)
        begun_s = time.monotonic() if begun_s is None else begun_s
        return SaveTurn(self._stagers, name, number, place, begun_s=begun_s, store=self)

    def check_for_errors(self) -> None:
        """Do what `save` does first: raise, once, the error of an earlier save that was not raised
        yet, and issue the warnings of commits. It refuses nothing. Where ranks save together, call
        it where the others hear what one of them raises.
        """
        self._stagers.raise_unheard()

    def preemption(
        self,
        run: str,
        *,
        grace_s: float = GRACE_S,
        signals: Sequence[str] = SIGNALS,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> PreemptionGuard:
        """Watch for signals that ask a rank's process to end. Once any rank gets one, the guard's
        `should_save(step)` is True on all ranks at the same step. Every rank of the launch must
        have a guard.

        grace_s: seconds from the signal to the kill.
        signals: which ones. Each is still passed on to the handler that it had, if it had one.

        Until the guard or the store is closed, these signals no longer end this process.

        Raises Refused outside of the main thread, for a name that is no signal, and when the run
        already has a guard in this process; Unavailable when the coordinator does not answer.
        """
        from ckpt_client.preemption.guard import watch_for_preemption

        self._check_usable()
        name, place = check_run_name(run), find_place(rank, world_size)
        self._connection.ensure_answers()
        guard = watch_for_preemption(
            self._control, self._stagers, name, place, grace_s=grace_s, signals=signals
        )
        self._guards.add(guard)
        return guard

    # ----------------------------------------------------------------------- loading

    def resolve(
        self,
        run: str,
        step: int | str | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        timeout_s: float = RESOLVE_TIMEOUT_S,
        fallback: bool = False,
    ) -> Checkpoint:
        """Find the committed checkpoint of a step, or of a name (`tag`), else the newest, and hold
        it against deletion until it is closed.

        All ranks of a launch get the same one, by a step's number as well: once one rank has loaded
        it, the others load no other, even if the step is saved again meanwhile. When all of them
        have it, or their launch has saved the step again, the next load sees the newest. By a name
        each rank gets what has the name at that moment: do not move the name meanwhile.

        A store that was opened with `durable` also finds a checkpoint that the tier has lost, or
        that is out of reach for `timeout_s` seconds, if the object store has it whole. It loads
        from there, with a warning.

        Raises NotFound; Unavailable when it is out of reach for `timeout_s` (`fallback=True` takes
        an older step instead), or when this rank has saved the step and its launch has not
        committed it yet; Lost when it is damaged beyond repair, or was lost or deleted after
        another rank of the launch had loaded it.
        """
        from ckpt_client.load.checkpoint import resolve

        self._check_usable()
        name, timeout_s = check_run_name(run), check_seconds("timeout_s", timeout_s)
        place = find_place(rank, world_size)
        if isinstance(step, str):
            return self._resolve_named(name, step, place, timeout_s)
        number = check_step(step) if step is not None else None
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

    def _resolve_named(
        self, run: RunName, name: str, place: RankPlace, timeout_s: float
    ) -> Checkpoint:
        from ckpt_client import labels
        from ckpt_client.load.checkpoint import resolve

        self._connection.ensure_answers()
        step, generation = labels.named(self._control, run, name)
        return resolve(
            self._connection.reader(self._settings.durable), run, step,
            rank=place.rank, world_size=place.world_size, launch_key=self._settings.launch,
            timeout_s=timeout_s, only=generation,
        )  # fmt: skip

    def load(
        self,
        run: str,
        step: int | str | None = None,
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

        If the tier does not have the checkpoint, has evicted or lost it, it comes from the
        `durable` store, with a warning: the step that is named, else the newest one there.
        """
        try:
            checkpoint = self.resolve(
                run, step, rank=rank, world_size=world_size, timeout_s=timeout_s, fallback=fallback
            )
        except (NotFound, Lost) as error:
            if isinstance(step, str):
                raise  # Names are known to the tier alone.
            from ckpt_client.load.tier_or_store import load_unresolved

            place = find_place(rank, world_size)
            return load_unresolved(
                self._connection, self._settings, error, run, step, place, like,
                timeout_s=timeout_s, strict=strict, whole=whole,
            )  # fmt: skip
        try:
            return checkpoint.load(like=like, strict=strict, whole=whole)
        finally:
            checkpoint.close()

    # ----------------------------------------------------------------------- looking

    def steps(self, run: str) -> list[Commit]:
        """The newest commit of each step, ascending; empty for a run that never saved. Steps that a
        rollback has set aside are left out: `names` lists them. A step that the tier has lost and
        an object store has is listed if this store was opened with `durable`, as its loads find it
        there.
        """
        self._check_usable()
        self._connection.ensure_answers()
        views = _steps_decoder.decode(self._control.ask("steps", check_run_name(run)))
        newest: dict[int, Commit] = {}
        for view in views:
            can_be_had = view.state == "committed" or bool(view.stored and self._settings.durable)
            if can_be_had and not view.aside:
                newest[view.step] = commit_from_view(view)
        return [newest[step] for step in sorted(newest)]

    def latest(self, run: str) -> int | None:
        """The number of the newest committed step, or None."""
        commits = self.steps(run)
        return commits[-1].step if commits else None

    def verify(self, run: str, step: int) -> VerifyReport:
        """Have the targets read all of a checkpoint where it lies, and compare its checksums.

        Damage that parity cannot mend is reported to the coordinator, as a load does; once the
        coordinator proves it, the checkpoint is lost. All damage is in the report. Raises NotFound,
        Unavailable, Lost.
        """
        from ckpt_client.load import verify

        self._check_usable()
        self._connection.ensure_answers()
        return verify.verify(self._connection.reader(), check_run_name(run), check_step(step))

    # ----------------------------------------------------------------------- ending

    def close(self, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
        """Wait until all saves are committed, then close the store. Idempotent.

        Raises the error of a save that was not raised yet, and Unavailable after `timeout_s`
        seconds; the stager still finishes what was handed over.
        """
        if self._closed:
            return
        self._check_usable()
        if timeout_s is not None:
            timeout_s = check_seconds("timeout_s", timeout_s)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._stagers.lock:
            late = self._stagers.wait(deadline_s)
            try:
                self.check_for_errors()
            finally:
                self._leave()
        if late:
            saves = counted(late, "save", "was", "were")
            raise Unavailable(
                f"{saves} not committed within {timeout_s:g} s; the stager goes on",
                hint="open the store again and look at steps()",
            )

    def _leave(self) -> None:
        """Again from where a Ctrl-C has ended it, when it is called again."""
        while self._guards:
            self._guards.pop().close()
        self._stagers.park()
        self._connection.close()
        self._closed = True
        _open_stores.discard(self)

    # ----------------------------------------------------------------------- inside

    def _instead(self) -> str:
        return f"open one in the process that uses it: ckpt.open({str(self._url)!r})"

    def _talk(self) -> Control:
        """To the coordinator, which answers."""
        self._check_usable()
        self._connection.ensure_answers()
        return self._control

    def _check_usable(self) -> None:
        refuse_inside()
        if self._pid != os.getpid():
            raise Refused(
                f"this store was opened by process {self._pid}, this is a forked child of it",
                hint="open a store in the child",
            )
        if self._closed:
            raise Refused("this store is closed")


def _leave_stores() -> None:
    """What is open when the interpreter ends. Later modules may be empty, and `__del__` cannot."""
    for store in list(_open_stores):
        if store._pid == os.getpid():
            with suppress(CkptError):
                store._leave()


atexit.register(_leave_stores)
