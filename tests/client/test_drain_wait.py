"""What `ckpt drain wait` waits for, and when nobody will bring it."""

from __future__ import annotations

import pytest

from ckpt.base.errors import Unavailable
from ckpt.protocol.coordinator.reading.answers import (
    AttemptView,
    CoordinatorView,
    RunView,
    StatusView,
    StoreStatus,
)
from ckpt_client.cli.upkeep.drain import Awaited, still_need

BEGUN_S = 1000.0
URL = "s3://b/runs"


def store(
    *, backlog: int = 1, oldest_s: float = BEGUN_S, workers: tuple[str, ...] = ("w",),
    unserved_s: float = 0.0, state: str = "draining", error: str = "",
) -> StoreStatus:  # fmt: skip
    return StoreStatus(
        URL, state, workers=workers, backlog=backlog, oldest_undrained_at_s=oldest_s,
        unserved_s=unserved_s, error=error,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("one", "behind"),
    [
        (store(), True),
        (store(oldest_s=BEGUN_S - 5), True),
        (store(oldest_s=BEGUN_S + 0.1), False),
        (store(backlog=0, oldest_s=0.0, state="idle"), False),
        (store(state="failing", error="denied"), True),
        (store(workers=(), unserved_s=59.0, state="waiting"), True),
        (store(backlog=0, oldest_s=0.0, workers=(), unserved_s=999.0, state="idle"), False),
    ],
)
def test_only_what_was_committed_by_then_is_waited_for(one: StoreStatus, behind: bool) -> None:
    has_all = store(backlog=0, oldest_s=0.0, state="idle")
    assert still_need([has_all, one], BEGUN_S) is behind


@pytest.mark.parametrize(
    ("one", "cause"),
    [
        (
            store(workers=(), unserved_s=61.0, state="waiting"),
            "1 checkpoint .* no worker serves it",
        ),
        (store(backlog=0, state="unreached", error="no such bucket"), "opened: no such bucket"),
    ],
)
def test_what_nobody_brings_is_not_waited_for(one: StoreStatus, cause: str) -> None:
    with pytest.raises(Unavailable, match=cause):
        still_need([one], BEGUN_S)


def look(*saving: int, committed_at_s: float = BEGUN_S) -> StatusView:
    """At a cluster where these steps of a run are being saved."""
    attempts = tuple(AttemptView("run", step, "1.1", "writing", 1, 0, 1, 8) for step in saving)
    return StatusView(
        "c", CoordinatorView(), "HEALTH_OK", (), "4+2", 1, 1, (),
        (RunView("run", 1, 1, 8, committed_at_s),), attempts,
    )  # fmt: skip


def test_a_save_under_way_is_waited_for_and_one_that_begins_meanwhile_is_not() -> None:
    drained = [store(backlog=0, oldest_s=0.0, state="idle")]
    awaited = Awaited(look(7))
    assert awaited.is_left(look(7), drained), "it has no commit yet that a store could need"
    # It is committed, and the next one has begun.
    later = look(8, committed_at_s=BEGUN_S + 5)
    assert awaited.is_left(later, [store(oldest_s=BEGUN_S + 5)])
    assert not awaited.is_left(look(8, committed_at_s=BEGUN_S + 5), drained)
    # What is committed from then on is not waited for.
    newest = look(committed_at_s=BEGUN_S + 9)
    assert not awaited.is_left(newest, [store(oldest_s=BEGUN_S + 9)])
