"""A real local cluster that drains, as tests see it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import ckpt
from ckpt.base.ids import RunName, Step
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.sink import Sink
from ckpt.objects.stored_steps import stored_steps
from tests.e2e.cluster import Cluster
from tests.objects.sources import same_bits
from tests.waiting import wait_until
from tests.warm_child import start_daemon

DRAIN_TIMEOUT_S = 120.0
ROWS = 3000


FILLER_BYTES = 4 << 20
"""Of each rank's own: damage there is met by this rank alone."""


@contextmanager
def draining(directory: Path, to: str, options: str = "targets=3&code=2+1") -> Iterator[Cluster]:
    """A cluster that drains by itself to these places, and looks five times a second."""
    (directory / "drain.toml").write_text(f'to = "{to}"\npoll_s = 0.2\n')
    made = Cluster(directory, options)
    ckpt.open(made.url).close()
    try:
        yield made
    finally:
        made.stop()


def rot(cluster: Cluster, run: str, step: int, *, rank: int | None = None, at: int = 100) -> None:
    """One byte of more columns than parity mends, of one rank's payload or of all."""
    for files in cluster.columns_of(run).values():
        for file in files:
            _, number, _, of_rank, column = file.name.split("-")
            if int(number) == step and int(column) < 2 and rank in (None, int(of_rank)):
                cluster.flip(file, at)


def state_of(rank: int, step: int) -> dict[str, object]:
    """A shard, a replica, an array of the rank's own, and values."""
    shard = np.arange(rank * ROWS * 500, (rank + 1) * ROWS * 500, dtype="f4").reshape(ROWS, 500)
    return {
        "w": ckpt.Shard(shard + step, (2 * ROWS, 500), (rank * ROWS, 0)),
        "same": ckpt.Replicated({"b": np.full(1000, step), "lr": 0.5}),
        "rng": np.array([rank, step]),
        "step": step,
    }


def save(store: ckpt.Store, run: str, step: int) -> None:
    """Two ranks, committed."""
    saves = [store.save(run, step, state_of(r, step), rank=r, world_size=2) for r in range(2)]
    for one in saves:
        one.wait(60.0)


def wait_drained(sink: Sink, run: str, *steps: int) -> None:
    """Until the store has exactly these committed steps."""

    def holds() -> bool:
        return [step for step, _ in stored_steps(sink, RunName(run))] == list(steps)

    wait_until(holds, f"{run}: steps {steps} in {sink.url}", DRAIN_TIMEOUT_S)


def assert_once_and_whole(sink: Sink, run: str, step: int) -> None:
    """Every byte is right, nothing else lies there, and it is what was saved."""
    stored = open_stored(sink, RunName(run), Step(step))
    stored.verify()
    stored.close()
    prefix = stored.url.removeprefix(sink.url).strip("/") + "/"
    expected = {prefix + file.key for file in stored.manifest.files}
    shards = sum(len(objects) for objects in stored.manifest.objects)
    wait_until(lambda: not sink.children(prefix + "drain/"), "drain/ is cleared", DRAIN_TIMEOUT_S)
    assert len(set(sink.list(prefix)) - expected) == shards + 2, "shards, manifest, marker"
    assert list(sink.list(prefix.partition("/")[0] + "/")) == list(sink.list(prefix))
    # Another worker may be about to find out that it comes too late.
    wait_until(lambda: not sink.pending_uploads(""), "nothing is half written", DRAIN_TIMEOUT_S)


def assert_same(found: object, run_step: int) -> None:
    """The union of both ranks' states."""
    assert isinstance(found, dict)
    whole = np.arange(2 * ROWS * 500, dtype="f4").reshape(2 * ROWS, 500) + np.float32(run_step)
    assert same_bits(found["w"], whole)
    assert same_bits(found["same"]["b"], np.full(1000, run_step))


class Drain:
    """`ckptd drain` as a process of its own. I end it."""

    def __init__(
        self,
        directory: Path,
        to: str,
        *options: str,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        within: Sequence[str] = (),
        cold: bool = False,
    ) -> None:
        """`within`: what starts it, in another namespace. `cold`: as a user starts it, where its
        memory is measured.
        """
        ready = json.loads((directory / "ready.json").read_text())
        self.log = (log or directory / "logs" / "drain-test.log").open("ab")
        words = [
            "drain", "--to", to, "--coordinator", ready["address"],
            "--secret-file", str(directory / "secret"), "--poll-s", "0.2", *options,
        ]  # fmt: skip
        self.process = start_daemon(
            words, stderr=self.log.fileno(), environment={**os.environ, **(environment or {})},
            within=within, cold=cold,
        )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL, and gone on return."""
        self.process.kill()
        self._end()

    def stop(self) -> int:
        """SIGTERM, once it says that it is ready for it; its exit status."""
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.process.terminate()
        return self._end()

    def _end(self) -> int:
        assert self.process.stdout is not None
        status = self.process.wait(60.0)
        self.process.stdout.close()
        self.log.close()
        return status
