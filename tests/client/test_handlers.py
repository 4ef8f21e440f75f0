"""Which of other people's code inside a call of ours is a signal's handler?"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import ckpt
from tests.client.bits import bits_of

STATE = {"a": np.arange(1000)}
WAIT_S = 60.0


def load_between(
    url: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """Load a step, with somebody's code around what the load asks its store."""
    resolve, called = ckpt.Store.resolve, []

    def traced(store: ckpt.Store, *given: object, **named: object) -> object:
        called.append(meanwhile())
        return resolve(store, *given, **named)  # type: ignore[arg-type]

    with ckpt.open(url) as store:
        store.save("r", 1, STATE).wait(WAIT_S)
        monkeypatch.setattr(ckpt.Store, "resolve", traced)
        found = store.load("r", 1)
    assert called
    assert isinstance(found, dict)
    assert bits_of(found["a"]) == bits_of(STATE["a"])


def test_a_method_that_somebody_wraps_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_between(f"ckpt+local://{tmp_path}/burst?targets=3&code=2+1", monkeypatch, lambda: None)


def test_what_a_signal_calls_is_one_and_the_call_that_it_interrupts_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, heard = f"ckpt+local://{tmp_path}/burst?targets=3&code=2+1", []

    def handler(_number: int, _frame: FrameType | None) -> None:
        with pytest.raises(ckpt.Refused, match="set a flag in the handler") as refused:
            ckpt.save("r", 2, STATE)
        heard.append(refused.value)

    monkeypatch.setenv("CKPT_STORE", url)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        load_between(url, monkeypatch, lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(heard) == 1
