"""`import ckpt` costs nothing: what it loads is the standard library's, and little of that."""

from __future__ import annotations

import json
import subprocess
import sys

import ckpt

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


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(ckpt, "Checkpoints")
