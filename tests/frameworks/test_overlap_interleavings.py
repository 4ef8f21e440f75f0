"""Whatever a state is made of, and in whatever order a training, its saves, the device and the link
go on: what is committed is the state at its call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, count
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckpt
from ckpt_client.save.staged import stagings_under_way
from tests.frameworks.device.emulated import NAME, Emulated
from tests.frameworks.test_overlap import WAIT_S, State, begin, change, check_loads
from tests.landing import examples

FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda tensor: tensor,
    "every other": lambda tensor: tensor[::2],
    "turned": lambda tensor: tensor[: tensor.numel() // 3 * 3].view(3, -1).t(),
    "0-d": lambda tensor: tensor[:1].view(()) if tensor.numel() else tensor,
}
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.float64)
SIZES = (0, 1, 3, 1000, 50_000, 400_000)
"""Elements: from 300,000 on they are large in every type."""
tensors = st.tuples(st.sampled_from(DTYPES), st.sampled_from(SIZES), st.sampled_from(list(FORMS)))
states = st.lists(tensors, min_size=1, max_size=8)
rounds = st.tuples(
    st.sampled_from(("hold the link", "hold the stream", "let go")),
    st.just("save"),
    st.sampled_from(("step", "torn step", "drop", "grow", "let go")),
)
"""What a save meets, and what it is overtaken by."""

_runs = count()


class Trainer:
    """I train, save and forget in the order of the events, and know what each save must hold."""

    def __init__(
        self, device: Emulated, store: ckpt.Store, made_of: list[tuple[torch.dtype, int, str]]
    ) -> None:
        self._device = device
        self._store = store
        self._run = f"interleaved-{next(_runs)}"
        self._made_of = made_of
        self._steps = 0
        self._state = self._made()
        #: (name, what it must hold, whether a step may have torn it, its future).
        self._saves: list[tuple[str, State, bool, Any]] = []
        self._held = ExitStack()

    def play(self, events: list[str]) -> None:
        with self._held:
            for event in events:
                getattr(self, f"_{event.replace(' ', '_')}")()
            self._held.close()
        for name, wanted, may_be_torn, future in self._saves:
            error = future.exception(WAIT_S)
            if error is None:
                check_loads(self._store, name, wanted)
            else:
                assert may_be_torn, error
                assert "changed while rank 0 staged it" in str(error)

    def _save(self) -> None:
        """An error of which nobody has heard would be raised by the next save."""
        torn = [future for _, _, may_be_torn, future in self._saves if may_be_torn]
        if torn:
            self._let_go()
        for future in torn:
            future.exception(WAIT_S)
        name = f"{self._run}/{len(self._saves)}"
        wanted = self._wanted()
        self._saves.append(
            (name, wanted, False, begin(self._device, self._store, name, self._state))
        )

    def _step(self) -> None:
        """What the guard does; a save in line is not queued before the one ahead is copied."""
        if len(list(stagings_under_way())) > 1:
            self._let_go()
        for staged in stagings_under_way():
            staged.follow()
        self._torn_step(torn=False)

    def _torn_step(self, torn: bool = True) -> None:
        """Nobody waits."""
        if torn:
            self._saves = [
                (name, wanted, was_torn or not future.staged.done, future)
                for name, wanted, was_torn, future in self._saves
            ]
        change(self._state)
        self._steps += 1

    def _hold_the_stream(self) -> None:
        self._held.enter_context(self._device.held_stream())

    def _hold_the_link(self) -> None:
        self._held.enter_context(self._device.held_link())

    def _let_go(self) -> None:
        self._held.close()

    def _drop(self) -> None:
        """The state is another, of the same form, before its saves are through."""
        self._state = {name: one.clone() for name, one in self._state.items()}

    def _grow(self) -> None:
        """And here of another form."""
        self._made_of = [*self._made_of, (torch.float32, 1000 * (1 + self._steps), "whole")]
        self._state = self._made()

    def _made(self) -> State:
        """On the device; only queued, as it may be held."""
        return {
            str(number): FORMS[form](whole.pin_memory().to(NAME, non_blocking=True))
            for number, (whole, form) in enumerate(self._wholes())
        }

    def _wanted(self) -> State:
        """On the CPU, after so many steps."""
        return {
            str(number): FORMS[form](whole) for number, (whole, form) in enumerate(self._wholes())
        }

    def _wholes(self) -> Iterator[tuple[torch.Tensor, str]]:
        for number, (dtype, size, form) in enumerate(self._made_of):
            yield (torch.arange(size) % 90 + number + self._steps).to(dtype), form


@pytest.fixture
def store(cluster: str, device: Emulated) -> Iterator[ckpt.Store]:
    with ckpt.open(cluster) as found:
        yield found


@settings(
    max_examples=examples(80),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    print_blob=True,
)
@given(states, st.lists(rounds, min_size=1, max_size=4))
def test_what_is_committed_is_the_state_at_its_call(
    device: Emulated,
    store: ckpt.Store,
    made_of: list[tuple[torch.dtype, int, str]],
    events: list[tuple[str, str, str]],
) -> None:
    Trainer(device, store, made_of).play([*chain(*events), "save"])
    assert device.counters().to_host.unregistered_bytes == 0
