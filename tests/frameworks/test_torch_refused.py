"""One torch rank refuses a step, or is told of an earlier save that failed, by any way of saving:
all hear it, and the same step commits when all save it again.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.distributed_c10d import _abort_process_group

import ckpt
import ckpt_torch
from ckpt_torch import CkptReader, CkptStager, CkptWriter
from ckpt_torch.exchange import _Round
from ckpt_torch.place import find_step
from tests.frameworks.gloo import Ranks
from tests.landing import in_turn
from tests.waiting import wait_until

REFUSING = 1
WAIT_S = 20.0
TRIES = 3
"""All but the last are refused."""


class Strange:
    """Not plain data."""


class Changing(UserDict[str, object]):
    """Whenever it is looked at it grows: as if by another thread."""

    def __getitem__(self, key: str) -> object:
        self.data[f"late {len(self.data)}"] = 0.0
        return self.data[key]


def state_of(way: str, value: float) -> dict[str, Any]:
    """What a rank saves; where ranks do not talk, all have the same names."""
    name = "w" if "alone" in way else f"w{dist.get_rank()}"
    return {name: torch.full((1000,), value), "n": 3}


def spoilt(way: str, how: str) -> dict[str, Any]:
    """What the refusing rank saves in vain."""
    if how == "nan":
        return state_of(way, float("nan"))
    more: dict[str, dict[str, object]] = {
        "strange": {"strange": Strange()},
        "text": {"text": "\udc80"},
        "changing": {"changing": {"deep": Changing(n=1)}},
    }
    return {**state_of(way, 1.0), **more.get(how, {})}


def fail_untold(path: str, way: str) -> None:
    """Two saves of this process come to nothing, and nobody asks what became of them."""
    store = find_step(path, None).store
    saves = [
        store.save(
            f"failing-{way}", 1, {"untold": ckpt.Replicated(r)}, rank=r, world_size=TRIES - 1
        )
        for r in range(TRIES - 1)
    ]

    def ended() -> bool:
        for save in saves:
            save._stager.take_news()  # type: ignore[union-attr]
        return all(save.ended for save in saves)

    wait_until(ended, "the abort")


def told(save: Callable[[], object]) -> str:
    """What a save that does not commit says here."""
    try:
        save()
    except (ckpt.CkptError, CheckpointException) as error:
        return str(error)
    raise AssertionError("it committed")


def saver(way: str, path: str, nan: bool) -> Callable[[dict[str, Any]], object]:
    """A save that returns when it is committed."""
    writer = CkptWriter(path, check_finite=nan)

    def through_stager(state: dict[str, Any]) -> object:
        answer = dcp.async_save(state, storage_writer=writer, async_stager=CkptStager(writer))
        return answer.upload_completion.result()  # type: ignore[union-attr]

    ways: dict[str, Callable[[dict[str, Any]], object]] = {
        "writer": lambda state: dcp.save(state, storage_writer=writer),
        "alone": lambda state: dcp.save(state, storage_writer=writer, use_collectives=False),
        "stager": through_stager,
        "save": lambda state: ckpt_torch.save(state, checkpoint_id=path, check_finite=nan),
        "save-alone": lambda state: ckpt_torch.save(
            state, checkpoint_id=path, check_finite=nan, use_collectives=False
        ),
    }
    return ways[way]


def job(url: str, way: str, how: str) -> Any:
    path = f"{url}/refused-{way}-{how}/7"
    save = saver(way, path, how == "nan")
    heard = []
    bad = dist.get_rank() == REFUSING
    if bad and how == "untold":
        fail_untold(path, way)
    for attempt in range(1, TRIES):
        state = spoilt(way, how) if bad else state_of(way, float(attempt))
        heard.append(told(lambda: save(state)))  # noqa: B023
        dist.barrier()
    save(state_of(way, float(TRIES)))
    back = state_of(way, 0.0)
    if way in ("writer", "alone", "stager"):
        dcp.load(back, storage_reader=CkptReader(path))
    else:
        ckpt_torch.load(back, checkpoint_id=path)
    (values,) = [value for value in back.values() if isinstance(value, torch.Tensor)]
    return heard, values.unique().tolist()


WAYS = ["writer", "alone", "stager", "save", "save-alone"]
CASES = [
    *itertools.product(WAYS, ["strange", "text", "nan", "untold"]),
    # Through the writer DCP looks at the state before anything of ours does.
    *itertools.product(WAYS[2:], ["changing"]),
]


@pytest.mark.parametrize(("way", "how"), in_turn(CASES, every=3))
def test_a_step_that_one_rank_refused_commits_when_all_save_it_again(
    cluster: str, ranks: Ranks, way: str, how: str
) -> None:
    for rank, (heard, values) in enumerate(ranks.run(3, job, cluster, way, how)):
        assert values == [float(TRIES)]
        for text in heard:
            assert how in text
            assert how != "changing" or f"{how}/deep: dictionary changed size" in text
            assert rank == REFUSING or f"rank {REFUSING}" in text.lower()


def guessing_job(url: str) -> tuple[str, int]:
    rank, state = dist.get_rank(), {"w": torch.ones(2)}
    with ckpt.open(url) as store:
        heard = told(lambda: store.save("guessed", 1, state))
        store.save("guessed", 2, state, rank=rank, world_size=2).wait(WAIT_S)
        alone = store.save(f"guessed-{rank}", 3, state, rank=0, world_size=1)
        return heard, alone.wait(WAIT_S).step


def test_a_save_whose_rank_nobody_says_is_refused_beside_others(cluster: str, ranks: Ranks) -> None:
    """torch.multiprocessing.spawn sets no RANK. Both saved as rank 0 of 1: one committed its own
    state as all of the step, and fenced the other.
    """
    for heard, step in ranks.run(2, guessing_job, cluster):
        assert "torch.distributed has 2 ranks" in heard
        assert step == 3


@pytest.mark.parametrize("kind", ["function", "lock"])
def test_what_cannot_be_pickled_is_refused_by_name(cluster: str, kind: str) -> None:
    """Saves but those through a stager raised what pickle says, which names no path."""
    state = {"a": {"f": {"function": lambda: 0, "lock": threading.Lock()}[kind]}}
    path = f"{cluster}/pickles/1"
    says = rf"f: an object of type {kind} cannot be pickled"
    stager = CkptStager(CkptWriter(path, allow_pickle=True))
    with pytest.raises(ckpt.Refused, match=rf"a\.{says}"):
        stager.stage(state)
    stager.close()
    with pytest.raises(ckpt.Refused, match=f"a/{says}"):
        ckpt_torch.save(state, checkpoint_id=path, allow_pickle=True, no_dist=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: that no process group is meant
        with pytest.raises(CheckpointException, match=r"a\.f: an object that cannot be pickled: "):
            dcp.save(state, storage_writer=CkptWriter(path, allow_pickle=True), no_dist=True)


def aborted_job(url: str, staging: str, known: bool) -> tuple[str, int | None, list[float]]:
    """One rank's process group is aborted when the other has heard all that it waits for."""
    path, heard = f"{url}/aborted-{staging}-{known}", _Round.wait
    state = state_of("save", 1.0)
    ckpt_torch.save(state if known else {"n": 3}, checkpoint_id=f"{path}/1")
    group = dist.new_group(backend="gloo")
    assert group is not None

    def cut_off(talk: _Round) -> list[bytes]:
        found = heard(talk)
        if dist.get_rank() == REFUSING:
            dist.barrier()
            _abort_process_group(group)
            dist.get_rank(group)  # Raises: there is no such group any more.
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Round, "wait", cut_off)
        try:
            future = ckpt_torch.async_save(
                state, checkpoint_id=f"{path}/2", process_group=group, staging=staging
            )
        except Exception as error:
            text = repr(error)
        else:
            dist.barrier()
            text = repr(future.exception(WAIT_S))
    dist.barrier()
    store = find_step(f"{path}/2", None).store
    latest = store.latest(path.rpartition("/")[2])
    dist.barrier()
    ckpt_torch.save(state_of("save", 4.0), checkpoint_id=f"{path}/2")
    back = state_of("save", 0.0)
    ckpt_torch.load(back, checkpoint_id=f"{path}/2")
    (values,) = [value for value in back.values() if isinstance(value, torch.Tensor)]
    return text, latest, values.unique().tolist()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("staging", ["copy", "overlap"])
def test_what_cuts_one_rank_off_from_the_others_ends_the_save_on_all(
    cluster: str, ranks: Ranks, staging: str, known: bool
) -> None:
    """And leaves what was committed, and the next save of the step."""
    found = ranks.run(2, aborted_job, cluster, staging, known)
    assert [one[1:] for one in found] == [(1, [4.0])] * 2
    assert f"rank {REFUSING}" in found[1 - REFUSING][0]
    assert all("is not registered" in text for text, _, _ in found)
