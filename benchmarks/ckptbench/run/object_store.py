"""The object store of a job with `durable=`: its drains, fetches and loads, and a place of its own.

A drain is a `ckptd drain` that lives as long as the job, is stopped (SIGSTOP) during a save, and
looks every 50 ms: its clock runs from the moment after the commit when it may go on, until the
coordinator knows that the checkpoint is verified in the store. A fetch is what `ckpt fetch` does,
by a fresh process, of a step that was deleted from the tier: its clock ends with the commit. Both
have one mover, reported as rank 0.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, unquote

from ckpt.aio.secret import read_secret
from ckpt.base.errors import Busy, NotFound, Unavailable
from ckpt.base.ids import check_run_name, check_step
from ckpt.base.units import MiB
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.probe import probe_conditional
from ckpt.objects.sinks.retry import Patience
from ckpt.objects.sinks.stores import open_sink
from ckpt.objects.tier_source import TierSource
from ckpt.objects.writer import WriteLimits, write_checkpoint
from ckpt.protocol.coordinator.reading.answers import StoreStatus
from ckptbench import proc
from ckptbench.cluster import BenchCluster
from ckptbench.faults.words import Fault
from ckptbench.job.options import JobOptions
from ckptbench.ranks import NOW, RankGroup
from ckptbench.results import CheckpointFigures, RankTimes
from ckptbench.run.checkpoints import Bench, Moment, load_times
from ckptbench.run.shelf import ShelvedStep
from ckptbench.run.watch import RunWatch

TIMEOUT_S: Final = 600.0
POLL_S: Final = 0.02
SERVED_TIMEOUT_S: Final = 30.0
FORGET_TIMEOUT_S: Final = 30.0
ASIDE_FLAGS: Final = ("--poll-s", "0.05", "--compression", "none")
"""Of the drain beside a save: it finds the step at once, and takes no CPU to make it smaller."""
LIMITS: Final = WriteLimits(threads=2, memory_bytes=256 * MiB)
PATIENCE: Final = Patience(20.0)
"""Of ours with the store; the drain has its own."""
CHECK_PATIENCE: Final = Patience(5.0)
"""Of the questions before anything is started."""
FILE: Final = "file://"


def check_store(url: str) -> None:
    """A store beyond this machine answers, and takes and gives back an object, before anything is
    started for it. Raises NotFound, Unauthorized, Unavailable, Refused.
    """
    sink = open_sink(url, patience=CHECK_PATIENCE)
    if not url.startswith(FILE):
        probe_conditional(sink)


class ObjectStore:
    """I serve one job on the run's own cluster. I expect to be entered before its ranks start;
    afterwards the store holds nothing of it, and the cluster knows nothing of the store.
    """

    def __init__(self, cluster: BenchCluster, options: JobOptions) -> None:
        place = options.durable.rstrip("/") or f"{FILE}{quote(str(cluster.directory))}"
        self.url = f"{place}/ckptbench-{secrets.token_hex(4)}"
        self._cluster, self._options = cluster, options
        self._run = check_run_name(options.run)
        self._sink = open_sink(self.url, patience=PATIENCE)
        #: The drain worker's name in the cluster; empty without one.
        self._drain = ""

    def __enter__(self) -> Self:
        if self._options.rw == "drain":
            self._drain = self._cluster.start_drain(f"{self.url}?runs={self._run}")
            self._wait_served()
        return self

    def __exit__(self, *_: object) -> None:
        if self._drain:
            self._go_on()
            self._cluster.end(self._drain)
            self._forget(self.url)
        self._remove()

    def hold(self) -> None:
        """Until the next drain nothing is drained."""
        os.kill(self._cluster.pid(self._drain), signal.SIGSTOP)

    def drain(
        self, bench: Bench, saved: ShelvedStep, moment: Moment, faults: Sequence[Fault]
    ) -> CheckpointFigures:
        """What was committed since `hold`."""
        size = sum(saved.plan.rank_bytes)
        watch = RunWatch(
            bench.shelf, None, "write", faults, moment.number, self._cluster.pid(self._drain)
        )
        begun = watch.begin(size, self._go_on)
        error = ""
        try:
            self._wait_drained(saved.step)
        except Unavailable as failed:
            error = str(failed)
        finally:
            done = time.monotonic_ns() - begun
            watch.stop(0.0, counts_wire=bench.counts_wire)
        return CheckpointFigures(
            number=moment.number,
            step=saved.step,
            kind="drain",
            counts=moment.counts,
            begun_s=begun / 1e9 - moment.began_s,
            ranks=(
                RankTimes(
                    0,
                    size,
                    0,
                    done,
                    done,
                    error=error,
                    exit_code=Unavailable.exit_code if error else 0,
                ),
            ),
            spent=watch.spent,
            source="tier",
            faults=watch.notes,
            strikes=watch.strikes,
            samples=watch.samples,
        )

    @contextlib.contextmanager
    def draining(self, number: int) -> Iterator[None]:
        """A worker writes the run's newest step into a place of its own: seen at work when this
        begins, ended when it ends. Unlike `drain`'s, it steps aside for bursts, as in production.
        """
        url = f"{self.url}/{number}"
        worker = self._cluster.start_drain(f"{url}?runs={self._run}", flags=ASIDE_FLAGS)
        try:
            self._wait_until_at_work(worker, url)
            yield
        finally:
            self._cluster.end(worker)
            self._forget(url)

    def put(self, saved: ShelvedStep) -> None:
        """Write a committed step, unmeasured, as `ckpt export --format zarr` does."""
        source = TierSource.open(
            self._cluster.url.removeprefix("ckpt://"),
            self._run,
            check_step(saved.step),
            secret=read_secret(self._cluster.directory / "secret"),
            name="ckptbench",
        )
        try:
            write_checkpoint(self._sink, source, WriteOptions(), LIMITS)
        finally:
            source.close()

    def withdraw(self, saved: ShelvedStep) -> None:
        """From now on only I hold it."""
        self._cluster.delete_step(self._run, check_step(saved.step))

    def fetch(
        self,
        bench: Bench,
        ranks: RankGroup,
        saved: ShelvedStep,
        moment: Moment,
        faults: Sequence[Fault],
    ) -> CheckpointFigures:
        """By the one process of `ranks`, that was started for it."""
        cache = self.drop_cache()
        watch = RunWatch(bench.shelf, ranks, "write", faults, moment.number)
        lines = [f"fetch {saved.step} {NOW}"]
        begun = watch.begin(sum(saved.plan.rank_bytes), lambda: ranks.begin(lines))
        (answer,) = ranks.answers()
        watch.stop(answer.usage.cpu_s, counts_wire=bench.counts_wire)
        if not answer.error:
            ranks.finish()
        return CheckpointFigures(
            number=moment.number,
            step=saved.step,
            kind="fetch",
            counts=moment.counts,
            begun_s=begun / 1e9 - moment.began_s,
            ranks=(load_times(0, answer),),
            spent=watch.spent,
            cache=cache,
            source=answer.source,
            faults=watch.notes,
            strikes=watch.strikes,
            samples=watch.samples,
        )

    # ----------------------------------------------------------------------- inside

    def _forget(self, url: str) -> None:
        """The coordinator waits a moment for a worker that is gone. Raises Busy when it stays."""
        deadline_s = time.monotonic() + FORGET_TIMEOUT_S
        while True:
            try:
                self._cluster.forget_store(url)
            except NotFound:
                return  # It never came so far as to be known.
            except Busy:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(POLL_S)
            else:
                return

    def _go_on(self) -> int:
        os.kill(self._cluster.pid(self._drain), signal.SIGCONT)
        return time.monotonic_ns()

    def _wait_served(self) -> None:
        """Until the worker waits for commits. Raises Unavailable."""
        deadline_s = time.monotonic() + SERVED_TIMEOUT_S
        while (found := self._status(self.url)) is None or not found.workers:
            if time.monotonic() >= deadline_s:
                raise Unavailable(f"no drain serves {self.url} in time")
            time.sleep(POLL_S)

    def _wait_until_at_work(self, worker: str, url: str) -> None:
        """Raises Unavailable."""
        deadline_s = time.monotonic() + SERVED_TIMEOUT_S
        while (found := self._status(url)) is None or not found.parts:
            if time.monotonic() >= deadline_s or not self._cluster.is_running(worker):
                raise Unavailable(f"nothing is drained to {url}")
            time.sleep(POLL_S)

    def _wait_drained(self, step: int) -> None:
        """Raises Unavailable when an attempt failed, or the time is over."""
        name, failed = f"{self._run}@{step}", None
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            found = self._status(self.url)
            if found is not None:
                failed = found.failed if failed is None else failed
                if found.last == name:
                    return
                if found.failed > failed:
                    raise Unavailable(f"{name} cannot be drained: {found.error}")
            if not self._cluster.is_running(self._drain):
                raise Unavailable(f"{name} is not drained: the drain has ended")
            time.sleep(POLL_S)
        raise Unavailable(f"{name} is not drained after {TIMEOUT_S:g} s")

    def _status(self, url: str) -> StoreStatus | None:
        """None while no worker has reported the store to the coordinator."""
        stores = self._cluster.status().stores
        return next((one for one in stores if one.url == url), None)

    def drop_cache(self) -> str:
        """Of the store's files, where they lie here."""
        if not self._options.invalidate:
            return "as it was"
        if not self.url.startswith(FILE):
            return "not ours to drop"
        proc.drop_cached([one for one in self._folder().rglob("*") if one.is_file()])
        return "dropped"

    def _folder(self) -> Path:
        return Path(unquote(self.url.removeprefix(FILE)))

    def _remove(self) -> None:
        if self.url.startswith(FILE):
            shutil.rmtree(self._folder(), ignore_errors=True)
        else:
            for upload in self._sink.pending_uploads(""):
                self._sink.abort_upload(upload)
            self._sink.delete(list(self._sink.list("")))
