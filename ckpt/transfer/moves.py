"""Where have columns gone since their index was written? The coordinator is asked, by readers."""

from __future__ import annotations

from typing import Final

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import PeerError
from ckpt.format.checksum import Buffer
from ckpt.format.messages.loading import AskMoves, MovesFound

ANSWER_TIMEOUT_S: Final = 30.0


def ask_moves(rpc: RpcClient, question: AskMoves) -> Buffer:
    """The encoded page. Raises NotFound, Unavailable, PeerError."""
    reply, document = rpc.call(question, timeout_s=ANSWER_TIMEOUT_S)
    if not isinstance(reply, MovesFound):
        raise PeerError(f"the coordinator answered with a {type(reply).__name__}")
    return document
