"""`balance_above_percent` reaches the machine as a share, and 0 switches it off."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckptd.coordinator.config import CoordinatorConfig


@pytest.mark.parametrize(("percent", "share"), [(85, 0.85), (0, None), (100, 1.0)])
def test_a_percentage_is_a_share_and_none_is_never(percent: int, share: float | None) -> None:
    config = CoordinatorConfig(Path("d"), balance_above_percent=percent)
    assert config.policy("c").balance_above == share


def test_by_default_what_is_too_full_sheds_columns() -> None:
    assert CoordinatorConfig(Path("d")).policy("c").balance_above == 0.85


@pytest.mark.parametrize("percent", [-1, 101])
def test_what_is_no_percentage_is_refused(percent: int) -> None:
    with pytest.raises(Refused, match="balance_above_percent is from 0 to 100"):
        CoordinatorConfig(Path("d"), balance_above_percent=percent)
