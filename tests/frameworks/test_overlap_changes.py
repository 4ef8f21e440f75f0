"""A change that is under way while its tensor is copied: torch counts it as it ends. And how often
a call asks thousands of tensors what they are: the training stands still meanwhile.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch

import ckpt
import ckpt_torch
from ckpt_torch.staging import copying, watch
from tests.frameworks.test_overlap import WAIT_S
from tests.frameworks.test_torn_states import held_save, outcome

LARGE = 60_000_000
"""Elements: one thread takes longer to change them all than to copy the first ones."""
SAVED = 1000


def test_a_change_that_began_before_the_copy_and_ends_after_it_is_seen(cluster: str) -> None:
    whole = torch.zeros(LARGE)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torn = 0
    try:
        with ckpt.open(cluster) as store:
            for step in range(1, 6):
                before = float(whole[0])
                future = ckpt_torch.async_save(
                    {"a": whole[:SAVED]}, checkpoint_id=f"long/{step}", store=store,
                    staging="overlap",
                )  # fmt: skip
                whole.add_(1)
                error = future.exception(WAIT_S)
                if error is not None:
                    assert "changed while rank 0 staged it" in str(error)
                    torn += 1
                    continue
                found = {"a": torch.full((SAVED,), -1.0)}
                ckpt_torch.load(found, checkpoint_id=f"long/{step}", store=store)
                assert torch.equal(found["a"], torch.full((SAVED,), before))
    finally:
        torch.set_num_threads(threads)
    assert torn, "the copies were overtaken"


def test_a_state_of_the_known_form_is_asked_once_where_it_lies(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    caller = threading.get_ident()

    def counted(name: str, ask: Callable[[torch.Tensor], object]) -> Callable[..., object]:
        def call(tensor: torch.Tensor) -> object:
            asked[name] += threading.get_ident() == caller
            return ask(tensor)

        return call

    for module, name in ((copying, "_is_cpu"), (watch, "_is_cpu"), (watch, "_address_of")):
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    state: dict[str, object] = {str(n): torch.full((n,), float(n)) for n in range(1, 11)}
    for number in (1, 2):
        asked.clear()
        future = held_save(f"{cluster}/asked", number, {"net": state})
        if number == 2:
            assert asked == {"_is_cpu": len(state), "_address_of": len(state)}
        state["1"].add_(1)  # type: ignore[attr-defined]
        assert "net/1 changed while rank 0 staged it" in outcome(future)
        ckpt_torch.save({"net": state}, checkpoint_id=f"{cluster}/asked/{number}")
