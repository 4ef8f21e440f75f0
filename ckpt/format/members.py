"""Files as members of a checkpoint: how a payload that is one file describes itself, and the list
that closes an attempt.

    payload   | the file's bytes |0000| tree document |
              0                  length, up to 64     payload_bytes

A file's name is its path below the run, such as `1200/__0_0.distcp`: segments joined by `/`. Its
table has one entry, a SHARD of bytes that is the whole tensor, named by the path of its segments,
so a load of the whole checkpoint gives a dict of byte arrays. Member numbers stand where ranks do.

The list is a MessagePack array of [name, length, fingerprint], in the bulk of CommitMembers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import LaunchNumber, Rank
from ckpt.base.limits import (
    FRAME_BULK_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    TENSOR_NAME_BYTES_MAX,
    TREE_DEPTH_MAX,
    WORLD_SIZE_MAX,
)
from ckpt.base.units import align_up
from ckpt.format.checksum import XXH3_BYTES, Buffer
from ckpt.format.table import Meaning, Piece, RankTable, TensorEntry
from ckpt.format.tree import DictNode, LeafNode, Node, encode_tree, path_text

NO_LAUNCH: Final = LaunchNumber(0)
"""Members belong to no launch: launch numbers begin with their coordinator's term, which is not 0.
"""
DTYPE: Final = "|u1"
DOCUMENT_ALIGN: Final = 64
MEMBERS_MAX: Final = WORLD_SIZE_MAX


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One file of a checkpoint."""

    name: str
    length: int
    """Bytes."""
    fingerprint: bytes
    """xxh3-128 of its bytes."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """How a file becomes a payload."""

    payload_bytes: int
    document_offset: int
    document: bytes
    """The tree document; zeros lie between the file's end and it."""


def check_member_name(name: str) -> str:
    """The name, or Refused with the rule that it breaks."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Refused(f"file name {name!r} is not valid Unicode") from None
    # Escapes may double it in the table.
    if not 1 <= size <= TENSOR_NAME_BYTES_MAX // 2:
        raise Refused(f"a file name of {size} bytes: 1 to {TENSOR_NAME_BYTES_MAX // 2} are allowed")
    segments = name.split("/")
    if len(segments) >= TREE_DEPTH_MAX or any(part in ("", ".", "..") for part in segments):
        raise Refused(f"file name {name!r} has an empty, '.' or '..' segment, or too many")
    return name


def entry_name(name: str) -> str:
    """The file's name as its table and the index spell it."""
    return path_text(tuple(name.split("/")))


def name_of_entry(text: str) -> str:
    """The inverse of `entry_name`."""
    return "/".join(_unescaped(part) for part in text.split("/"))


def plan_member(name: str, length: int) -> MemberPlan:
    """The payload of a file. Raises Refused when it is too large."""
    node: Node = LeafNode(entry_name(name))
    for segment in reversed(name.split("/")):
        node = DictNode(((segment, node),))
    document = encode_tree(node)
    offset = align_up(length, DOCUMENT_ALIGN)
    if offset + len(document) > PAYLOAD_BYTES_MAX:
        raise Refused(f"{name}: a file of {length} bytes is larger than a payload may be")
    return MemberPlan(offset + len(document), offset, document)


def member_table(number: Rank, member: Member) -> RankTable:
    """What the coordinator learns of a file."""
    pieces = (Piece(0, 0, member.length),) if member.length else ()
    shape = (member.length,)
    entry = TensorEntry(
        name=entry_name(member.name),
        meaning=Meaning.SHARD,
        dtype=DTYPE,
        global_shape=shape,
        offset=(0,),
        shape=shape,
        pieces=pieces,
        fingerprint=member.fingerprint,
    )
    return RankTable(number, MEMBERS_MAX, (entry,))


def member_of_table(name: str, number: Rank, table: RankTable) -> Member | None:
    """The file that a table describes; None when it is not this member's."""
    if len(table.entries) != 1:
        return None
    entry = table.entries[0]
    member = Member(name, sum(entry.shape), entry.fingerprint)
    whole = len(entry.fingerprint) == XXH3_BYTES and table == member_table(number, member)
    return member if whole else None


def encode_members(members: Iterable[Member]) -> bytes:
    """The list, by name. Raises Refused when it is too long for a message."""
    ordered = sorted(members)
    document = msgspec.msgpack.encode([(m.name, m.length, m.fingerprint) for m in ordered])
    if len(document) > FRAME_BULK_BYTES_MAX:
        raise Refused(f"a list of {len(ordered)} files does not fit one message")
    return document


def decode_members(document: Buffer) -> tuple[Member, ...]:
    """The inverse; raises Corrupt, also for names that are not unique and ascending."""
    try:
        rows = _ROWS.decode(document)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a list of members does not parse: {error}") from None
    members = tuple(Member(*row) for row in rows)
    for before, after in pairwise(members):
        if before.name >= after.name:
            raise Corrupt(f"a list of members: {after.name} is not in order")
    return members


_ROWS: Final = msgspec.msgpack.Decoder(list[tuple[str, int, bytes]])
_ESCAPES: Final = (("~.", ""), ("~2", "#"), ("~3", "="), ("~1", "/"), ("~0", "~"))


def _unescaped(text: str) -> str:
    for escaped, plain in _ESCAPES:
        text = text.replace(escaped, plain)
    return text
