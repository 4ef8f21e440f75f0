"""An adapter whose framework is not installed says which extra brings it."""

from __future__ import annotations

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
_IMPORT: Final = """
import importlib, sys

class Away:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Away())
try:
    importlib.import_module(sys.argv[1])
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "package"),
    [(module, package) for module, packages in NEEDED.items() for package in packages],
)
def test_it_is_named_where_it_is_away(module: str, package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, module, package],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert f"needs the package {package}, which is not installed" in done.stdout
    assert install_command(EXTRA_OF[package]) in done.stdout
