"""Loads into a device's memory: every bit of every kind, through a ring that does not grow, beside
whatever the device still does.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import ckpt
import ckpt_torch
from ckpt.base.units import MiB
from ckpt_client.load.contents import Contents
from ckpt_torch import CkptReader, CkptWriter
from ckpt_torch.place import Who
from ckpt_torch.reading.device_reads import DeviceReads
from ckpt_torch.reading.loading import LoadJob, tensors_of
from ckpt_torch.reading.order import LoadOrder
from tests.frameworks.device.emulated import Direction, Emulated, Fault
from tests.waiting import wait_until

RING = 1 * MiB
KINDS = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.complex64, torch.int64, torch.uint8, torch.bool,
)  # fmt: skip


def state_of(seed: int, where: str = "emulated") -> dict[str, Any]:
    """5 MiB; zeros, which nothing saved has, for seed 0."""
    made = torch.Generator().manual_seed(seed)

    def bits(size: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
        high = 2 if kind is torch.bool else 256
        raw = torch.randint(0, high, (size * kind.itemsize,), generator=made, dtype=torch.uint8)
        return (raw * bool(seed)).view(kind)

    kinds = {str(kind): bits(1000 + n, kind) for n, kind in enumerate(KINDS)}
    model = {
        "large": bits(600 * 1000).view(600, 1000),
        "long rows": bits(2 * 300_000).view(2, 300_000),
        "turned": bits(300 * 200).view(300, 200).t(),
        "none": bits(0).view(0, 4),
        "one": bits(1).view(()),
        **kinds,
    }
    apart = {name: tensor.to(where) for name, tensor in model.items()}
    return {
        "moments": {"large": bits(100_000).to(where), "host": bits(5000), "step": seed},
        "model": apart,
        "array": np.full(9, seed),
    }


def host(tree: Any) -> Any:
    """The bytes of every leaf."""
    if isinstance(tree, dict):
        return {key: host(value) for key, value in tree.items()}
    if isinstance(tree, torch.Tensor):
        return tree.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return tree.tobytes() if isinstance(tree, np.ndarray) else tree


def device_bytes(state: dict[str, Any]) -> int:
    every = (*state["model"].values(), state["moments"]["large"])
    return sum(tensor.nbytes for tensor in every)


@pytest.fixture(scope="module")
def url(cluster: str) -> str:
    ckpt_torch.save(state_of(1, "cpu"), checkpoint_id=f"{cluster}/away/1")
    return cluster


def expected() -> Any:
    return host(state_of(1, "cpu"))


@pytest.mark.parametrize("ring_bytes", [RING, 3 * MiB + 17, 256 * MiB])
@pytest.mark.parametrize("order", [(), ("model/one", "moments", "model")])
def test_every_bit_of_every_kind_arrives(
    url: str, device: Emulated, ring_bytes: int, order: tuple[str, ...]
) -> None:
    state, before = state_of(0), device.counters().to_device
    name = f"{url}/away/1"
    assert ckpt_torch.load(state, checkpoint_id=name, order=order, ring_bytes=ring_bytes) == 1
    carried = device.counters().to_device
    assert host(state) == expected()
    assert carried.unregistered_bytes == before.unregistered_bytes
    assert carried.registered_bytes - before.registered_bytes == device_bytes(state)


def test_reading_goes_on_while_the_device_copies_and_no_further_than_the_ring(
    url: str, device: Emulated
) -> None:
    state = state_of(0)
    with device.held_link(Direction.TO_DEVICE):
        loading = load_small(url, state, [])
        wait_until(lambda: device.counters().pinned_bytes == RING, "all slots to be used")
        device.wait_held(Direction.TO_DEVICE)
        assert not loading.done()
        assert device.counters().pinned_bytes == RING
    assert loading.result(60) == 1
    assert host(state) == expected()


def load_small(url: str, state: dict[str, Any], order: list[str]) -> ckpt_torch.Loading:
    return ckpt_torch.async_load(state, order=order, checkpoint_id=f"{url}/away/1", ring_bytes=RING)


def test_memory_is_locked_before_the_checkpoint_is_looked_up(
    url: str, device: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much as a slot or two, and no more than the state."""
    locked, resolve = [], ckpt.Store.resolve

    def late(store: ckpt.Store, *given: Any, **named: Any) -> Any:
        wait_until(lambda: device.counters().pinned_bytes > 0, "the first slot")
        locked.append(device.counters().pinned_bytes)
        return resolve(store, *given, **named)

    monkeypatch.setattr(ckpt.Store, "resolve", late)
    for ring_bytes in (RING, 64 * MiB):
        state = state_of(0)
        ckpt_torch.load(state, checkpoint_id=f"{url}/away/1", ring_bytes=ring_bytes)
        assert host(state) == expected()
        torch.accelerator.synchronize()
    assert locked[0] in (RING // 4, 2 * RING // 4)
    assert locked[0] < locked[1] <= device_bytes(state_of(0)) + 64 * 64


def test_a_prefix_is_there_while_the_rest_is_on_its_way(url: str, device: Emulated) -> None:
    state = state_of(0)
    first = state["moments"]["large"].nbytes
    with device.held_link(Direction.TO_DEVICE, after_bytes=first):
        loading = load_small(url, state, ["moments", "model"])
        loading.prefixes["moments"].result(60)
        device.wait_held(Direction.TO_DEVICE)
        assert not loading.prefixes["model"].done()
        assert (
            device.peek(state["moments"]["large"].data_ptr(), first)
            == (expected()["moments"]["large"])
        )
    loading.prefixes["model"].result(60)
    assert loading.result(60) == 1
    assert host(state) == expected()


def test_what_the_caller_has_queued_comes_before_the_bytes(url: str, device: Emulated) -> None:
    state = state_of(0)
    with device.held_stream():
        for tensor in state["model"].values():
            tensor.zero_()
        loading = load_small(url, state, ["model"])
        (thread,) = (each for each in threading.enumerate() if each.name == "ckpt-load")
        wait_until(lambda: device.waits(thread.ident) > 0, "the load to wait for the device")
        assert not any(device.peek(state["model"]["large"].data_ptr(), 4096))
    assert loading.result(60) == 1
    assert host(state) == expected()


def test_what_the_caller_does_meanwhile_does_not_hold_up_the_rest(
    url: str, device: Emulated
) -> None:
    """A forward pass may take longer than the load."""
    state = state_of(0)
    loading = load_small(url, state, ["model"])
    loading.prefixes["model"].result(60)
    with device.held_stream():
        torch.zeros(9, device="emulated").add_(1)
        assert loading.result(60) == 1
    assert host(state) == expected()


def test_a_read_that_fails_half_way_is_begun_again(url: str, device: Emulated) -> None:
    state, tries = state_of(0), 0
    job = LoadJob(
        state, Who(0, 1, None, speaking=False), LoadOrder((), ()), strict=False, allow_pickle=False
    )

    def half(contents: Contents) -> object:
        """The second read of the first try finds that its holders moved."""
        nonlocal tries
        tries += 1
        if tries == 1:
            contents = Moving(contents._reading)
        return job._once(checkpoint, contents, devices)

    with (
        ckpt.open(url) as store,
        store.resolve("away", 1, rank=0, world_size=1) as checkpoint,
        DeviceReads(tensors_of(state), RING) as devices,
    ):
        found: Any = checkpoint.read(half)
    assert tries == 2
    assert found.value("moments/step", 0) == 1
    assert host(state["model"]) == expected()["model"]


class Moving(Contents):
    """A generation whose holders move after some reads."""

    reads = 0

    def fill(self, wants: Any) -> None:
        self.reads += 1
        if self.reads == 3:
            raise ckpt.Unavailable("a target went away")
        super().fill(wants)


@pytest.mark.parametrize("fault", [Fault.COPY, Fault.DEVICE])
@pytest.mark.parametrize("ring_bytes", [RING, 64 * MiB])
def test_a_device_that_fails_ends_the_load_by_its_name(
    url: str, device: Emulated, fault: Fault, ring_bytes: int
) -> None:
    """With the larger ring, in the only copy that there is."""
    state = state_of(0)
    device.fail(fault)
    with pytest.raises(ckpt.Aborted, match="emulated:0"):
        ckpt_torch.load(state, checkpoint_id=f"{url}/away/1", ring_bytes=ring_bytes)


def test_a_device_that_is_lost_under_the_last_copy_ends_the_load(
    url: str, device: Emulated
) -> None:
    state = {"moments": {"large": torch.zeros(100_000, device="emulated")}}
    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(threading.get_ident).result()
        with device.held_link(Direction.TO_DEVICE):
            loading = pool.submit(ckpt_torch.load, state, checkpoint_id=f"{url}/away/1")
            # For what the caller has queued, and for the copy.
            wait_until(lambda: device.waits(thread) == 2, "the load to wait for its copy")
            device.fail(Fault.DEVICE)
        with pytest.raises(ckpt.Aborted, match="emulated:0"):
            loading.result(60)


def test_nothing_is_written_when_a_name_is_refused(url: str, device: Emulated) -> None:
    state = {**state_of(0), "more": torch.zeros(3, device="emulated")}
    before = device.counters().to_device
    with pytest.raises(ckpt.Refused, match="has no more"):
        ckpt_torch.load(state, checkpoint_id=f"{url}/away/1")
    assert device.counters().to_device == before
    with pytest.raises(ckpt.Refused, match="a ring of 1 bytes"):
        ckpt_torch.load(state_of(0), checkpoint_id=f"{url}/away/1", ring_bytes=1)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_reads_through_the_ring(url: str, device: Emulated) -> None:
    name = f"{url}/away-dcp/1"
    saved = state_of(1, "cpu")["model"]
    dcp.save({"model": saved}, storage_writer=CkptWriter(name), no_dist=True)
    state, before = {"model": state_of(0)["model"]}, device.counters().to_device
    dcp.load(state, storage_reader=CkptReader(name), no_dist=True)
    assert device.counters().to_device.unregistered_bytes == before.unregistered_bytes
    assert host(state["model"]) == expected()["model"]
