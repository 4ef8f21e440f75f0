"""An adapter whose framework is not installed says which extra brings it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

from ckpt.base.extras import EXTRA_OF, install_command

NEEDED: Final = {
    "ckpt_jax": ("jax",),
    "ckpt_torch": ("torch",),
    "ckpt_torch.accelerate": ("torch", "accelerate"),
    "ckpt_torch.lightning": ("torch", "lightning"),
    "ckpt_torch.nvrx": ("torch", "nvidia_resiliency_ext"),
    "ckpt_torch.torch_checkpointing": ("torch", "torch_checkpointing"),
    "ckpt_torch.torchtitan": ("torchtitan",),
    "ckpt_torch.transformers": ("torch", "safetensors", "transformers"),
}
"""Module -> the packages that it imports."""
PAIRS: Final = [(module, package) for module, packages in NEEDED.items() for package in packages]
_IMPORT: Final = """
import importlib, json, os, sys

class Away:
    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def said(module, package):
    theirs, ours = os.pipe()
    if os.fork() == 0:
        sys.meta_path.insert(0, Away(package))
        try:
            importlib.import_module(module)
        except ImportError as error:
            os.write(ours, str(error).encode())
        os._exit(0)
    os.close(ours)
    with open(theirs, "rb") as answer:
        text = answer.read().decode()
    os.wait()
    return text

early, late = json.loads(sys.argv[1])
found = [said(*pair) for pair in early]
import ckpt_torch
print(json.dumps([*found, *(said(*pair) for pair in late)]))
"""
"""Each module is imported in a process of its own. Where torch is not what is away it is there
already, with all that each adapter imports of it: that is most of the work."""


@pytest.fixture(scope="module")
def said() -> dict[tuple[str, str], str]:
    """Module, and the package that is away -> the error of the import."""
    early = [pair for pair in PAIRS if pair[1] in ("torch", "jax")]
    late = [pair for pair in PAIRS if pair not in early]
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, json.dumps([early, late])],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return dict(zip([*early, *late], json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("module", "package"), PAIRS)
def test_it_is_named_where_it_is_away(
    said: dict[tuple[str, str], str], module: str, package: str
) -> None:
    text = said[module, package]
    assert f"needs the package {package}, which is not installed" in text
    assert install_command(EXTRA_OF[package]) in text
