"""Which revisions of etcd does nobody need any more? etcd keeps what was overwritten until somebody
compacts it; the coordinator does, so that a catalog needs the room of what it holds.

What is younger than ten minutes stays, for whoever reads at an older revision: other users of the
same etcd, and its snapshots.
"""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT_S: Final = 600.0
EVERY_S: Final = 60.0


class RevisionHistory:
    """I note revisions as time passes, and say which one may be compacted."""

    def __init__(self, kept_s: float = KEPT_S, every_s: float = EVERY_S) -> None:
        self._kept_s = kept_s
        self._every_s = every_s
        #: (time, revision), oldest first.
        self._noted: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, revision: int) -> int | None:
        """The revision is etcd's newest now. Returns one that is old enough to go, with all before
        it; each at most once. The clock never goes back.
        """
        if not self._noted or now_s >= self._noted[-1][0] + self._every_s:
            self._noted.append((now_s, revision))
        old = None
        while self._noted and self._noted[0][0] <= now_s - self._kept_s:
            old = self._noted.popleft()[1]
        return old
