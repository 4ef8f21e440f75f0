"""A CheckpointIO whose checkpoints are steps of one run."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final, SupportsFloat, cast

import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from ckpt.base.errors import Refused
from ckpt_client.save.handle import Commit
from ckpt_client.save.turn import staging_overlaps
from ckpt_client.store import Store
from ckpt_torch.buffers import weights_of_rank
from ckpt_torch.lightning import paths
from ckpt_torch.lightning.metrics import KEY
from ckpt_torch.lightning.paths import FilePath, Paths
from ckpt_torch.place import Where, find_where, find_who
from ckpt_torch.preparing import prepare_ahead
from ckpt_torch.reading.loading import load
from ckpt_torch.reading.whole import load_whole, whole_of
from ckpt_torch.saving import async_save, wait_for
from ckpt_torch.staging.guard import guard

CHECKED: Final = ("state_dict", "optimizer_states")
Metrics = Mapping[str, SupportsFloat]


def given_with(storage_options: object | None) -> Metrics | None:
    """The `metrics` of Lightning's storage_options. Raises Refused for any other option."""
    if storage_options is None:
        return None
    if isinstance(storage_options, Mapping) and set(storage_options) <= {"metrics"}:
        return cast(Metrics | None, storage_options.get("metrics"))
    raise Refused(
        f"storage_options={storage_options!r}: CkptIO takes metrics and nothing else",
        hint='storage_options={"metrics": {"loss": 0.3}}',
    )


def _check_is_of_one(name: str, callbacks: object) -> None:
    """Raises Refused for a path that several ModelCheckpoints have saved to: the top-k of one would
    delete what another keeps.
    """
    states = callbacks.values() if isinstance(callbacks, Mapping) else ()
    owners = [state for state in states if isinstance(state, Mapping) and _has(state, name)]
    if len(owners) > 1:
        raise Refused(
            f"{name} is of two callbacks, each of which would replace and delete the other's",
            hint="CkptModelCheckpoint in their places gives the second one -v1, as among files; "
            "or another filename= or dirpath= for each",
        )


def _has(state: Mapping[str, object], name: str) -> bool:
    """Whether a ModelCheckpoint's state names the path as one of its own."""
    kept = state.get("best_k_models")
    own = [state.get("best_model_path"), state.get("last_model_path")]
    own += list(kept) if isinstance(kept, Mapping) else []
    return any(isinstance(path, str) and path and paths.absolute(path) == name for path in own)


class CkptIO(CheckpointIO):
    """I keep a trainer's checkpoints as steps of one run, named by Lightning's paths.

    Saves go on beside the training; `teardown` waits for them.

    run: `ckpt://HOST:PORT/RUN`, `ckpt+local:///DIR/RUN`, or RUN in `store`, else in $CKPT_STORE's.
    allow_pickle: store objects that are not plain data as pickles, for callbacks and
        hyperparameters that need it; else they are refused by path.
    check_finite: refuse a model or optimizer state with a tensor that holds NaN or infinity, and
        name its path. States of callbacks are not checked: ModelCheckpoint has an infinite
        `kth_value`.
    staging: with `overlap` the training goes on before the checkpoint is copied, and until
        `teardown` every optimizer of this process waits for the copy before it steps. Anything else
        that changes the state earlier, such as a BatchNorm's forward, ends the save with an error
        that names it: see `ckpt_torch.async_save`.
    """

    def __init__(
        self,
        run: FilePath,
        *,
        store: Store | str | None = None,
        allow_pickle: bool = False,
        check_finite: bool = False,
        staging: str = "copy",
    ) -> None:
        self._run = os.fspath(run).rstrip("/")
        self._store = store
        self._allow_pickle = allow_pickle
        self._check_finite = check_finite
        self._staging = staging
        self._guard = guard() if staging_overlaps(staging) else None
        self._paths = Paths()
        #: This process is ready for saves, or one went out.
        self._is_ready = False
        #: Saves that were handed over and are not known to be committed, oldest first.
        self._pending: list[Future[Commit]] = []

    def save_checkpoint(
        self, checkpoint: dict[str, object], path: FilePath, storage_options: object | None = None
    ) -> None:
        """Copy the checkpoint of one process that holds all of it.

        storage_options: None, or `{"metrics": {...}}`, what was measured at the step, as
            `ckpt_torch.save` takes it: `trainer.save_checkpoint(path, storage_options=...)`.

        Raises Refused: with its path for what cannot be stored, for other options, and for a metric
        that is no finite number.
        """
        self.save(checkpoint, path, no_dist=True, metrics=given_with(storage_options))
        if threading.current_thread() is not threading.main_thread():
            # Lightning's AsyncCheckpointIO ends when its own thread does, and never asks mine.
            self.wait()

    def load_checkpoint(
        self, path: FilePath, map_location: object | None = None, weights_only: bool | None = None
    ) -> dict[str, object]:
        """The checkpoint as new CPU tensors. Raises what `load_whole` and an earlier save do."""
        self.wait()
        where, which = self._which(path)
        if isinstance(which, str):
            who = find_who(None, no_dist=False)
            with where.store.resolve(
                where.run, which, rank=who.rank, world_size=who.world_size
            ) as checkpoint:
                state = whole_of(checkpoint, allow_pickle=self._allow_pickle)
        else:
            name = self._run if which is None else f"{self._run}/{which}"
            state = load_whole(name, store=self._store, allow_pickle=self._allow_pickle)
        assert isinstance(state, dict)
        return state

    def remove_checkpoint(self, path: FilePath) -> None:
        """Remove this path, and the checkpoint if no other path names it, once all earlier saves
        are committed. A path that names nothing removes nothing.
        """
        where = self._where()
        self._paths.remove(where.store, where.run, paths.name_of(path))

    def link(self, path: FilePath, to: FilePath) -> None:
        """Give what was saved to `to` another path, like a link to a file."""
        where = self._where()
        self._paths.link(where.store, where.run, paths.name_of(path), paths.name_of(to))

    def is_taken(self, path: FilePath) -> bool:
        """Whether a save of the run has that path, or will get it. Raises Unavailable."""
        where = self._where()
        return self._paths.is_taken(where.store, where.run, paths.name_of(path))

    def refuse_last(self) -> None:
        """Raises Refused, where the run has a step, for a search among files; Unavailable."""
        where = self._where()
        newest = where.store.latest(where.run)
        if newest is not None:
            raise Refused(
                f'ckpt_path="last" looks for files, and {where.run} has step {newest} in its store',
                hint=f'ckpt_path="{self._run}" is the newest step; or name a path of the run',
            )

    def teardown(self) -> None:
        """Wait until everything is committed, named and removed. Raises the first error."""
        self.wait()
        self._paths.close()
        if self._guard is not None:
            self._guard.remove()

    # ----------------------------------------------------------------------- for strategies too

    def prepare(self, state: dict[str, object], *, no_dist: bool) -> None:
        """Make this rank ready, once and beside the training, for saves of checkpoints that hold
        such a state, unless it has saved already; with `no_dist` it saves alone.
        """
        if not self._is_ready:
            self._is_ready = True
            prepare_ahead(
                state, checkpoint_id=self._run, store=self._store, no_dist=no_dist,
                allow_pickle=self._allow_pickle,
            )  # fmt: skip

    @property
    def is_ready(self) -> bool:
        """Whether nothing is left to prepare."""
        return self._is_ready

    def save(
        self,
        checkpoint: dict[str, object],
        path: FilePath,
        *,
        no_dist: bool,
        metrics: Metrics | None = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        """Copy what this rank holds; with `no_dist` it saves alone. Raises Refused, before anything
        is copied, for a path that cannot be a name, or that two callbacks use.

        metrics: in place of what CkptMetrics has put into the checkpoint.
        model: whose shards each rank saves; rank 0 saves all else, as in Lightning's own folders.
        """
        who = find_who(None, no_dist=no_dist)
        held = {key: value for key, value in checkpoint.items() if key != KEY}
        if model is not None and who.rank > 0:
            held = {key: value for key, value in held.items() if key in CHECKED}
            weights = cast(Mapping[str, object], held["state_dict"])
            held["state_dict"] = weights_of_rank(model, weights, who.rank)
        measured = cast(Metrics | None, checkpoint.get(KEY))
        step, name = checkpoint.get("global_step"), paths.name_of(path)
        if not isinstance(step, int):
            raise Refused("the checkpoint has no global_step", hint="save through a Trainer")
        _check_is_of_one(name, checkpoint.get("callbacks"))
        self._paths.wait_named(step)
        self._is_ready = True
        future = async_save(
            held,
            checkpoint_id=f"{self._run}/{step}",
            store=self._store,
            no_dist=no_dist,
            allow_pickle=self._allow_pickle,
            check_finite=CHECKED if self._check_finite else False,
            metrics=measured if metrics is None else metrics,
            staging=self._staging,
        )
        self._pending.append(future)
        if who.rank == 0:
            self._paths.name(self._where().store, name, step, future)

    def load_into(self, state: dict[str, object], path: FilePath) -> int:
        """Fill a sharded state, on all ranks; returns its step, the same for all."""
        self.wait()
        return load(
            state,
            checkpoint_id=self._numbered(path),
            store=self._store,
            allow_pickle=self._allow_pickle,
        )

    def load_rest(self, step: int, without: tuple[str, ...]) -> dict[str, object]:
        """The plain part of a sharded checkpoint."""
        name = f"{self._run}/{step}"
        whole = load_whole(name, store=self._store, allow_pickle=self._allow_pickle)
        assert isinstance(whole, dict)
        return {key: value for key, value in whole.items() if key not in without}

    def wait(self) -> None:
        """Wait until all saves are committed and have their names. Raises the first error."""
        wait_for(self._pending)
        self._paths.wait()

    def _where(self) -> Where:
        return find_where(self._run, self._store)

    def _which(self, path: FilePath) -> tuple[Where, int | str | None]:
        """What to load for a path; the run itself is its newest."""
        where = self._where()
        if os.fspath(path).rstrip("/") == self._run:
            return where, None
        return where, paths.find(where.store, where.run, path)

    def _numbered(self, path: FilePath) -> str:
        """By its step, which holds the ranks of a launch together."""
        where, which = self._which(path)
        if isinstance(which, str):
            which = where.store.names(where.run)[which]
        return self._run if which is None else f"{self._run}/{which}"
