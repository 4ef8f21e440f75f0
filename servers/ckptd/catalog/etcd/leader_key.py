"""What does the leader's key say? Who has it, and where that one listens: for people, for standbys,
and for its own process to know it.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from ckpt.protocol.coordinator.leading import KeyHolder
from ckptd.catalog.etcd.words import KeyValue


class Leader(Struct, frozen=True):
    """Of `leader`: for people, to know one's own, and where it listens."""

    process: str
    host: str
    pid: int
    term: int
    lease_s: int
    id: str = ""
    address: str = ""
    since_s: float = 0.0
    """By its own wall clock, for people."""
    secret_mark: str = ""
    """Which secret it has; the secret does not follow from it."""


@dataclass(frozen=True, slots=True)
class Campaigner:
    """What the leader's key says of who takes it."""

    id: str = ""
    address: str = ""
    secret_mark: str = ""
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


def leader_of(holder: KeyValue) -> Leader | None:
    """None for one of another version."""
    try:
        return msgspec.json.decode(holder.value, type=Leader)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def holder_of(found: KeyValue) -> KeyHolder:
    leader = leader_of(found)
    if leader is None:
        return KeyHolder(found.create_revision, "")
    return KeyHolder(
        found.create_revision, leader.process, leader.id, leader.address, leader.term,
        leader.secret_mark,
    )  # fmt: skip


def name_of(holder: KeyValue) -> str:
    leader = leader_of(holder)
    if leader is None:
        return "another coordinator"
    return f"the coordinator of term {leader.term} (pid {leader.pid} on {leader.host})"


def why_free(before: KeyHolder | None, process: str, gone: KeyHolder | None) -> str:
    """Why nobody has it, as far as a process knows: who had it before, and whose process has
    ended.
    """
    if before is None:
        return "nobody led"
    if before.process == process:
        return "its own term has ended"
    if before == gone:
        return f"the process of {before.id} has ended"
    return f"{before.id} stepped down, or its lease ran out"
