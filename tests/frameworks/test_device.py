"""The emulated accelerator is a truthful one: what tests show on it, they show of a device that
computes and copies beside its caller, and that is unforgiving.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.frameworks.device.emulated import NAME, Direction, Emulated, Fault

FREED = b"\xdd"
FRESH = b"\xcd"
MIB = 1 << 20


@contextmanager
def registered(device: Emulated, host: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor, its memory page-locked."""
    assert device.host_register(host.data_ptr(), host.nbytes)
    try:
        yield host
    finally:
        assert device.host_unregister(host.data_ptr())


def stream() -> torch.Stream:
    return torch.Stream(device=NAME)


# ----------------------------------------------------------------------------------- as torch's


def test_it_is_torch_s_accelerator_while_it_is_attached(emulated: Emulated) -> None:
    assert not torch.accelerator.is_available()
    with emulated.attached():
        assert torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator() == torch.device(NAME)
        assert torch.accelerator.device_count() == 1
        assert torch.zeros(3, device=NAME).device == torch.device(NAME, 0)
        assert torch.get_device_module(NAME).host_register(1 << 20, 4096)
        assert torch.get_device_module(NAME).host_unregister(1 << 20)
    assert not torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 0


def test_host_code_that_touches_its_memory_dies(emulated: Emulated) -> None:
    script = (
        "import ctypes, pathlib, torch\n"
        "from tests.frameworks.device.emulated import loaded\n"
        f"with loaded(pathlib.Path({str(emulated.library)!r})).attached():\n"
        "    ctypes.string_at(torch.zeros(4, device='emulated').data_ptr(), 4)\n"
    )
    root = Path(__file__).parent.parent.parent
    ended = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True)
    assert ended.returncode == -signal.SIGSEGV, ended.stderr.decode()


DTYPES = (
    torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64,
)  # fmt: skip
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.t(),
    "strided": lambda tensor: tensor[::2, 1::3],
    "narrow": lambda tensor: tensor.narrow(0, 1, 3),
    "expanded": lambda tensor: tensor[:1].expand(5, -1),
    "0-d": lambda tensor: tensor[2, 3],
    "empty": lambda tensor: tensor[:0],
    "as bytes": lambda tensor: tensor.contiguous().view(-1).view(torch.uint8),
}


def bits(tensor: torch.Tensor) -> list[int]:
    return list(tensor.reshape(-1).contiguous().view(torch.uint8).tolist())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_form_comes_back_as_it_went(device: Emulated, dtype: torch.dtype, form: str) -> None:
    whole = (torch.arange(48).view(6, 8) % 2).to(dtype)
    there = FORMS[form](whole.to(NAME))
    here = FORMS[form](whole)
    assert there.is_contiguous() == here.is_contiguous()
    assert bits(there.cpu()) == bits(here)
    assert bits(torch.zeros_like(there).copy_(here).cpu()) == bits(here)


def test_what_is_conjugated_by_name_alone_comes_as_it_reads(device: Emulated) -> None:
    here = torch.tensor([1 + 2j, 3 - 4j])
    there = here.to(NAME)
    assert torch.equal(there.conj().cpu(), here.conj())
    assert torch.equal(there.conj().imag.cpu(), here.conj().imag)
    assert torch.equal(here.conj().to(NAME).cpu(), here.conj())


def test_types_are_converted_on_the_way(device: Emulated) -> None:
    here = torch.linspace(-3, 3, 50).view(5, 10)
    there = torch.empty(5, 10, dtype=torch.bfloat16, device=NAME).copy_(here)
    assert torch.equal(there.cpu(), here.bfloat16())
    assert torch.equal(torch.empty(10, 5).t().copy_(there), here.bfloat16().float())


def net_and_optimizer(where: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
    net.to(where)
    return net, torch.optim.AdamW(net.parameters(), lr=0.1)


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    net(batch).pow(2).mean().backward()
    optimizer.step()


def test_a_training_step_makes_nobody_wait_and_gives_what_the_cpu_gives(device: Emulated) -> None:
    net, optimizer = net_and_optimizer("cpu")
    other, other_optimizer = net_and_optimizer(NAME)
    batch = torch.randn(5, 4)
    there = batch.to(NAME)
    waits = device.waits()
    with device.held_stream():
        for _ in range(3):
            step(other, other_optimizer, there)
        assert not torch.accelerator.current_stream().query()
        assert device.waits() == waits
    for _ in range(3):
        step(net, optimizer, batch)
    for mine, its in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its.cpu(), rtol=1e-4, atol=1e-6)


def test_a_result_that_only_the_data_knows_makes_the_caller_wait(device: Emulated) -> None:
    tensor = torch.arange(6.0, device=NAME)
    for ask in (lambda: tensor.sum().item(), lambda: torch.nonzero(tensor), lambda: tensor.cpu()):
        before = device.waits()
        ask()
        assert device.waits() > before


# -------------------------------------------------------------------------------- streams, events


def test_a_copy_to_registered_memory_returns_before_it_is_through(device: Emulated) -> None:
    tensor = torch.full((1000,), 7.0, device=NAME)
    done = torch.Event(device=NAME)
    with registered(device, torch.zeros(1000)) as host:
        with device.held_link():
            waits = device.waits()
            host.copy_(tensor, non_blocking=True)
            done.record()
            device.wait_held()
            assert device.waits() == waits
            assert not done.query()
            assert torch.equal(host, torch.zeros(1000))
        done.synchronize()
        assert torch.equal(host, torch.full((1000,), 7.0))


def test_so_does_one_to_the_device(device: Emulated) -> None:
    tensor = torch.zeros(1000, device=NAME)
    with registered(device, torch.full((1000,), 7.0)) as host:
        with device.held_link(Direction.TO_DEVICE):
            tensor.copy_(host, non_blocking=True)
            device.wait_held(Direction.TO_DEVICE)
            assert device.peek(tensor.data_ptr(), 4000) == bytes(4000)
        torch.accelerator.synchronize()
        assert torch.equal(tensor.cpu(), host)


def test_a_stream_that_waits_for_an_event_reads_what_was_before_it(device: Emulated) -> None:
    tensor = torch.zeros(100, device=NAME)
    side, ready = stream(), torch.Event(device=NAME)
    with registered(device, torch.zeros(100)) as host:
        with device.held_stream():
            tensor.add_(1)
            ready.record()
            side.wait_event(ready)
            with side:
                host.copy_(tensor, non_blocking=True)
            assert not side.query()
            assert not ready.query()
        side.synchronize()
        assert ready.query()
        assert torch.equal(host, torch.ones(100))


def test_a_copy_on_a_stream_that_waits_for_nothing_reads_old_bytes(device: Emulated) -> None:
    tensor = torch.zeros(100, device=NAME)
    torch.accelerator.synchronize()
    side = stream()
    with registered(device, torch.full((100,), 5.0)) as host, device.held_stream():
        tensor.add_(1)
        with side:
            host.copy_(tensor, non_blocking=True)
        side.synchronize()
        assert torch.equal(host, torch.zeros(100))
    assert torch.equal(tensor.cpu(), torch.ones(100))


def test_a_tensor_that_changes_under_its_copy_is_torn(device: Emulated) -> None:
    tensor = torch.zeros(MIB, dtype=torch.uint8, device=NAME)
    side = stream()
    torch.accelerator.synchronize()
    with registered(device, torch.full((MIB,), 9, dtype=torch.uint8)) as host:
        with device.held_link(after_bytes=MIB // 2):
            with side:
                host.copy_(tensor, non_blocking=True)
            device.wait_held()
            tensor.fill_(1)
            torch.accelerator.current_stream().synchronize()
        side.synchronize()
        assert host[: MIB // 2].eq(0).all()
        assert host[MIB // 2 :].eq(1).all()


def test_each_thread_has_its_own_current_stream(device: Emulated) -> None:
    seen: list[torch.Stream] = []
    side = stream()
    with side:
        thread = threading.Thread(target=lambda: seen.append(torch.accelerator.current_stream()))
        thread.start()
        thread.join()
        assert torch.accelerator.current_stream() == side
    assert seen == [torch.accelerator.current_stream()]
    assert seen != [side]


# ------------------------------------------------------------------------------------------ memory


def test_memory_that_is_freed_is_poisoned_and_used_again_at_once(device: Emulated) -> None:
    tensor = torch.full((5000,), 1.0, device=NAME)
    pointer = tensor.data_ptr()
    del tensor
    torch.accelerator.synchronize()
    assert device.peek(pointer, 20000) == FREED * 20000
    again = torch.empty(5000, device=NAME)
    assert again.data_ptr() == pointer


def test_fresh_memory_holds_no_zeros(device: Emulated) -> None:
    with device.held_stream():
        tensors = [torch.empty(4096, dtype=torch.uint8, device=NAME) for _ in range(50)]
    found = {bytes(tensor.cpu().tolist()) for tensor in tensors}
    assert found <= {FRESH * 4096, FREED * 4096}


def copy_then_drop(
    device: Emulated, host: torch.Tensor, keep: Callable[[torch.Tensor, torch.Stream], None]
) -> None:
    """A side stream copies a tensor that its owner drops meanwhile."""
    tensor = torch.full((host.numel(),), 7, dtype=torch.uint8, device=NAME)
    torch.accelerator.synchronize()
    side = stream()
    with device.held_link():
        with side:
            host.copy_(tensor, non_blocking=True)
        keep(tensor, side)
        device.wait_held()
        del tensor
        torch.accelerator.current_stream().synchronize()
    side.synchronize()


def test_a_copy_of_a_freed_tensor_reads_poison(device: Emulated) -> None:
    with registered(device, torch.zeros(1000, dtype=torch.uint8)) as host:
        copy_then_drop(device, host, lambda tensor, side: None)
        assert bytes(host.tolist()) == FREED * 1000


def test_record_stream_keeps_a_dropped_tensor_until_the_copy_is_through(device: Emulated) -> None:
    with registered(device, torch.zeros(1000, dtype=torch.uint8)) as host:
        copy_then_drop(device, host, torch.Tensor.record_stream)
        assert host.eq(7).all()


def test_its_own_stream_uses_a_dropped_tensor_safely(device: Emulated) -> None:
    total = torch.zeros(1000, device=NAME)
    with device.held_stream():
        for number in range(5):
            total.add_(torch.full((1000,), float(number), device=NAME))
    assert torch.equal(total.cpu(), torch.full((1000,), 10.0))


def test_what_torch_pins_is_registered_and_outlives_the_copies_out_of_it(device: Emulated) -> None:
    tensor = torch.zeros(1000, device=NAME)
    pinned = torch.full((1000,), 3.0).pin_memory()
    assert pinned.is_pinned()
    with device.held_link(Direction.TO_DEVICE):
        tensor.copy_(pinned, non_blocking=True)
        del pinned
        assert device.counters().pinned_bytes == 4096
    assert torch.equal(tensor.cpu(), torch.full((1000,), 3.0))
    torch.accelerator.synchronize()
    assert device.counters().pinned_bytes == 0


# ---------------------------------------------------------------------------------------- counters


def test_registrations_are_counted_and_neither_overlap_nor_end_twice(device: Emulated) -> None:
    host = torch.zeros(3000, dtype=torch.uint8)
    first = host.data_ptr()
    assert device.host_register(first, 1000)
    assert device.host_register(first + 1000, 1000)
    assert device.counters().registrations == 2
    assert not device.host_register(first + 1999, 10)
    assert not device.host_register(first, 1000)
    assert not device.host_register(first + 2500, 0)
    assert device.host_unregister(first)
    assert not device.host_unregister(first)
    assert device.host_unregister(first + 1000)
    assert device.counters().registrations == 0


@pytest.mark.parametrize("locked_bytes", [0, 999])
def test_a_copy_to_memory_that_is_not_registered_whole_makes_its_caller_wait(
    device: Emulated, locked_bytes: int
) -> None:
    tensor = torch.full((1000,), 7, dtype=torch.uint8, device=NAME)
    host = torch.zeros(1000, dtype=torch.uint8)
    if locked_bytes:
        assert device.host_register(host.data_ptr(), locked_bytes)
    host.copy_(tensor, non_blocking=True)
    assert host.eq(7).all()
    assert device.waits() == 1
    assert device.counters().to_host.unregistered_bytes == 1000
    assert device.counters().to_host.registered_bytes == 0
    if locked_bytes:
        assert device.host_unregister(host.data_ptr())


def test_copies_and_bytes_are_counted_in_each_direction(device: Emulated) -> None:
    tensor = torch.zeros(1000, dtype=torch.uint8, device=NAME)
    with registered(device, torch.zeros(1000, dtype=torch.uint8)) as host:
        for _ in range(3):
            host.copy_(tensor, non_blocking=True)
        tensor.copy_(host, non_blocking=True)
        tensor[:10].copy_(torch.zeros(10, dtype=torch.uint8))
        kernels = device.counters().kernels
        torch._foreach_copy_([tensor[:500], tensor[500:]], [tensor[500:], tensor[:500]])
    counters = device.counters()
    assert (counters.to_host.copies, counters.to_host.registered_bytes) == (3, 3000)
    assert (counters.to_device.copies, counters.to_device.registered_bytes) == (2, 1000)
    assert counters.to_device.unregistered_bytes == 10
    assert counters.kernels == kernels + 2


def test_a_thread_s_waits_are_its_own(device: Emulated) -> None:
    done = torch.Event(device=NAME)
    done.record()
    counted: list[int] = []

    def wait() -> None:
        done.synchronize()
        torch.accelerator.current_stream().synchronize()
        torch.accelerator.synchronize()
        counted.append(device.waits())

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert counted == [3]
    assert device.waits() == 0


# ---------------------------------------------------------------------------------------- the link


def ticks() -> torch.Event:
    """An event that knows its stream's time."""
    return torch.Event(device=NAME, enable_timing=True)


def seconds_between(earlier: torch.Event, later: torch.Event) -> float:
    return float(earlier.elapsed_time(later)) / 1e3


def test_a_copy_takes_the_link_s_time_for_its_bytes(device: Emulated) -> None:
    tensor = torch.zeros(2 * MIB, dtype=torch.uint8, device=NAME)
    begun, done = ticks(), ticks()
    with registered(device, torch.zeros(2 * MIB, dtype=torch.uint8)) as host:
        device.link(bytes_per_s=256 * MIB, latency_s=0.001)
        begun.record()
        for _ in range(3):
            host.copy_(tensor, non_blocking=True)
        done.record()
        done.synchronize()
    assert seconds_between(begun, done) == pytest.approx(3 * (0.001 + 2 / 256))
    assert device.counters().to_host.busy_s == pytest.approx(6 / 256)
    assert device.counters().to_device.busy_s == 0


def test_streams_share_a_direction_of_the_link(device: Emulated) -> None:
    tensor = torch.zeros(MIB, dtype=torch.uint8, device=NAME)
    torch.accelerator.synchronize()
    device.link(bytes_per_s=256 * MIB)
    sides = [stream() for _ in range(3)]
    begun = ticks()
    begun.record()
    done = [ticks() for _ in sides]
    with registered(device, torch.zeros(3, MIB, dtype=torch.uint8)) as host:
        for side, event, row in zip(sides, done, host, strict=True):
            side.wait_event(begun)
            with side:
                row.copy_(tensor, non_blocking=True)
                event.record()
        for event in done:
            event.synchronize()
    last = max(seconds_between(begun, event) for event in done)
    assert last == pytest.approx(3 / 256)


# ------------------------------------------------------------------------------------------ faults


def test_a_copy_that_fails_loses_the_device_until_it_is_reset(device: Emulated) -> None:
    tensor = torch.zeros(1000, device=NAME)
    with registered(device, torch.full((1000,), 5.0)) as host:
        device.fail(Fault.COPY)
        host.copy_(tensor, non_blocking=True)
        for later in (
            torch.accelerator.synchronize,
            lambda: torch.accelerator.current_stream().synchronize(),
            lambda: torch.Event(device=NAME).record(),
            lambda: tensor.add_(1),
            lambda: torch.empty(3, device=NAME),
        ):
            with pytest.raises(torch.AcceleratorError, match="a copy failed"):
                later()
        assert torch.equal(host, torch.full((1000,), 5.0))
        device.reset()
        host.copy_(tensor, non_blocking=True)
        torch.accelerator.synchronize()
        assert torch.equal(host, torch.zeros(1000))


def test_a_lost_device_frees_whom_it_held(device: Emulated) -> None:
    tensor = torch.zeros(1000, device=NAME)
    done = torch.Event(device=NAME)
    with registered(device, torch.zeros(1000)) as host, device.held_link():
        host.copy_(tensor, non_blocking=True)
        done.record()
        device.wait_held()
        device.fail(Fault.DEVICE)
        with pytest.raises(torch.AcceleratorError, match="the device is lost"):
            done.synchronize()


def test_a_wait_for_an_event_fails_once(device: Emulated) -> None:
    done = torch.Event(device=NAME)
    done.record()
    device.fail(Fault.WAIT)
    with pytest.raises(torch.AcceleratorError, match="a wait for an event failed"):
        done.synchronize()
    done.synchronize()


def test_memory_runs_out_once(device: Emulated) -> None:
    device.fail(Fault.ALLOCATION)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(10, device=NAME)
    assert torch.empty(10, device=NAME).numel() == 10


def test_a_registration_is_refused_once(device: Emulated) -> None:
    host = torch.zeros(100)
    device.fail(Fault.REGISTRATION)
    assert not device.host_register(host.data_ptr(), host.nbytes)
    with registered(device, host):
        assert device.counters().registrations == 1


def test_a_gate_to_which_no_copy_comes_is_an_error(
    device: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.frameworks.device.emulated.HELD_S_MAX", 0.01)
    with device.held_link(), pytest.raises(TimeoutError):
        device.wait_held()
