"""What do committed checkpoints lack now? One look at all of them, which many questions share."""

from __future__ import annotations

from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint


class Survey:
    """I am of the moment at which I was made."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.unreadable: list[KeptCheckpoint] = []
        self.degraded: list[KeptCheckpoint] = []
        """Those that can be read, and lack columns or copies of documents."""
        self.columns_missing = self.documents_missing = 0
        """Of the degraded ones."""
        least: int | None = None
        counts = checkpoints.document_counts()
        for one in checkpoints.all():
            if one.state is not RowState.COMMITTED or checkpoints.is_about_to_be_placed(one):
                continue
            now = checkpoints.redundancy(one)
            lacking = checkpoints.documents_missing(one, counts)
            least = now.targets if least is None else min(least, now.targets)
            if now.targets < 0:
                self.unreadable.append(one)
            elif now.columns_missing or lacking:
                self.degraded.append(one)
                self.columns_missing += now.columns_missing
                self.documents_missing += lacking
        self.survivable_min = least
        """So many more targets may be lost while each can be read; None: there is none."""
