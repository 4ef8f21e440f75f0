"""What one link of a process learns of coordinators, those after it know."""

from __future__ import annotations

from ckpt.aio.net.link_search import SharedRoster
from ckpt.format.messages.hello import CoordinatorsNamed


def test_the_next_link_begins_with_what_the_one_before_it_learned() -> None:
    given = "10.3.0.1:1,10.3.0.2:1"
    first, other = SharedRoster(given), SharedRoster("10.3.0.1:1")
    assert first.heard(CoordinatorsNamed(("10.3.0.1:1", "10.3.0.9:1")))
    assert SharedRoster(given).addresses == ("10.3.0.1:1", "10.3.0.2:1", "10.3.0.9:1")
    assert SharedRoster(given).is_listed("10.3.0.2:1")
    assert not SharedRoster(given).is_listed("10.3.0.9:1")
    assert other.addresses == SharedRoster("10.3.0.1:1").addresses == ("10.3.0.1:1",)
