"""The block of the architecture page that draws who tells which fact to whom."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import cast

from ckpt.erasure.code import Code
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy
from tests.reference.blocks import table
from tests.tree import Source, sources, tree_of

ROOM = "ckpt/protocol/coordinator/"


def facts_blocks() -> dict[str, str]:
    """`facts`: in the order of the table in the code."""
    machine = CoordinatorMachine(
        CoordinatorPolicy("drawn", Code(4, 2)), CatalogImage(term=1), secret=b"", wall_s=lambda: 0.0
    )
    tellers = _tellers()
    rows = [
        (
            f"`{fact.__name__}`",
            re.sub(r"\s+", " ", fact.__doc__ or "").rstrip("."),
            ", ".join(f"`{name}`" for name in tellers[fact.__name__]),
            ", ".join(f"`{_name(hearer)}`" for hearer in hearers),
        )
        for fact, hearers in machine._desk.hearers.items()
    ]
    return {"facts": table(("fact", "it says", "from", "heard by, in this order"), rows)}


def _name(hearer: object) -> str:
    method = cast(type[object], hearer)
    owner: object = getattr(method, "__self__")  # noqa: B009 - mypy knows no bound method here
    return f"{type(owner).__name__}.{method.__name__}".replace("CoordinatorMachine._", "machine: ")


def _tellers() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for source in sources():
        if source.path.startswith(ROOM):
            for teller, fact in _told_in(source):
                if teller not in found.setdefault(fact, []):
                    found[fact].append(teller)
    return found


def _told_in(source: Source) -> Iterator[tuple[str, str]]:
    """(class, fact) for each `tell(Fact(...))`."""
    for owner in ast.walk(tree_of(source)):
        if isinstance(owner, ast.ClassDef):
            for call in ast.walk(owner):
                match call:
                    case ast.Call(
                        func=ast.Attribute(attr="tell"), args=[ast.Call(func=ast.Name(id=fact))]
                    ):
                        yield owner.name, fact
                    case ast.Call(
                        func=ast.Attribute(attr="tell"),
                        args=[ast.Call(func=ast.Attribute(attr=fact))],
                    ):
                        yield owner.name, fact
