"""Which version of the protocol brought a message: what a peer does not know is never said to it.

Fields need no version, since unknown ones are passed over; kinds of documents do, since a reader
that does not know one ends the session.
"""

from __future__ import annotations

from typing import Final

from ckpt.base.errors import Refused
from ckpt.format.messages import MESSAGE_TYPES, Message
from ckpt.format.messages.hello import (
    MOVES_VERSION,
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    TAGS_VERSION,
    Role,
)
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import PutDocument

#: Numbers of messages that 0.1.0 did not know, and those of them that came with columns that move.
_SECOND: Final = frozenset({10, 11, 23, *range(109, 124)})
_THIRD: Final = frozenset({*range(124, 158)})
_SINCE: Final = {
    kind: MOVES_VERSION if number in _THIRD else TAGS_VERSION
    for number, kind in MESSAGE_TYPES.items()
    if number in _SECOND | _THIRD
}


def since(message: Message) -> int:
    """The first version that understands it."""
    if isinstance(message, PutDocument) and message.kind is DocumentKind.LABELS:
        return TAGS_VERSION
    return _SINCE.get(type(message), OLDEST_VERSION)


def check_known(message: Message, role: Role, version: int) -> None:
    """Raises Refused for what a peer of this version does not know."""
    if version < PROTOCOL_VERSION and since(message) > version:
        text = f"the {role.value} speaks protocol {version}, which has no {type(message).__name__}"
        raise Refused(text, hint=f"upgrade the {role.value} first: see ckpt upgrade status")


def of_version(error: Refused, question: str, version: int) -> Refused:
    """The refusal of a question to a coordinator of this version: with what to do, where the
    version is older than the question; else as it is.
    """
    is_unknown = error.message.startswith(f"{question!r} is not one of ")
    if not (is_unknown and 0 < version < PROTOCOL_VERSION):
        return error
    return Refused(
        f"the coordinator speaks protocol {version}, which does not answer {question!r}",
        hint="upgrade the coordinator first: see ckpt upgrade status",
    )
