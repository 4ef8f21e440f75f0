"""The protocol's page names every message with its number."""

from __future__ import annotations

import re
from pathlib import Path

from ckpt.format.messages import MESSAGE_TYPES

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_the_page_lists_exactly_the_messages_that_there_are() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]\w+) \|", PAGE.read_text(), flags=re.MULTILINE)
    assert {int(number): name for number, name in rows} == {
        number: cls.__name__ for number, cls in MESSAGE_TYPES.items()
    }
