"""What is old enough to be compacted, as time passes."""

from __future__ import annotations

from ckptd.catalog.etcd.history import EVERY_S, KEPT_S, RevisionHistory


def test_a_revision_goes_once_when_it_is_ten_minutes_old() -> None:
    history = RevisionHistory()
    gone = {
        now_s: old
        for now_s in range(0, 1200, 10)
        if (old := history.note(float(now_s), 100 + now_s)) is not None
    }
    assert gone == {now_s: 100 + now_s - int(KEPT_S) for now_s in range(600, 1200, int(EVERY_S))}


def test_after_a_long_pause_the_newest_old_one_goes() -> None:
    history = RevisionHistory()
    for now_s in range(0, 300, 60):
        assert history.note(float(now_s), now_s) is None
    assert history.note(5000.0, 999) == 240
    assert history.note(5001.0, 1000) is None
