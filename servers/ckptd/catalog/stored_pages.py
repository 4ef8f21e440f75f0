"""What a store has of a run, page by page, as etcd keeps it: of a long list one page is written."""

from __future__ import annotations

from ckpt.base.ids import Home
from ckpt.plan.drains import Held
from ckpt.protocol.coordinator.stores import Page, page_of


def only_page(stored: set[Held], page: Page) -> bytes | None:
    """STEP#GEN by spaces; None when nothing is in it. It looks at all, and spells no other."""
    return _spelled([one for one in stored if page_of(one[1]) == page])


class StoredPages:
    """I know all of them, of a set that is not changed but replaced."""

    def __init__(self) -> None:
        #: Which set the pages are of.
        self._made_of: set[Held] | None = None
        self._pages: dict[Page, list[Held]] = {}

    def there_are(self, stored: set[Held] | None) -> list[Page]:
        """Ascending."""
        self._look(stored)
        return sorted(self._pages)

    def spelled(self, stored: set[Held] | None, page: Page) -> bytes | None:
        """As `only_page`."""
        self._look(stored)
        return _spelled(self._pages.get(page, []))

    def _look(self, stored: set[Held] | None) -> None:
        if self._made_of is not stored:
            self._pages, self._made_of = {}, stored
            for one in stored or ():
                self._pages.setdefault(page_of(one[1]), []).append(one)


def _spelled(part: list[Held]) -> bytes | None:
    return b" ".join(str(Home(*each)).encode() for each in sorted(part)) if part else None
