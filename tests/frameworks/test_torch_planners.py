"""What is raised before torch's collectives, or by a planner behind the writer's back, on one rank:
the others hear it, and the same step commits the bytes of the try that all make.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

import ckpt
import ckpt_torch
from ckpt_torch import CkptReader, CkptStager, CkptWriter
from tests.frameworks.gloo import Ranks
from tests.landing import in_turn

FAILING = 1
TRIES = 3
"""All but the last fail."""
PHASES = ("set_up_planner", "create_local_plan", "finish_plan")
WAYS = ("writer", "alone", "stager")


class Failing(dcp.DefaultSavePlanner):
    """Raises in one of its phases."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase = phase

    def _raise_in(self, phase: str) -> None:
        if phase == self.phase:
            raise RuntimeError(f"no {phase} here")

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        self._raise_in("set_up_planner")
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> Any:
        self._raise_in("create_local_plan")
        return super().create_local_plan()

    def finish_plan(self, new_plan: Any) -> Any:
        self._raise_in("finish_plan")
        return super().finish_plan(new_plan)


class Moody:
    """A Stateful whose state cannot be had."""

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("no state today")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise AssertionError(state_dict)


def state_of(way: str, value: float) -> dict[str, Any]:
    name = "w" if "alone" in way else f"w{dist.get_rank()}"
    return {name: torch.full((1000,), value), "n": 3}


def values_of(path: str) -> list[float]:
    """All that any rank saved."""
    loaded = ckpt_torch.load_whole(path)
    return torch.cat([v for v in loaded.values() if isinstance(v, torch.Tensor)]).unique().tolist()


def dcp_save(way: str, path: str, state: dict[str, Any], planner: dcp.SavePlanner) -> None:
    writer = CkptWriter(path)
    if way == "stager":
        stager = CkptStager(writer)
        answer = dcp.async_save(state, storage_writer=writer, async_stager=stager, planner=planner)
        answer.upload_completion.result()  # type: ignore[union-attr]
        return
    if way == "alone":
        planner = writer.watch(planner)
    dcp.save(state, storage_writer=writer, planner=planner, use_collectives=way != "alone")


def planner_job(url: str, way: str, phase: str) -> tuple[list[str], list[float]]:
    path = f"{url}/planner-{way}-{phase}/7"
    heard = []
    for attempt in range(1, TRIES):
        planner = Failing(phase if dist.get_rank() == FAILING else "")
        try:
            dcp_save(way, path, state_of(way, float(attempt)), planner)
        except (ckpt.CkptError, CheckpointException, RuntimeError) as error:
            heard.append(str(error))
        dist.barrier()
    dcp_save(way, path, state_of(way, float(TRIES)), dcp.DefaultSavePlanner())
    dist.barrier()
    return heard, values_of(path)


@pytest.mark.parametrize(
    ("way", "phase"),
    # Each landing has all ways, and all phases.
    in_turn(
        [(way, PHASES[(n + turn) % 3]) for n, way in enumerate(WAYS) for turn in range(3)], every=3
    ),
)
def test_a_step_that_one_ranks_planner_failed_commits_when_all_save_it_again(
    cluster: str, ranks: Ranks, way: str, phase: str
) -> None:
    for rank, (heard, values) in enumerate(ranks.run(3, planner_job, cluster, way, phase)):
        assert values == [float(TRIES)]
        assert len(heard) == TRIES - 1
        for text in heard:
            assert f"no {phase} here" in text
            assert rank == FAILING or f"rank {FAILING}" in text.lower()


def early_job(url: str, how: str) -> tuple[str, list[float]]:
    path = f"{url}/early-{how}/7"
    bad = dist.get_rank() == FAILING
    state = state_of("save", 1.0)
    if how.endswith("known"):  # Of a form that this rank has saved.
        ckpt_torch.save(state, checkpoint_id=f"{url}/early-{how}/6")
    try:
        ckpt_torch.save(
            {**state, "moody": Moody()} if bad and how.startswith("state") else state,
            checkpoint_id=f"{url}/early-{how}" if bad and how.startswith("name") else path,
            use_collectives=how != "state-alone",
        )
        heard = ""
    except (ckpt.CkptError, RuntimeError) as error:
        heard = str(error)
    dist.barrier()
    ckpt_torch.save(state_of("save", 2.0), checkpoint_id=path)
    dist.barrier()
    return heard, values_of(path)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("state", "no state today"),
        ("state-known", "no state today"),
        ("state-alone", "no state today"),
        ("name", "names no step"),
        ("name-known", "names no step"),
    ],
)
def test_what_one_rank_raises_before_it_looks_at_its_state_is_heard_by_all(
    cluster: str, ranks: Ranks, how: str, text: str
) -> None:
    for rank, (heard, values) in enumerate(ranks.run(3, early_job, cluster, how)):
        assert text in heard
        assert rank == FAILING or f"rank {FAILING}" in heard
        assert values == [2.0]


class OnceBlind(CkptReader):
    """Cannot read the metadata the first time, as when a target answers late."""

    blind = True

    def read_metadata(self, *args: Any, **others: Any) -> Metadata:
        blind, self.blind = self.blind, False
        if blind:
            raise ckpt.Unavailable("not yet")
        return super().read_metadata(*args, **others)


class LoadFailing(dcp.DefaultLoadPlanner):
    """Raises when its plan is final."""

    def finish_plan(self, new_plan: Any) -> Any:
        raise RuntimeError("no finish_plan here")


def load_job(url: str, how: str) -> tuple[str, float]:
    path = f"{url}/load-{how}/7"
    bad = dist.get_rank() == FAILING
    # Enough to be shared.
    dcp.save({"w": torch.ones(4 << 20)}, storage_writer=CkptWriter(path))
    state: dict[str, Any] = {"w": torch.zeros(4 << 20)}
    try:
        dcp.load(
            state,
            storage_reader=(OnceBlind if bad and how == "blind" else CkptReader)(path),
            planner=LoadFailing() if bad and how == "planner" else None,
        )
        heard = ""
    except CheckpointException as error:
        heard = str(error)
    dist.barrier()
    dcp.load(state, storage_reader=CkptReader(path))
    return heard, state["w"].sum().item()


@pytest.mark.parametrize(("how", "text"), [("blind", "not yet"), ("planner", "no finish_plan")])
def test_what_one_rank_raises_in_a_load_is_heard_by_all_and_the_next_load_is_whole(
    cluster: str, ranks: Ranks, how: str, text: str
) -> None:
    for heard, found in ranks.run(3, load_job, cluster, how):
        assert text in heard
        assert found == 4 << 20
