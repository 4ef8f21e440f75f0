"""Where does the coordinator keep what must survive it? In a catalog: one small Protocol, whatever
stores it: a file on this host, or a store that several coordinators share.

Opening is the implementation's own (`ckptd.catalog`): one needs a directory, another
addresses and a lease, and may wait for it. What every opening promises:

- It begins a term. That is durable, and above the term of whoever opened the catalog before, when
  it returns.
- There is one writer. While another has the catalog open, opening raises Busy; or it takes the
  catalog over: once the new term is durable, the writer of an older one stores nothing more and
  hears Busy.
- A catalog that cannot be read is never begun again in its place.

It raises
    Busy                  another coordinator has it
    Refused               it is another cluster's, or a newer version wrote it
    NoSpace, Unavailable  what stores it is full, or does not let it be used now; nothing is lost
    Corrupt               it cannot be read
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ckpt.base.errors import CkptError, NoSpace
from ckpt.protocol.coordinator.catalog import Persist
from ckpt.protocol.coordinator.image import CatalogImage


class Catalog(Protocol):
    """An open catalog, in a term of its own. I expect `start` before the first `submit`, all calls
    from one thread, and `close` once, as the last one.

    - The entries of a ticket are stored together or not at all, and tickets in the order in which
      they are submitted. What is stored is the tickets up to some one, that of every acknowledged
      ticket among it, also after a kill or a power loss.
    - After a failure nothing more is acknowledged, and which of the waiting tickets are stored is
      not known. What was acknowledged stands. The only sound step is to close, and to open again.
    - Callbacks come from any thread, never from within one of my methods, and never after `close`
      has returned. They must not wait.
    """

    @property
    def cluster(self) -> str:
        """The id of the cluster that it belongs to; for ever the same."""

    @property
    def image(self) -> CatalogImage:
        """What was found when it was opened: the fold (`CatalogImage.apply`) of all entries that
        were stored, with the new term. It is the caller's, and no later entry is in it.
        """

    @property
    def full(self) -> NoSpace | None:
        """What stores it has no room: tickets wait until it has, or end with this at `close`."""

    def start(
        self, on_durable: Callable[[int], None], on_failed: Callable[[CkptError], None]
    ) -> None:
        """Begin to write. `on_durable` hears of every ticket once, in order; `on_failed` of what
        ended the writing, at most once and as the last one: Busy when another has taken it over.
        """

    def submit(self, persist: Persist) -> None:
        """Queue one ticket; returns at once. Raises the error that ended the writing, and
        Unavailable when far too many tickets wait.
        """

    def copy_to(self, path: Path, done: Callable[[CkptError | None], None]) -> None:
        """Copy all that is durable now, or more, into a file of this host that
        `ckptd.catalog.backup` reads. One that is there is replaced, once the copy is whole.

        `done` hears once that it is durable, or why there is none: that harms nothing else. It
        hears nothing when the writing ends with an error. Raises the error that has ended it.
        """

    async def close(self) -> None:
        """Wait until every ticket and copy has its callback, then let the next one open it."""
