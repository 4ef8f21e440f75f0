"""Having all targets of a cluster scrub, and seeing whether they do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import PeerError
from ckpt.format.messages.hello import Role
from ckpt.format.messages.scrubbing import AskScrub, ScrubState
from ckpt.protocol.handshake import Caller
from ckptbench.cluster import BenchCluster

ANSWER_S: Final = 30.0
POLL_S: Final = 0.1
NAME: Final = "ckptbench repair"


class Scrubs:
    """I ask each target."""

    def __init__(self, peers: Sequence[RpcClient]) -> None:
        self._peers = peers

    def begin(self) -> None:
        """All of them read all that they keep."""
        for peer in self._peers:
            _ask(peer, begin=True)

    def all_run(self) -> bool:
        """None is done."""
        return all(_ask(peer).is_asked for peer in self._peers)

    def wait_ended(self) -> None:
        """Until all are done."""
        while any(_ask(peer).is_asked for peer in self._peers):
            time.sleep(POLL_S)


@contextmanager
def scrubs(cluster: BenchCluster) -> Iterator[Scrubs]:
    """Of the targets that are live now."""
    with ExitStack() as stack:
        peers = []
        for target in cluster.status().targets:
            caller = Caller(
                cluster.secret, Role.READER, NAME, server_role=Role.TARGET, server_name=target.id
            )
            peers.append(RpcClient(target.address, caller))
            stack.callback(peers[-1].close)
        yield Scrubs(peers)


def _ask(peer: RpcClient, *, begin: bool = False) -> ScrubState:
    state, _ = peer.call(AskScrub(begin), timeout_s=ANSWER_S)
    if not isinstance(state, ScrubState):
        raise PeerError(f"a target answered with a {type(state).__name__}")
    return state
