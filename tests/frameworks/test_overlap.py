"""Saves that overlap the training, on a device that forgives nothing: what comes back is the state
as it was at the call. Seven mistakes that an adapter could make are planted one by one, and each is
found by the check that finds nothing in ckpt_torch as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import ckpt
import ckpt_torch
from ckpt_client.accelerator import OutPlan, StreamPoint
from ckpt_client.save.beside import Beside
from ckpt_torch.device.accelerators import GATHER_BYTES, TorchAccelerator, accelerator_of
from ckpt_torch.device.page_locks import PageLocks
from ckpt_torch.staging.copying import TorchCopier
from tests.frameworks.clusters import local_cluster
from tests.frameworks.device.emulated import NAME, Emulated, Fault
from tests.waiting import wait_until

WAIT_S = 60.0
State = dict[str, torch.Tensor]
with_and_without = pytest.mark.parametrize("planted", [False, True], ids=["as it is", "planted"])


@pytest.fixture
def store(cluster: str, device: Emulated) -> Iterator[ckpt.Store]:
    with ckpt.open(cluster) as found:
        yield found


def numbers(seed: int, added: int = 0) -> State:
    """On the CPU: tensors that are gathered and others that cross alone, of whole numbers."""
    maker = torch.Generator().manual_seed(seed)

    def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return (torch.randint(0, 100, shape, generator=maker) + added).to(dtype)

    return {
        "large": of(torch.float32, 1100, 1000),
        "large/half": of(torch.bfloat16, 900, 1000),
        "turned": of(torch.float32, 1050, 1000).t(),
        "small/float": of(torch.float16, 1000),
        "small/int": of(torch.int64, 77, 3),
        "small/complex": of(torch.complex64, 50),
        "small/turned": of(torch.float64, 8, 9).t(),
        "scalar": of(torch.float32),
        "empty": of(torch.float32, 0, 4),
    }


def on_device(state: State) -> State:
    """Nothing is under way when this returns."""
    moved = {name: one.to(NAME) for name, one in state.items()}
    torch.accelerator.synchronize()
    return moved


def change(state: State) -> None:
    """As an optimizer's step does: in place, and queued."""
    for tensor in state.values():
        tensor.add_(1)


def begin(device: Emulated, store: ckpt.Store, name: str, state: State, **more: Any) -> Any:
    """A save whose call waits for nothing, whatever the device is doing."""
    waits = device.waits()
    future = ckpt_torch.async_save(
        state, checkpoint_id=name, store=store, staging="overlap", **more
    )
    assert device.waits() == waits
    return future


def check_loads(store: ckpt.Store, name: str, wanted: State) -> None:
    """Bit by bit, into host memory."""
    found = {key: torch.zeros(one.shape, dtype=one.dtype) for key, one in wanted.items()}
    ckpt_torch.load(found, checkpoint_id=name, store=store)
    for key, one in wanted.items():
        assert torch.equal(found[key], one), key


def check_saves(future: Any, store: ckpt.Store, name: str, wanted: State) -> None:
    """As `check_loads`. What a save finds by itself is found as well."""
    try:
        future.result(WAIT_S)
    except ckpt.Aborted as error:
        raise AssertionError(str(error)) from None
    check_loads(store, name, wanted)


def finding(planted: bool) -> AbstractContextManager[object]:
    """What a check must come to."""
    return pytest.raises(AssertionError) if planted else nullcontext()


# ------------------------------------------------------------------------------------ seven faults


@with_and_without
def test_a_copy_that_does_not_wait_for_the_caller_s_event(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    state = on_device(numbers(1))
    if planted:
        monkeypatch.setattr(TorchAccelerator, "now", lambda self: self._record(self._stream))
    for step in (1, 2):
        with device.held_stream():
            change(state)
            future = begin(device, store, f"event-{planted}/{step}", state)
            assert future.staged.wait(WAIT_S if planted else 0) == planted
        with finding(planted):
            check_saves(future, store, f"event-{planted}/{step}", numbers(1, added=step))


@with_and_without
def test_a_tensor_that_is_freed_under_its_copy(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    whole, freed = TorchAccelerator.copy_out, threading.Event()

    def of_clones(self: TorchAccelerator, plan: OutPlan, sources: Sequence[Any]) -> StreamPoint:
        clones = [source.clone() for source in sources]
        return whole(self, plan, clones, self.now())

    def of_passing_clones(
        self: TorchAccelerator, plan: OutPlan, sources: Sequence[Any], after: StreamPoint
    ) -> StreamPoint:
        moment = of_clones(self, plan, sources)
        freed.set()
        return moment

    if planted:
        monkeypatch.setattr(TorchAccelerator, "copy_out", of_passing_clones)
    for step in (1, 2):
        with device.held_link():
            # The caller keeps nothing of the state.
            future = begin(device, store, f"freed-{planted}/{step}", on_device(numbers(step)))
            device.wait_held()
            assert freed.wait(WAIT_S) if planted else not freed.is_set()
            # What is freed is overwritten, in the stream's order.
            torch.accelerator.current_stream().synchronize()
            freed.clear()
        with finding(planted):
            check_saves(future, store, f"freed-{planted}/{step}", numbers(step))


@with_and_without
def test_a_tensor_that_is_changed_under_its_copy(
    device: Emulated, store: ckpt.Store, planted: bool
) -> None:
    state = on_device(numbers(1))
    for step in (1, 2):
        with device.held_link():
            future = begin(device, store, f"changed-{planted}/{step}", state)
            device.wait_held()
            if not planted:
                future.staged.follow()
            change(state)
        if planted:
            with pytest.raises(ckpt.Aborted, match="and 8 more changed while rank 0"):
                future.result(WAIT_S)
            assert store.steps(f"changed-{planted}") == []
        else:
            future.result(WAIT_S)
            check_loads(store, f"changed-{planted}/{step}", numbers(1, added=step - 1))


@with_and_without
def test_a_guard_that_lets_the_next_step_overtake_the_copy(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    wanted = torch.full((700, 1000), 3.0)
    parameter = torch.nn.Parameter(wanted.to(NAME))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    if planted:
        monkeypatch.setattr(TorchAccelerator, "follow", lambda self, moment: None)
    with ckpt_torch.guard(optimizer):
        for step in (1, 2):
            with device.held_link():
                future = begin(device, store, f"guard-{planted}/{step}", {"p": parameter})
                device.wait_held()
                waits = device.waits()
                optimizer.step()
                assert device.waits() == waits
                if planted:
                    torch.accelerator.current_stream().synchronize()
            with finding(planted):
                check_saves(future, store, f"guard-{planted}/{step}", {"p": wanted - (step - 1)})


@with_and_without
def test_a_copy_on_a_stream_that_nobody_waits_for(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    @contextmanager
    def on_the_current_stream(self: TorchAccelerator) -> Iterator[None]:
        with torch.no_grad():
            yield

    if planted:
        monkeypatch.setattr(TorchAccelerator, "_on_stream", on_the_current_stream)
    for step in (1, 2):
        state = on_device(numbers(step))
        with device.held_link():
            future = begin(device, store, f"stream-{planted}/{step}", state)
            device.wait_held()
            if planted:
                assert future.staged.wait(WAIT_S)  # And nothing has crossed the link.
            assert future.staged.done == planted
        with finding(planted):
            check_saves(future, store, f"stream-{planted}/{step}", numbers(step))
        # What nobody has waited for goes into the arena, whose memory the next save may change.
        torch.accelerator.synchronize()


@with_and_without
def test_pages_of_the_arena_that_are_not_locked(
    device: Emulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    if planted:
        monkeypatch.setattr(PageLocks, "lock", lambda self, memory: True)
        monkeypatch.setattr(PageLocks, "unlock", lambda self, memory: None)
    # A cluster of its own: what was locked for it serves no other test.
    with local_cluster(tmp_path / "burst") as url, ckpt.open(url) as store:
        for step in (1, 2):
            future = begin(device, store, f"pages/{step}", on_device(numbers(step)))
            future.result(WAIT_S)
            check_loads(store, f"pages/{step}", numbers(step))
    out = device.counters().to_host
    assert out.copies > 0
    with finding(planted):
        assert out.unregistered_bytes == 0


@with_and_without
def test_a_caller_that_synchronizes_the_device(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    whole = TorchAccelerator.now

    def after_all(self: TorchAccelerator) -> StreamPoint:
        torch.accelerator.synchronize()
        return whole(self)

    if planted:
        monkeypatch.setattr(TorchAccelerator, "now", after_all)
    for step in (1, 2):
        state = on_device(numbers(step))
        with finding(planted):
            begin(device, store, f"caller-{planted}/{step}", state).result(WAIT_S)


@with_and_without
def test_a_buffer_that_is_filled_again_before_its_copy_is_through(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    monkeypatch.setattr("ckpt_torch.device.gathering.GATHER_BYTES", 64 << 10)
    if planted:
        monkeypatch.setattr(TorchAccelerator, "_await_free", lambda self, buffer: None)
    gathering = accelerator_of(torch.device(NAME, 0))._gathering
    for step in (1, 2):
        wanted = {f"{n}": torch.full((1000,), float(step * 100 + n)) for n in range(99)}
        state = on_device(wanted)
        with device.held_link():
            future = begin(device, store, f"buffer-{planted}/{step}", state)
            device.wait_held()
            if planted:
                future.staged.follow()  # All is queued.
                gathering.synchronize()
        with finding(planted):
            check_saves(future, store, f"buffer-{planted}/{step}", wanted)


# ------------------------------------------------------------------------------------- what is kept


def test_the_call_returns_while_the_device_computes_and_the_link_stands(
    device: Emulated, store: ckpt.Store
) -> None:
    state = on_device(numbers(1))
    futures = []
    with device.held_link(), device.held_stream():
        for step in (1, 2, 3):
            futures.append(begin(device, store, f"returns/{step}", state))
        assert not any(future.staged.done for future in futures)
    for step, future in enumerate(futures, start=1):
        future.result(WAIT_S)
        check_loads(store, f"returns/{step}", numbers(1))


def test_small_tensors_cross_as_few_copies(device: Emulated, store: ckpt.Store) -> None:
    state = on_device({str(n): torch.full((n % 500,), n % 100) for n in range(1000)})
    size = sum(tensor.nbytes for tensor in state.values())
    for step in (1, 2):
        before = device.counters().to_host
        begin(device, store, f"few/{step}", state).result(WAIT_S)
        after = device.counters().to_host
        assert after.registered_bytes - before.registered_bytes >= size
        assert after.copies - before.copies <= 2 + size // GATHER_BYTES
        check_loads(store, f"few/{step}", {name: one.cpu() for name, one in state.items()})


def test_one_buffer_is_filled_while_the_other_crosses(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt_torch.device.gathering.GATHER_BYTES", 64 << 10)
    accelerator = accelerator_of(torch.device(NAME, 0))
    for step in (1, 2):
        wanted = {f"{n}": torch.full((1000,), float(step)) for n in range(80)}
        value, state = wanted["0"][:1].numpy().tobytes(), on_device(wanted)
        with device.held_link():
            future = begin(device, store, f"crosses/{step}", state)
            device.wait_held()
            buffers = [buffer.memory.data_ptr() for buffer in accelerator._buffers]
            assert len(buffers) == 2
            for number, buffer in enumerate(buffers):
                wait_until(partial(is_at, device, value, buffer), f"buffer {number} filled")
        future.result(WAIT_S)
        check_loads(store, f"crosses/{step}", wanted)


def is_at(device: Emulated, value: bytes, address: int) -> bool:
    return device.peek(address, len(value)) == value


def test_an_arena_that_grows_lets_go_of_its_old_pages(device: Emulated, tmp_path: Path) -> None:
    with local_cluster(tmp_path / "burst") as url, ckpt.open(url) as store:
        for step in range(1, 5):
            state = on_device({"a": torch.full((step * 1_000_000,), float(step))})
            begin(device, store, f"grows/{step}", state).result(WAIT_S)
            check_loads(store, f"grows/{step}", {"a": torch.full((step * 1_000_000,), float(step))})
            assert 1 <= device.counters().registrations <= 2
    assert device.counters().to_host.unregistered_bytes == 0


@pytest.mark.parametrize("fault", [Fault.COPY, Fault.WAIT, Fault.ALLOCATION, Fault.DEVICE])
def test_what_befalls_the_device_ends_the_save_and_leaves_the_last_commit(
    device: Emulated, store: ckpt.Store, fault: Fault
) -> None:
    run = f"fault-{fault.name}"
    state = on_device(numbers(1))
    begin(device, store, f"{run}/1", state).result(WAIT_S)
    if fault is not Fault.DEVICE:
        # Without memory for what is compared with the copy, that is left out.
        device.fail(fault, 2 if fault is Fault.ALLOCATION else 1)
    with device.held_stream():
        future = begin(device, store, f"{run}/2", state)
        if fault is Fault.DEVICE:  # Sooner, the call itself would raise it.
            device.fail(fault)
    with pytest.raises(ckpt.Aborted, match="the device emulated:0 failed: "):
        future.result(WAIT_S)
    assert future.staged.done
    device.reset()
    check_loads(store, f"{run}/1", numbers(1))
    assert store.latest(run) == 1
    begin(device, store, f"{run}/3", state).result(WAIT_S)
    check_loads(store, f"{run}/3", numbers(1))


def test_other_ranks_hear_what_befell_a_device(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    state = on_device(numbers(1))
    other = store.save("ranks", 1, {"mine": torch.ones(3).numpy()}, rank=0, world_size=2)
    with device.held_link():
        future = begin(device, store, "ranks/1", state)
        device.wait_held()
        device.fail(Fault.DEVICE)
    with pytest.raises(ckpt.Aborted, match="the device is lost"):
        future.result(WAIT_S)
    with pytest.raises(ckpt.Aborted, match=r"rank 1.*the device is lost"):
        other.wait(WAIT_S)


def test_what_was_locked_is_let_go_with_the_store(device: Emulated, tmp_path: Path) -> None:
    with local_cluster(tmp_path / "burst") as url:
        with ckpt.open(url) as store:
            for step in (1, 2):
                begin(device, store, f"locked/{step}", on_device(numbers(step))).result(WAIT_S)
            assert device.counters().registrations > 0
        assert device.counters().registrations == 0


@with_and_without
def test_a_staging_that_begins_beside_another_of_its_rank(
    device: Emulated, store: ckpt.Store, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """They would share the link with each other, and take more of it from the training."""
    state = on_device({"a": torch.ones(1_200_000)})
    begin(device, store, f"one-{planted}/1", state).result(WAIT_S)
    done: list[str] = []

    def at_once(beside: Beside, work: Callable[[], None]) -> None:
        threading.Thread(target=work).start()

    if planted:
        monkeypatch.setattr(Beside, "run", at_once)

    def noted(name: str) -> None:
        whole = getattr(TorchCopier, name)

        def call(self: TorchCopier, *given: Any) -> None:
            if name == "copy":
                done.append(name)
            whole(self, *given)
            if name == "finish":
                done.append(name)

        monkeypatch.setattr(TorchCopier, name, call)

    noted("copy")
    noted("finish")
    with device.held_link():
        futures = [begin(device, store, f"one-{planted}/{step}", state) for step in (2, 3)]
        device.wait_held()
        if planted:
            wait_until(lambda: done == ["copy", "copy"], "a second staging")
        assert not any(future.staged.wait(0.1) for future in futures)
    for future in futures:
        future.result(WAIT_S)
    with finding(planted):
        assert done == ["copy", "finish"] * 2


def test_what_is_not_finite_is_looked_for_when_it_is_copied_and_nobody_waits_for_the_device(
    device: Emulated, store: ckpt.Store
) -> None:
    state = on_device(numbers(1))
    begin(device, store, "finite/1", state, check_finite=True).result(WAIT_S)
    check_loads(store, "finite/1", numbers(1))
    with device.held_link(), device.held_stream():
        state["turned"].add_(float("inf"))
        future = begin(device, store, "finite/2", state, check_finite=True)
        assert not future.staged.done
    with pytest.raises(ckpt.Refused, match=r"^turned: element \[0, 0\] of \(1000, 1050\) is inf"):
        future.result(WAIT_S)
    assert store.latest("finite") == 1


def test_copies_have_the_least_priority_that_the_device_knows(device: Emulated) -> None:
    fresh = TorchAccelerator(torch.device(NAME, 0))
    assert device.priority(torch.Stream(device=NAME)) == 0
    assert [device.priority(one) for one in (fresh._stream, fresh._gathering)] == [1, 1]


@pytest.mark.parametrize("staging", ["copy", "overlap"])
def test_a_tensor_without_memory_is_refused_by_name(
    device: Emulated, store: ckpt.Store, staging: str
) -> None:
    for name in ("meta/1", "meta/2"):
        state = {"a": torch.ones(3, device=NAME), "b": torch.ones(3, device="meta")}
        with pytest.raises(ckpt.Refused, match=r"^b: a tensor on meta; give the model"):
            ckpt_torch.async_save(state, checkpoint_id=name, store=store, staging=staging)
        state["b"] = torch.ones(3, device=NAME)
        ckpt_torch.save(state, checkpoint_id=name, store=store)
