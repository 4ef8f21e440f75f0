"""Where ranks that read the same at the same time find each other: a session with the coordinator.

A load that pinned a generation has one already (Pinned.meeting); a load of what the tier knows
nothing of opens one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ckpt.aio.net.rpc import RpcClient
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role, Wire
from ckpt.format.messages.sharing import ReadsShared
from ckpt.protocol.handshake import Caller
from ckpt_client.load.reader_context import ReaderContext

ANSWER_SLACK_S: Final = 10.0
"""Beyond what the coordinator itself may wait."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """I am asked from one thread."""

    share: Callable[[Message, bytes], tuple[ReadsShared, memoryview]]
    """ShareReads, NextReads or LeaveReads and its bulk, and what to read now. Raises Refused when
    the session that shared was lost; Unavailable."""
    wire: Callable[[], Wire | None]
    """How the session is protected; None without one. From any thread."""
    address: str
    """Of the coordinator, as this process reaches it; of several, while none was reached."""
    secret: bytes
    cluster: str
    name: str
    """This process's, for people."""
    timeout_s: float
    """The load's."""


def share_key(launch_key: str | None, world_size: int | None) -> str | None:
    """What ranks that may read together have in common; None for one that is alone."""
    return None if (world_size or 1) == 1 else f"{launch_key or ''}/{world_size}"


@contextmanager
def open_meeting(context: ReaderContext, timeout_s: float) -> Iterator[Meeting]:
    """Meet in a session of its own, which ends with the block."""
    address = context.address()
    with RpcClient(
        address, Caller(context.secret, Role.READER, context.name, cluster=context.cluster)
    ) as rpc:
        yield Meeting(
            share=lambda message, bulk: ask_shared(rpc, message, bulk, timeout_s),
            wire=lambda: wire_of(rpc),
            address=rpc.server,
            secret=context.secret,
            cluster=context.cluster,
            name=context.name,
            timeout_s=timeout_s,
        )


def wire_of(rpc: RpcClient | None) -> Wire | None:
    """How its session is protected, while there is one."""
    peer = None if rpc is None else rpc.peer
    return None if peer is None else peer.wire


def ask_shared(
    rpc: RpcClient, message: Message, bulk: bytes, timeout_s: float
) -> tuple[ReadsShared, memoryview]:
    """One question of those that share reads, and its answer."""
    return rpc.ask(message, ReadsShared, bulk, timeout_s=timeout_s + ANSWER_SLACK_S)
