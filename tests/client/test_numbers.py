"""Numbers that a caller gives: what is no number is refused by name, what is too long is long."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator

import numpy as np
import pytest

import ckpt
from ckpt.base.errors import Refused
from ckpt.base.units import check_seconds
from ckpt_client.environment import LAUNCH_KEY_BYTES_MAX
from ckpt_client.settings import Settings, checked_settings
from tests.client.clikit import run

STATE = {"a": np.arange(8)}
NO_SECONDS = (math.nan, np.float64("nan"), "5", b"5", True, [5])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ckpt.Store]:
    directory = tmp_path_factory.mktemp("numbers")
    with ckpt.open(f"ckpt+local://{directory}?targets=3&code=2+1") as store:
        store.save("run", 1, STATE).wait()
        yield store
    assert run("local", "stop", str(directory)).code == 0
    shutil.rmtree(directory)


def test_seconds_are_numbers_of_any_kind_and_a_time_that_is_over_is_none() -> None:
    for given, seconds in ((5, 5.0), (np.int64(5), 5.0), (np.float32(0.5), 0.5), (-3, 0.0)):
        assert check_seconds("timeout_s", given) == seconds
    assert check_seconds("timeout_s", -math.inf) == 0.0
    assert 1e6 < check_seconds("timeout_s", math.inf) < math.inf


@pytest.mark.parametrize("given", NO_SECONDS)
def test_what_is_no_time_is_refused_by_name_wherever_a_call_takes_one(
    store: ckpt.Store, given: object
) -> None:
    save = store.save("run", 2, STATE)
    for call in (
        lambda: store.load("run", timeout_s=given),  # type: ignore[arg-type]
        lambda: store.resolve("run", 1, timeout_s=given),  # type: ignore[arg-type]
        lambda: store.preemption("run", grace_s=given),  # type: ignore[arg-type]
        lambda: store.close(given),  # type: ignore[arg-type]
        lambda: save.wait(given),  # type: ignore[arg-type]
        lambda: save.wait_ended(given),  # type: ignore[arg-type]
        lambda: save.staged.wait(given),  # type: ignore[arg-type]
    ):
        with pytest.raises(Refused, match=r"(timeout|grace)_s=.* is not a number of seconds"):
            call()
    assert not store.closed
    assert save.wait().step == 2


def test_a_call_waits_as_long_as_somebody_says_who_has_no_limit(store: ckpt.Store) -> None:
    assert store.save("run", 3, STATE).wait(math.inf).step == 3
    save = store.save("run", 4, STATE, staging="overlap")
    assert save.staged.wait(math.inf)
    assert save.wait(1e300).step == 4
    assert store.load("run", timeout_s=math.inf)["a"][7] == 7  # type: ignore[index]


def settings(**given: object) -> Settings:
    options: dict[str, object] = {
        "launch": None, "replicas": "abort", "when_full": "wait", "unchanged": "warn",
        "references": True, "arena_bytes_max": None, "stager_idle_s": 60.0,
        "start_timeout_s": 60.0, "durable": None, **given,
    }  # fmt: skip
    return checked_settings(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [*NO_SECONDS, None])
@pytest.mark.parametrize("name", ["stager_idle_s", "start_timeout_s"])
def test_an_options_time_is_refused_by_name(name: str, given: object) -> None:
    with pytest.raises(Refused, match=rf"{name}=.* is not a number of seconds"):
        settings(**{name: given})


@pytest.mark.parametrize("given", [0, -1, 1.5, "64MiB", True, math.inf, 1 << 63])
def test_a_cap_of_memory_that_is_no_size_is_refused_by_name(given: object) -> None:
    with pytest.raises(Refused, match=r"arena_bytes_max=.* is not a number of bytes"):
        settings(arena_bytes_max=given)
    assert settings(arena_bytes_max=np.int64(4096)).arena_bytes_max == 4096


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"launch": 5}, "launch=5 is no text"),
        ({"launch": "\ud800"}, "launch=.* is not valid Unicode"),
        ({"launch": "ä" * 2049}, "launch= of 4098 bytes: 1 to 4096 are allowed"),
        ({"references": "no"}, "references='no' is not True or False"),
        ({"durable": 5}, "durable=5 is not the URL of an object store"),
        ({"durable": "bucket/runs"}, "durable='bucket/runs' is not the URL of an object store"),
        ({"durable": "s3://"}, "durable='s3://' is not the URL of an object store"),
    ],
)
def test_an_option_that_no_store_can_have_is_refused_as_it_is_opened(
    given: dict[str, object], said: str
) -> None:
    """Not by a stager that dies of it, or by the first load that needs the object store."""
    with pytest.raises(Refused, match=said):
        settings(**given)


def test_options_at_their_limits_are_taken() -> None:
    taken = settings(launch="ä" * 2048, references=np.False_, durable="file:///runs")
    assert len((taken.launch or "").encode()) == LAUNCH_KEY_BYTES_MAX
    assert taken.references is False
    assert taken.durable == "file:///runs"
