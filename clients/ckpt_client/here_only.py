"""What belongs to the process that made it can be neither pickled nor copied: it holds sockets,
locks and threads. Said in words, where Python would speak of a lock.
"""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from ckpt.base.errors import Refused


class HereOnly:
    """I am handed to no other process. Who inherits from me says what to do there instead."""

    def _instead(self) -> str:
        raise NotImplementedError

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        """Raises Refused."""
        raise Refused(
            f"a {type(self).__name__} can be neither pickled nor copied: it belongs to the process "
            "that made it",
            hint=self._instead(),
        )
