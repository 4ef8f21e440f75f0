"""What a run and an agent say to each other, as JSON in the bulk of Ask and Answer."""

from __future__ import annotations

from typing import Final

import msgspec

from ckptbench.rank import RankAnswer, RankPlan
from ckptbench.results import HostSpent

CLUSTER: Final = "ckptbench"
"""What agents prove to be, so that no target or coordinator is taken for one."""
PORT_DEFAULT: Final = 8765
"""fio's own; the two are never meant at the same time."""
WHAT: Final = "ckptbench"
RANKS_MAX: Final = 4096
LINES_MAX: Final = 8


class AgentPing(msgspec.Struct, frozen=True, tag="ping"):
    """Are you there?"""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Start these ranks."""

    group: str
    plans: tuple[RankPlan, ...]


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """Lines for the ranks of a group, batch after batch; asked again, it is answered again."""

    group: str
    number: int
    lines: tuple[tuple[str, ...], ...]


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Forget these files' pages."""

    paths: tuple[str, ...]


class End(msgspec.Struct, frozen=True, tag="end"):
    """The ranks of a group: let them end by themselves, or kill them."""

    group: str
    kindly: bool


Request = AgentPing | Start | Tell | Drop | End


class Reply(msgspec.Struct, frozen=True):
    """What it led to; an error says why, and the answers are empty."""

    answers: tuple[tuple[RankAnswer, ...], ...] = ()
    spent: HostSpent | None = None
    """Of a Tell."""
    error: str = ""


requests: Final = msgspec.json.Decoder(Request)
replies: Final = msgspec.json.Decoder(Reply)
