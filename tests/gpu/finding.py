"""Is there an accelerator here? `python -m tests.gpu.finding` says so, in one loud line."""

from __future__ import annotations

import sys


def accelerator() -> str:
    """Such as `cuda:0`; empty when there is none, or no torch that knows it."""
    try:
        import torch
    except ImportError:
        return ""
    if not torch.accelerator.is_available():
        return ""
    found = torch.accelerator.current_accelerator()
    return "" if found is None else f"{found.type}:0"


def said() -> str:
    """What people read."""
    found = accelerator()
    return f"ACCELERATOR: {found}" if found else "NO ACCELERATOR: its tests are SKIPPED"


if __name__ == "__main__":
    sys.stdout.write(said() + "\n")
