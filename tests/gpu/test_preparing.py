"""What is prepared for an accelerator: the first save finds its memory there, and locked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ckpt
from tests.gpu.test_saves import MIB, check_equal, every_kind, like, of_kind

torch: Any = pytest.importorskip("torch")
ckpt_torch: Any = pytest.importorskip("ckpt_torch")

WAIT_S = 120.0
STAGINGS = ("copy", "overlap")


@pytest.fixture
def store(url: str, request: pytest.FixtureRequest) -> Iterator[ckpt.Store]:
    """Of a launch of its own: no stager is there for it."""
    with ckpt.open(url, launch=request.node.name) as found:
        yield found


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each memory whose pages an accelerator was asked to lock, and locked."""
    from ckpt_torch.device.page_locks import PageLocks

    found: list[int] = []
    lock = PageLocks.lock

    def noted(self: PageLocks, memory: memoryview) -> bool:
        is_locked = lock(self, memory)
        if is_locked:
            found.append(memory.nbytes)
        return is_locked

    monkeypatch.setattr(PageLocks, "lock", noted)
    return found


@pytest.mark.parametrize("staging", STAGINGS)
def test_a_first_save_finds_its_memory_locked(
    store: ckpt.Store, locks: list[int], staging: str
) -> None:
    ckpt_torch.prepare(every_kind(1), store=store).result(WAIT_S)
    assert sum(locks) >= 2 * sum(
        one.nbytes for one in every_kind(1).values() if hasattr(one, "nbytes") and not one.is_cpu
    )
    for step in (1, 2, 3):
        state, name = every_kind(step), f"prepared-{staging}/{step}"
        commit = ckpt_torch.async_save(
            state, checkpoint_id=name, store=store, staging=staging
        ).result(WAIT_S)
        assert commit.fault_in_s == 0
        found = like(state)
        ckpt_torch.load(found, checkpoint_id=name, store=store)
        check_equal(found, state)


def test_the_first_steps_train_while_it_is_prepared(store: ckpt.Store) -> None:
    state = {str(n): of_kind("float32", 8 * MIB, n) for n in range(16)}
    prepared = ckpt_torch.prepare(state, store=store)
    for tensor in state.values():
        tensor.view(torch.uint8).bitwise_not_()
    future = ckpt_torch.async_save(state, checkpoint_id="beside/1", store=store, staging="overlap")
    prepared.result(WAIT_S)
    future.result(WAIT_S)
    found = like(state)
    ckpt_torch.load(found, checkpoint_id="beside/1", store=store)
    check_equal(found, state)
