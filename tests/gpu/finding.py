"""Is there an accelerator here? `python -m tests.gpu.finding` says so, in one loud line."""

from __future__ import annotations

import runpy
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

PLATFORMS = ("cuda", "hip", "xpu")
"""Of torch's own; macOS has another."""


def accelerator() -> str:
    """Such as `cuda:0`; empty when there is none, or no torch that knows it.

    torch takes seconds of CPU to import: a build for CPUs alone is not asked.
    """
    if is_for_cpus_alone():
        return ""
    try:
        import torch
    except ImportError:
        return ""
    if not torch.accelerator.is_available():
        return ""
    found = torch.accelerator.current_accelerator()
    return "" if found is None else f"{found.type}:0"


def is_for_cpus_alone() -> bool:
    """Whether torch, before it is imported, says that it was built for no accelerator, and nobody
    adds one to it. Not once it is imported: then it can be asked itself.
    """
    if "torch" in sys.modules or sys.platform == "darwin" or entry_points(group="torch.backends"):
        return False
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    built = Path(found.origin).with_name("version.py")
    if not built.exists():
        return False
    says = runpy.run_path(str(built))
    return not any(says.get(name, "unknown") for name in PLATFORMS)


def said() -> str:
    """What people read."""
    found = accelerator()
    return f"ACCELERATOR: {found}" if found else "NO ACCELERATOR: its tests are SKIPPED"


if __name__ == "__main__":
    sys.stdout.write(said() + "\n")
