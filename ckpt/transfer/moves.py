"""Where have columns gone since their index was written? The coordinator is asked, by readers."""

from __future__ import annotations

from typing import Final

from ckpt.aio.net.rpc import RpcClient
from ckpt.format.checksum import Buffer
from ckpt.format.messages.loading import AskMoves, MovesFound

ANSWER_TIMEOUT_S: Final = 30.0


def ask_moves(rpc: RpcClient, question: AskMoves) -> Buffer:
    """The encoded page. Raises NotFound, Unavailable, PeerError."""
    return rpc.ask(question, MovesFound, timeout_s=ANSWER_TIMEOUT_S)[1]
