"""Proofs of the checks of scrub and repair, for test_health_checks.py."""

from __future__ import annotations

from pathlib import Path

from tests.client.checkkit import RUN_NAME, made
from tests.client.clikit import flip, run


def a_last_header_that_rots(folder: Path) -> None:
    with made(folder, repairs=False) as case:
        path = case.columns(1)[0]
        flip(path, -1)
        holder = path.parents[1].name
        assert run("scrub", holder, environ=case.environ).code == 3
        case.prove("ROT", f"^ckpt rm {RUN_NAME}@1$", f"1 part .*: {holder}: header 2 of column ")


def a_repair_that_is_paused(folder: Path) -> None:
    """With 2+1 the loss of one target leaves nothing to lose: its columns are due at once."""
    with made(folder) as case:
        assert run("repair", "pause", environ=case.environ).code == 0
        assert case.check("REPAIR_PAUSED") is None, "nothing is due"
        case.kill("t1")
        case.prove("REPAIR_PAUSED", "^ckpt repair resume$", f"columns? .* made again: {RUN_NAME}@")
