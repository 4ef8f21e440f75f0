"""Are all keys of a catalog still there?

Whoever leads knows all that it holds, and never looks again. A key that somebody removed, by the
wrong prefix say, is missed by nobody before the next one loads the rest: rules and names would be
gone, and with them what they keep. So each term notes how many keys there are, in the transaction
that makes them more or fewer.

The note of a term says nothing once another version has led, which keeps none: it counts only for
the term right after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.values import count_of


def census(term: int, count: int) -> bytes:
    """The value of `count`."""
    return f"{term} {count}".encode()


def lacking(pairs: Iterable[tuple[str, bytes]], image: CatalogImage) -> str:
    """What people are to hear of keys that the image, which was loaded from these pairs for its
    term, lacks; empty if it lacks none, or nobody knows.
    """
    noted = next((value for name, value in pairs if name == keys.COUNT), b"").split()
    if len(noted) != 2 or noted[0] != str(image.term - 1).encode() or not noted[1].isdigit():
        return ""
    there, known = count_of(image), int(noted[1])
    if there >= known:
        return ""
    return f"{known - there} of its {known} keys in etcd are gone, which somebody has removed"
