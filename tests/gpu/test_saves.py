"""Tensors of an accelerator, saved and loaded: every bit of every kind, by both ways of staging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ckpt
from tests.gpu.finding import accelerator

torch: Any = pytest.importorskip("torch")
ckpt_torch: Any = pytest.importorskip("ckpt_torch")

STAGINGS = ("copy", "overlap")
KINDS = (
    "float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "complex64", "int64", "int8", "uint8", "bool",
)  # fmt: skip
MIB = 1 << 20
"""Elements of a large tensor, and a unit of others."""
SMALL = 2000
"""Tensors without neighbours of their kind."""


@pytest.fixture
def store(url: str) -> Iterator[ckpt.Store]:
    with ckpt.open(url) as found:
        yield found


def of_kind(name: str, count: int, seed: int) -> Any:
    """Any bits that the type has, on the accelerator."""
    kind = getattr(torch, name)
    made = torch.Generator().manual_seed(seed)
    if kind is torch.bool:
        return torch.randint(0, 2, (count,), generator=made).bool().to(accelerator())
    raw = torch.randint(0, 256, (count * kind.itemsize,), generator=made, dtype=torch.uint8)
    return raw.view(kind).to(accelerator())


def bits(tensor: Any) -> Any:
    """Its bytes, on the host."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def every_kind(seed: int) -> dict[str, Any]:
    """Small, large, strided, tied, empty and 0-d tensors, beside some of the host."""
    large = of_kind("float32", 3 * MIB, seed).view(1024, -1)
    return {
        **{f"small/{name}": of_kind(name, 1000 + n, seed + n) for n, name in enumerate(KINDS)},
        **{f"large/{name}": of_kind(name, MIB + n, seed - n) for n, name in enumerate(KINDS)},
        "turned": large.t(),
        "turned half": of_kind("float16", MIB, seed).view(1024, -1).t(),
        "turned small": of_kind("bfloat16", 10000, seed).view(100, 100).t(),
        "every other": large[:, ::2],
        "tied": large,
        "whole": large,
        "row of ones": torch.ones(1, device=accelerator()).expand(1000),
        "empty": torch.empty(0, 4, device=accelerator()),
        "scalar": torch.tensor(0.1 * seed, device=accelerator()),
        "parameter": torch.nn.Parameter(torch.randn(100, 100, device=accelerator())),
        "of the host": torch.randn(1000),
        "step": torch.tensor(float(seed)),
        "lr": 0.1 * seed,
    }


def like(state: dict[str, Any]) -> dict[str, Any]:
    """The same shapes, on the same devices, of zeros."""
    return {
        name: torch.zeros_like(one, memory_format=torch.contiguous_format).detach()
        if isinstance(one, torch.Tensor)
        else None
        for name, one in state.items()
    }


def check_equal(loaded: dict[str, Any], saved: dict[str, Any]) -> None:
    for name, one in saved.items():
        if isinstance(one, torch.Tensor):
            assert torch.equal(bits(loaded[name]), bits(one)), name
        else:
            assert loaded[name] == one


@pytest.mark.parametrize("staging", STAGINGS)
def test_every_bit_comes_back_by_the_long_way_and_by_the_known_form(
    store: ckpt.Store, staging: str
) -> None:
    for step in (1, 2, 3):
        state = every_kind(step)
        name = f"kinds-{staging}/{step}"
        ckpt_torch.async_save(state, checkpoint_id=name, store=store, staging=staging).result()
        found = like(state)
        ckpt_torch.load(found, checkpoint_id=name, store=store)
        check_equal(found, state)


@pytest.mark.parametrize("staging", STAGINGS)
def test_thousands_of_small_tensors_come_back(store: ckpt.Store, staging: str) -> None:
    for step in (1, 2):
        state = {
            f"{n:04}": of_kind(KINDS[n % 3], 1 + (n * 37) % 20000, n * step) for n in range(SMALL)
        }
        for n in range(600):  # Side by side without gaps: by rows, of one axis, two, and turned.
            alike = of_kind(KINDS[2 + n // 200], 64 * (1 + n % 7), n + step)
            state[f"row/{n:03}"] = alike if n % 200 < 100 else alike.view(-1, 32)
            if n % 200 == 150:
                state[f"row/{n:03}"] = alike.view(32, -1).t()
        name = f"small-{staging}/{step}"
        ckpt_torch.async_save(state, checkpoint_id=name, store=store, staging=staging).result()
        found = like(state)
        ckpt_torch.load(found, checkpoint_id=name, store=store)
        check_equal(found, state)


def test_a_state_that_grows_has_its_new_memory_locked(store: ckpt.Store) -> None:
    for step, count in enumerate((1, 8, 64, 16)):
        state = {"a": of_kind("bfloat16", count * MIB, step)}
        ckpt_torch.save(state, checkpoint_id=f"grows/{step}", store=store)
        found = like(state)
        ckpt_torch.load(found, checkpoint_id=f"grows/{step}", store=store)
        check_equal(found, state)


def test_memory_whose_pages_cannot_be_locked_is_slower_and_whole(
    store: ckpt.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ckpt_torch.device import accelerators

    device = torch.device(accelerator())
    fresh = accelerators.TorchAccelerator(device)
    monkeypatch.setattr("ckpt_torch.staging.copying.accelerator_of", lambda _: fresh)
    monkeypatch.setattr("ckpt_torch.device.page_locks._calls_of", lambda _: None)
    for step in (1, 2):
        state = every_kind(step)
        name = f"unlocked/{step}"
        ckpt_torch.async_save(state, checkpoint_id=name, store=store, staging="overlap").result()
        found = like(state)
        ckpt_torch.load(found, checkpoint_id=name, store=store)
        check_equal(found, state)
    assert caplog.text.count("cannot lock the pages") == 1


@pytest.mark.parametrize("staging", STAGINGS)
def test_what_is_not_finite_is_refused_by_name(store: ckpt.Store, staging: str) -> None:
    state = {"good": of_kind("int8", 100, 1), "bad": torch.zeros(10, device=accelerator())}
    state["bad"][3] = float("nan")

    def save() -> None:
        ckpt_torch.async_save(
            state, checkpoint_id=f"nan-{staging}/1", store=store, staging=staging, check_finite=True
        ).result()

    with pytest.raises(ckpt.Refused, match="bad: element"):
        save()


def test_host_memory_besides_the_arena_does_not_grow_with_the_state(store: ckpt.Store) -> None:
    state = {str(n): of_kind("float32", 8 * MIB, n) for n in range(32)}
    ckpt_torch.save(state, checkpoint_id="memory/1", store=store)
    before = private_bytes()
    for step in (2, 3):
        ckpt_torch.save(state, checkpoint_id=f"memory/{step}", store=store)
    assert private_bytes() - before < 64 * MIB


def private_bytes() -> int:
    """Memory of this process that no other has mapped."""
    with open("/proc/self/smaps_rollup") as lines:
        found = {line.split(":")[0]: line.split()[1] for line in lines if ":" in line}
    return (int(found["Private_Dirty"]) + int(found["Private_Clean"])) * 1024
