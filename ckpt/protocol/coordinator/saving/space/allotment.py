"""The places of one payload: what is reserved, who was asked for it, and who refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ckpt.base.errors import Unavailable
from ckpt.base.ids import ColumnNumber, TargetId
from ckpt.format.layout import Layout
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import Place
from ckpt.protocol.events import Session

PATIENCE_US = 1_000_000
"""A target that has not reserved within this is passed over; what it reserves later goes back."""


@dataclass(slots=True)
class Allotment:
    """Reserved places for one payload: columns by number, spares in order."""

    layout: Layout
    file_bytes: int
    columns: dict[ColumnNumber, Place] = field(default_factory=dict)
    spares: list[Place] = field(default_factory=list)
    refused: dict[TargetId, Failed] = field(default_factory=dict)
    """Targets that gave no space, and what they said. They are not asked again for this allotment,
    except those that were silent (`may_ask`)."""
    intended: dict[ColumnNumber, TargetId] = field(default_factory=dict)
    """Who was asked last for each column, answered or not: two columns never share a target."""
    asked_spares: set[TargetId] = field(default_factory=set)
    """Targets that hold a spare or are asked for one: no column goes there by another way."""
    returns: defaultdict[tuple[ColumnNumber, TargetId], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """When a column went back to a target where it had failed, each time. Kept by SpareSearch."""
    is_admitted: bool = False
    """Its save was let in, or it is repair's: it may take what saves that begin do not get."""
    open_questions: int = 0
    patience_us: int = PATIENCE_US
    heard_by: Session | None = None
    """While it stands: the stager that has heard of it; None when nobody has."""
    idle_since_us: int = 0
    released: bool = False
    """Its save ended: a place that is still being asked for goes back when it comes."""

    @property
    def places(self) -> list[Place]:
        return [*self.columns.values(), *self.spares]

    @property
    def absent(self) -> tuple[ColumnNumber, ...]:
        wanted = range(self.layout.code.n)
        return tuple(ColumnNumber(j) for j in wanted if j not in self.columns)

    def may_ask(self, target: TargetId) -> bool:
        """Whether a target was not asked yet, or was silent when it was."""
        refusal = self.refused.get(target)
        return refusal is None or refusal.code == Unavailable.code

    def note_held(self, held: Iterable[tuple[ColumnNumber, TargetId]]) -> None:
        """Note that their stager has put these columns there: no other column is meant to go
        there.
        """
        now = dict(held)
        taken = set(now.values())
        left = {column: id for column, id in self.intended.items() if id not in taken}
        self.intended = left | now

    def forgive_silence(self) -> None:
        """Targets without a place here that were silent may be asked again."""
        holding = {place.target for place in self.places}
        forgiven = {id for id in self.refused if id not in holding and self.may_ask(id)}
        for target in forgiven:
            del self.refused[target]
        self.asked_spares -= forgiven
        for column, target in list(self.intended.items()):
            if target in forgiven:
                del self.intended[column]
