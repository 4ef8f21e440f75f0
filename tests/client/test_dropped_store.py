"""A store that nobody has any more, while one of its saves is under way or a guard watches."""

from __future__ import annotations

import gc
import signal
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import ckpt
from ckpt_client.store import Store
from tests.client.clikit import run

TIMEOUT_S = 60.0
STATE = np.arange(1 << 20)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("burst")
    yield f"ckpt+local://{directory}?targets=3&code=1+1&pretend_domains=1"
    assert run("local", "stop", str(directory)).code == 0


@pytest.mark.parametrize("staging", ["copy", "overlap"])
def test_a_save_whose_store_nobody_keeps_is_waited_for(url: str, staging: str) -> None:
    commit = ckpt.open(url).save(staging, 1, {"x": STATE}, staging=staging).wait(TIMEOUT_S)
    assert commit.targets_survivable == 1
    assert np.array_equal(ckpt.open(url).load(staging, 1)["x"], STATE)


def test_a_store_closes_once_the_save_that_kept_it_was_waited_for(url: str) -> None:
    gc.disable()  # It must not need the collector, which a training may have switched off.
    try:
        store = ckpt.open(url)
        kept: weakref.ref[Store] = weakref.ref(store)
        save = store.save("kept", 1, {"x": STATE})
        del store
        assert kept() is not None
        save.wait(TIMEOUT_S)
        assert kept() is None
    finally:
        gc.enable()


def test_a_guard_whose_store_nobody_keeps_says_that_it_watches_no_more(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler = signal.getsignal(signal.SIGUSR1)
    guard = ckpt.open(url).preemption("watched", signals=("SIGUSR1",))
    assert signal.getsignal(signal.SIGUSR1) is handler
    (said,) = (one.getMessage() for one in caplog.records if one.name == "ckpt.preemption")
    assert said.startswith("watched: its store is gone")
    assert "keep what ckpt.open returns" in said
    guard.close()


def test_a_guard_that_was_closed_says_nothing_when_its_store_goes(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = ckpt.open(url)
    store.preemption("closed", signals=("SIGUSR1",)).close()
    gone = weakref.ref(store)
    del store
    assert gone() is None
    assert not [one for one in caplog.records if one.name == "ckpt.preemption"]
