"""What is prepared: the first save has its memory, its locked pages and its form, and nothing that
was supposed of other ranks is taken for true.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ckpt
import ckpt_torch
from ckpt_torch.device.accelerators import TorchAccelerator
from ckpt_torch.place import Who
from ckpt_torch.staging.known import recall
from tests.frameworks.device.emulated import NAME, Emulated, Fault
from tests.frameworks.gloo import Ranks
from tests.frameworks.test_torch_save import state_of, stepped, whole
from tests.landing import in_turn

WAIT_S = 60.0
ALONE = Who(0, 1, None, False)


@pytest.fixture
def store(cluster: str, request: pytest.FixtureRequest) -> Iterator[ckpt.Store]:
    """Of a launch of its own: no stager of another test is parked for it."""
    with ckpt.open(cluster, launch=request.node.name) as found:
        yield found


def state_on(where: str, size: int = 700_000) -> dict[str, Any]:
    small = {f"small{n}": torch.full((100,), float(n)).to(where) for n in range(20)}
    return {"large": torch.arange(float(size)).to(where), **small, "step": 3}


def check_loads(store: ckpt.Store, name: str, wanted: dict[str, Any]) -> None:
    found = {key: _empty(value) for key, value in wanted.items()}
    ckpt_torch.load(found, checkpoint_id=name, store=store)
    for key, value in wanted.items():
        assert _same(found[key], value), key


def _empty(value: Any) -> Any:
    return torch.zeros(value.shape) if isinstance(value, torch.Tensor) else 0


def _same(found: Any, wanted: Any) -> bool:
    return bool(
        torch.equal(found, wanted.cpu()) if isinstance(wanted, torch.Tensor) else found == wanted
    )


def test_a_first_save_finds_its_memory_and_its_form(store: ckpt.Store) -> None:
    assert ckpt_torch.prepare(state_on("cpu"), store=store).result(WAIT_S) is None
    known = recall(store, ALONE)
    assert known is not None
    assert known.supposed
    commit = ckpt_torch.save(state_on("cpu"), checkpoint_id="cpu/1", store=store)
    assert commit.fault_in_s == 0
    again = recall(store, ALONE)
    assert again is not None
    assert not again.supposed
    assert again.layout is known.layout
    check_loads(store, "cpu/1", state_on("cpu"))


def test_states_that_grow_and_shrink_are_prepared_again(store: ckpt.Store) -> None:
    for step, size in enumerate((700_000, 3_000_000, 10), start=1):
        state = state_on("cpu", size)
        ckpt_torch.prepare(state, checkpoint_id=f"grows/{step}", store=store).result(WAIT_S)
        ckpt_torch.prepare(state, checkpoint_id="grows", store=store).result(WAIT_S)
        ckpt_torch.prepare(state, store=store).result(WAIT_S)
        commit = ckpt_torch.save(state, checkpoint_id=f"grows/{step}", store=store)
        assert commit.fault_in_s == 0
        check_loads(store, f"grows/{step}", state)


@pytest.mark.parametrize("staging", ["copy", "overlap"])
def test_pages_are_locked_ahead_of_the_first_save(
    device: Emulated, store: ckpt.Store, staging: str
) -> None:
    ckpt_torch.prepare(state_on(NAME), store=store).result(WAIT_S)
    assert device.counters().registrations == 2
    device.fail(Fault.REGISTRATION)  # Of the next one, which does not come.
    for step in (1, 2):
        name = f"locked/{step}"
        ckpt_torch.async_save(
            state_on(NAME), checkpoint_id=name, store=store, staging=staging
        ).result(WAIT_S)
        check_loads(store, name, state_on("cpu"))
    assert device.counters().registrations == 2
    assert device.counters().to_host.unregistered_bytes == 0
    device.reset()


def test_what_was_prepared_on_the_cpu_serves_a_device(device: Emulated, store: ckpt.Store) -> None:
    ckpt_torch.prepare(state_on("cpu"), store=store).result(WAIT_S)
    assert device.counters().registrations == 0
    commit = ckpt_torch.save(state_on(NAME), checkpoint_id="later/1", store=store)
    assert commit.fault_in_s == 0
    check_loads(store, "later/1", state_on("cpu"))


def test_a_save_beside_the_locking_of_pages_locks_none_twice(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    lock_pages = TorchAccelerator.lock_pages

    def held(self: TorchAccelerator, memory: memoryview) -> bool:
        begun.set()
        assert may_go_on.wait(WAIT_S)
        return lock_pages(self, memory)

    monkeypatch.setattr(TorchAccelerator, "lock_pages", held)
    prepared = ckpt_torch.prepare(state_on(NAME), store=store)
    assert begun.wait(WAIT_S)
    future = ckpt_torch.async_save(
        state_on(NAME), checkpoint_id="beside/1", store=store, staging="overlap"
    )
    may_go_on.set()
    prepared.result(WAIT_S)
    future.result(WAIT_S)
    assert device.counters().registrations == 2
    check_loads(store, "beside/1", state_on("cpu"))


def test_what_cannot_be_stored_is_refused_by_path(store: ckpt.Store) -> None:
    with pytest.raises(ckpt.Refused, match="a/f"):
        ckpt_torch.prepare({"a": {"f": object()}}, store=store)
    with pytest.raises(ckpt.CkptError) as of_a_save:
        ckpt_torch.save({"a": 1}, checkpoint_id="ckpt://127.0.0.1:1/run/1")
    with pytest.raises(type(of_a_save.value)):
        ckpt_torch.prepare({"a": 1}, checkpoint_id="ckpt://127.0.0.1:1/run")


def prepared_job(url: str, kind: str, preparing: list[int], staging: str) -> Any:
    """Ranks of which some prepared: what was supposed of the others, and what came back."""
    net, optimizer = stepped(kind)
    state = state_of(net, optimizer, 1)
    if kind != "keyed":
        del state["rng"]
    rank, size = dist.get_rank(), dist.get_world_size()
    with ckpt.open(url, launch=f"{kind}{preparing}{staging}") as store:
        if rank in preparing:
            ckpt_torch.prepare(state, store=store).result(WAIT_S)
        dist.barrier()
        name = f"{kind}-{len(preparing)}-{staging}"
        who = Who(rank, size, None, True)
        supposed = recall(store, who)
        for step in (1, 2):
            commit = ckpt_torch.async_save(
                state, checkpoint_id=f"{name}/{step}", store=store, staging=staging
            ).result(WAIT_S)
            assert commit.world_size == size
        known = recall(store, who)
        assert known is not None
        assert not known.supposed
        other_net, other_optimizer = stepped(kind)
        found = state_of(other_net, other_optimizer, 1)
        found.pop("rng")
        for parameter in other_net.parameters():
            parameter.data.zero_()
        ckpt_torch.load(found, checkpoint_id=f"{name}/2", store=store)
        assert whole(found["model"]) == whole(state["model"])
        assert whole(found["optim"]) == whole(state["optim"])
        return supposed is not None and supposed.layout is known.layout


@pytest.mark.parametrize(
    ("kind", "staging"),
    in_turn([*product(["fsdp", "plain", "hsdp"], ["copy", "overlap"])], every=3),
)
def test_ranks_that_supposed_right_save_as_they_prepared(
    cluster: str, ranks: Ranks, kind: str, staging: str
) -> None:
    assert ranks.run(4, prepared_job, cluster, kind, [0, 1, 2, 3], staging) == [True] * 4


def test_one_rank_may_prepare_alone(cluster: str, ranks: Ranks) -> None:
    found = ranks.run(2, prepared_job, cluster, "fsdp", [1], "copy")
    assert found == [False, True]


def test_what_was_supposed_wrongly_is_laid_out_as_it_is(cluster: str, ranks: Ranks) -> None:
    """What has the rank in its key was taken for everyone's; nothing is, of several boxes."""
    assert ranks.run(2, prepared_job, cluster, "keyed", [0, 1], "copy") == [False] * 2
    assert ranks.run(4, prepared_job, cluster, "2d", [0, 1, 2, 3], "copy") == [False] * 4
