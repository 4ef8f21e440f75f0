"""In what coordinators that share a catalog have to agree: whatever shapes the cluster, whoever of
them leads.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptd.catalog.etcd.roll import Coordinator
from ckptd.coordinator.config import CoordinatorConfig
from ckptd.coordinator.disagreements import other_codes

USUAL = CoordinatorConfig(Path("d"))


@pytest.mark.parametrize(
    ("more", "shape"),
    [
        ({}, "4+2"),
        ({"code": "8+2"}, "8+2"),
        ({"level": "rack", "max_per_domain": 2}, "4+2 --level rack --max-per-domain 2"),
        ({"keep": 3, "repair": False}, "4+2 --no-repair --keep 3"),
        ({"full_percent": 90}, "4+2 --full-percent 90"),
        ({"wire": "encrypt"}, "4+2 --wire encrypt"),
    ],
)
def test_the_options_of_a_cluster_are_its_shape(more: dict[str, Any], shape: str) -> None:
    assert replace(USUAL, **more).shape == shape


@pytest.mark.parametrize(
    "more",
    [
        {"directory": Path("e")},
        {"listen": "h:1", "advertise": "h", "http": "h:2"},
        {"cluster": "c1", "log_level": "error"},
        {"catalog": "etcd://127.0.0.1:1/p", "id": "a"},
    ],
)
def test_what_one_coordinator_has_alone_is_none_of_it(more: dict[str, Any]) -> None:
    assert replace(USUAL, **more).shape == USUAL.shape


def test_who_has_which_options_is_said_where_they_differ() -> None:
    """By --keep, say, a takeover would delete steps."""
    one = Coordinator("p", "h", 1, "h:1", code=USUAL.shape)
    other = Coordinator("q", "h", 2, "h:2", code=replace(USUAL, keep=2).shape)
    assert other_codes({"a": one, "b": one}) == ""
    said = "a has --code 4+2, b has --code 4+2 --keep 2"
    assert other_codes({"b": other, "a": one}) == said
