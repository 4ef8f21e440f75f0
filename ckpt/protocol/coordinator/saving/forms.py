"""Forms of an attempt's tables: what most of its ranks say alike, decoded once.

    unknown --the first of them comes--> being made --it is decoded--> known
       ^                                     |
       '------------ it has a fault ---------'

Tables that are like one that is being made wait for it; one that had a fault, which may be its
rank's alone, leaves it to the next of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ckpt.format.packed_table import TableForm, are_like
from ckpt.native.tables import TableArrays

Then = Callable[[], None]
TRIED_MAX = 16
"""Most forms that a table is compared with which is equal to none: stages of a pipeline have one
each."""


@dataclass(slots=True)
class _Making:
    arrays: TableArrays
    waiting: list[Then] = field(default_factory=list)


class TableForms:
    """I know forms by their digest (`form_digest`)."""

    def __init__(self) -> None:
        #: Of the attempt's large tables, in the order of their making.
        self._known: dict[bytes, TableForm] = {}
        #: By digest.
        self._making: dict[bytes, _Making] = {}

    def candidates(self, digest: bytes) -> Iterator[TableForm]:
        """Those that a table may have, the equal one first."""
        equal = self._known.get(digest)
        if equal is not None:
            yield equal
        others = (form for form in reversed(self._known.values()) if form is not equal)
        yield from islice(others, TRIED_MAX)

    def begin(self, digest: bytes, arrays: TableArrays, then: Then) -> bool:
        """Whether the caller has the first table of its form, and says `end` of it. Otherwise
        `then` is done once the form has ended that it may have.
        """
        making = self._making.get(digest)
        if making is None:
            tried = islice(self._making.values(), TRIED_MAX)
            making = next((one for one in tried if are_like(arrays, one.arrays)), None)
        if making is None:
            self._making[digest] = _Making(arrays)
            return True
        making.waiting.append(then)
        return False

    def end(self, digest: bytes, form: TableForm | None) -> Sequence[Then]:
        """Note what was made of it, if anything was; what those do next that waited."""
        if form is not None:
            self._known[digest] = form
        return self._making.pop(digest).waiting
