"""A rank process of these tests: obeys one JSON line after the other, answers each with one.

{"name": "save", "arguments": {...}} -> {"value": ...} or {"error": ..., "text": ...}, "warnings"
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable

import numpy as np

import ckpt
from tests.e2e.states import AXIS_ITEMS, digests_of, form_of, matrix, rows_of, state_of
from tests.warm_start import start_warm

WAIT_S = 60.0


class Agent:
    """I am one rank; RANK and WORLD_SIZE are in my environment, as a launcher leaves them."""

    def __init__(self) -> None:
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store: ckpt.Store
        self.saves: dict[tuple[str, int], ckpt.Save] = {}

    def open(self, launch: str | None = None, **options: object) -> None:
        self.store = ckpt.open(launch=launch, **options)  # type: ignore[arg-type]

    def save(
        self, run: str, step: int, version: int = 1, replica_of: int = 0, filler_bytes: int = 0
    ) -> None:
        state = state_of(
            self.rank, self.world_size, version, replica_of=replica_of, filler_bytes=filler_bytes
        )
        self.saves[run, step] = self.store.save(run, step, state)

    def save_refused(self, run: str, step: int, nan: bool = False) -> None:
        """A state that this rank may not save."""
        state = {"bad": np.array([1.0, np.nan]) if nan else object()}
        self.store.save(run, step, state, check_finite=nan)

    def wait(self, run: str, step: int) -> dict[str, object]:
        return dataclasses.asdict(self.saves[run, step].wait(WAIT_S))

    def wait_once(self, run: str, step: int, timeout_s: float) -> None:
        self.saves[run, step].wait(timeout_s)

    def hear(self, run: str, step: int) -> bool:
        """Wait until the end of that save is known here; it is told to nobody yet."""
        save = self.saves[run, step]
        assert save._stager is not None
        return save._stager.wait_until(lambda: save.ended, WAIT_S)

    def load(
        self, run: str, step: int | None = None, version: int = 1, filler_bytes: int = 0,
        **options: object,
    ) -> dict[str, object]:  # fmt: skip
        """Load this rank's own tree and compare it, bit by bit,
        with what was saved as `version`.
        """
        with self.store.resolve(run, step, **options) as found:  # type: ignore[arg-type]
            state = found.load()
            expected = state_of(self.rank, self.world_size, version, filler_bytes=filler_bytes)
            return {
                "step": found.step,
                "generation": str(found.generation),
                "source": found.source,
                "equal": form_of(state) == form_of(expected),
                "rebuilt_bytes": sum(one.rebuilt_bytes for one in found.statistics),
                "damaged_bytes": sum(one.damaged_bytes for one in found.statistics),
            }

    def load_whole(self, run: str, step: int | None = None, **options: object) -> dict[str, object]:
        """The union of all ranks' arrays, by digest, and what reading an object store moved."""
        with self.store.resolve(run, step, **options) as found:  # type: ignore[arg-type]
            state = found.load(whole=True)
            moved = found.store_statistics
            return {
                "step": found.step,
                "digests": digests_of(state),
                "sources": found.source.split("+"),
                "moved": None if moved is None else dataclasses.asdict(moved),
            }

    def load_instead(self, run: str, step: int) -> dict[str, str]:
        """The same of what the tier knows nothing of."""
        return digests_of(self.store.load(run, step, whole=True))

    def load_columns(self, run: str, version: int = 1) -> dict[str, object]:
        """Another world size, another axis: this rank's share of the matrix's columns."""
        columns = rows_of(self.rank, self.world_size)
        own = np.zeros((AXIS_ITEMS, columns.stop - columns.start), "f4")
        like = {
            "matrix": ckpt.Shard(own, (AXIS_ITEMS, AXIS_ITEMS), (0, columns.start)),
            "model": {"p": ckpt.Box((10 * self.rank, 0), (10, 100))},
        }
        with self.store.resolve(run) as found:
            state = found.load(like=like, strict=False)
            assert isinstance(state, dict)
            return {
                "in_place": state["matrix"].array is own,
                "equal": bool((own == matrix(version)[:, columns]).all()),
                "replica": bool((state["model"]["p"] == np.full((10, 100), version, "f8")).all()),
                "wanted_bytes": sum(one.wanted_bytes for one in found.statistics),
                "received_bytes": sum(
                    sum(one.bytes_by_target.values()) for one in found.statistics
                ),
            }

    def close(self, timeout_s: float | None = 60.0) -> None:
        self.store.close(timeout_s)

    def stager(self) -> int:
        (link,) = self.store._stagers.links.values()
        return link.pid


def _answer(agent: Agent, line: str) -> dict[str, object]:
    request = json.loads(line)
    work: Callable[..., object] = getattr(agent, request["name"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer: dict[str, object]
        try:
            answer = {"value": work(**request["arguments"])}
        except ckpt.CkptError as error:
            answer = {"error": error.code, "text": str(error)}
    return {**answer, "warnings": [str(one.message) for one in caught]}


if __name__ == "__main__":
    start_warm()
    obedient = Agent()
    for each in sys.stdin:
        sys.stdout.write(json.dumps(_answer(obedient, each), default=str) + "\n")
        sys.stdout.flush()
