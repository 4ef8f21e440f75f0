"""The wheel of the commit before the first column moved, made from this repository's history."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from tests.tree import ROOT
from tests.unpacking import unpack
from tests.wheel.environments import BUILD, once

COMMIT: Final = "c32f193e946c965bbee76d8f409df3da29c7cfb0"
"""It speaks protocol 2, as all since bulks have tags, and no copy is right but where it was put."""
_TIMEOUT_S: Final = 100.0


def is_here() -> bool:
    """False in a tarball, and in a clone that is not deep enough."""
    try:
        asked = subprocess.run(
            ["git", "-C", ROOT, "cat-file", "-e", f"{COMMIT}^{{commit}}"],
            capture_output=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return False
    return asked.returncode == 0


def earlier_wheel(folder: Path) -> Path:
    """Built in that folder, once a run."""
    once(folder, partial(_build, folder))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _build(folder: Path) -> None:
    tree, packed = folder / "tree", folder / "tree.tar"
    tree.mkdir(parents=True)
    line = ["git", "-C", ROOT, "archive", "--output", packed, COMMIT]
    subprocess.run(line, check=True, timeout=_TIMEOUT_S)
    unpack(packed, tree)
    line = [*BUILD, "--wheel", "--outdir", folder, tree]
    subprocess.run(line, check=True, capture_output=True, timeout=_TIMEOUT_S)


def without() -> str:
    """Why there is none, loudly."""
    line = f"{'*' * 20} no commit {COMMIT[:12]} here: upgrades are not tried {'*' * 20}"
    sys.__stderr__.write(line + "\n")  # type: ignore[union-attr]
    return line
