"""`import ckpt` costs nothing: what it loads is the standard library's, and little of that."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from functools import reduce

import pytest

import ckpt

PROMISED: dict[str, Callable[..., object]] = {
    "open": lambda url=None, *, launch=None, replicas="abort", when_full="wait": 0,
    "Store.prepare": lambda self, state: 0,
    "Store.save": lambda self, run, step, state, *, rank=None, world_size=None, replicated=False: 0,
    "Store.resolve": lambda self, run, step=None, *, rank=None, world_size=None, fallback=False: 0,
    "Store.load": lambda self, run, step=None, like=None, *, rank=None, world_size=None, strict=True, whole=False: 0,
    "Store.steps": lambda self, run: 0,
    "Store.latest": lambda self, run: 0,
    "Store.verify": lambda self, run, step: 0,
    "Store.close": lambda self: 0,
    "Save.wait": lambda self, timeout_s=None: 0,
    "Checkpoint.load": lambda self, like=None, strict=True, whole=False: 0,
    "Shard": lambda array, global_shape, offset: 0,
    "Replicated": lambda tree: 0,
    "Box": lambda offset, shape: 0,
    "save": lambda run, step, state, *, rank=None, world_size=None, replicated=False: 0,
    "load": lambda run, step=None, like=None, *, rank=None, world_size=None, strict=True, whole=False: 0,
}  # fmt: skip
"""What users' scripts rely on: parameters may be added behind these, none renamed or taken away."""

_PROBE = """
import json, sys
before = set(sys.modules)
import ckpt
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def _loaded_by_import() -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, check=True, text=True
    )
    return set(json.loads(done.stdout))


def test_importing_ckpt_loads_no_third_party_module_no_asyncio_and_no_socket() -> None:
    loaded = {name.partition(".")[0] for name in _loaded_by_import()}
    assert loaded - {"ckpt"} <= set(sys.stdlib_module_names)
    assert not loaded & {"asyncio", "socket", "ssl", "selectors", "threading", "subprocess"}


def test_importing_ckpt_loads_nothing_of_the_client() -> None:
    assert not any(name.startswith("ckpt_client") for name in _loaded_by_import())


def test_every_public_name_can_be_loaded() -> None:
    for name in ckpt.__all__:
        assert getattr(ckpt, name) is not None


def test_the_fixed_names_are_public() -> None:
    fixed = (
        "open save load Shard Replicated Box PerRank Commit Checkpoint Save CkptError Unavailable"
    )
    assert set(fixed.split()) <= set(dir(ckpt))


@pytest.mark.parametrize("name", PROMISED)
def test_a_call_that_was_promised_is_taken(name: str) -> None:
    given: Callable[..., object] = reduce(getattr, name.split("."), ckpt)  # type: ignore[arg-type]
    parameters = inspect.signature(given).parameters
    promised = inspect.signature(PROMISED[name]).parameters
    for place, (word, wanted) in enumerate(promised.items()):
        assert parameters[word].default == wanted.default
        if wanted.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            assert [*parameters][place] == word
            assert parameters[word].kind is wanted.kind
    added = [one for word, one in parameters.items() if word not in promised]
    assert all(one.default is not inspect.Parameter.empty for one in added)


def test_what_a_commit_and_a_checkpoint_tell_has_its_promised_names() -> None:
    told = (
        "run step generation bytes stall_s commit_s targets_survivable domains_survivable "
        "slowest_rank slowest_target fault_in_s"
    )
    assert set(told.split()) <= set(ckpt.Commit.__dataclass_fields__)
    for name in ("step", "generation", "redundancy", "source"):
        assert isinstance(getattr(ckpt.Checkpoint, name), property), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(ckpt, "Checkpoints")


def test_whoever_only_asks_the_coordinator_loads_none_of_its_machines() -> None:
    """Nor numpy: a command of the shell is there at once."""
    probe = (
        "import json, sys, ckpt_client.cli.verbs.ls, ckpt_client.cli.verbs.status\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True, text=True)
    loaded = set(json.loads(done.stdout))
    of_coordinator = {name for name in loaded if name.startswith("ckpt.protocol.coordinator.")}
    room = "ckpt.protocol.coordinator.reading"
    names = ("answers", "checks", "coordinator_answers", "local_advice", "repair_answers")
    answers = {f"{room}.{name}" for name in names}
    assert of_coordinator == {room, *answers}
    assert "numpy" not in loaded
