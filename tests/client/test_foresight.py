"""What a dry run of a change of a target says of time, and of what may be lost meanwhile."""

from __future__ import annotations

import pytest

from ckpt_client.cli.upkeep.foresight import Foresight

UNKNOWN = "how long that takes is unknown: repair has measured no rate yet"


@pytest.mark.parametrize(
    ("foresight", "texts"),
    [
        (Foresight(None, 0.0, None), [UNKNOWN]),
        (
            Foresight(None, 0.0, 1),
            [UNKNOWN, "meanwhile each step survives the loss of at least 1 more target"],
        ),
        (
            Foresight(90.0, 2.0 * (1 << 20), -1),
            [
                "that takes about 90 s, at 2 MiB/s",
                "meanwhile each step survives the loss of at least 0 more targets",
            ],
        ),
    ],
)
def test_it_says_what_is_known(foresight: Foresight, texts: list[str]) -> None:
    assert foresight.texts == texts
