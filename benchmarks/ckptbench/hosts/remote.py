"""The ranks of one launch on many hosts, as one group.

Rank r runs on host r // (ranks of a host). The common beginning is each host's own clock after the
word has come: hosts begin as far apart as the word travels, which `start_skew_s` bounds.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError, PeerError
from ckpt.format.messages.asking import Answer as AnswerMessage
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from ckptbench.hosts.words import (
    CLUSTER,
    PORT_DEFAULT,
    WHAT,
    AgentPing,
    Drop,
    End,
    Reply,
    Request,
    Start,
    Tell,
    replies,
)
from ckptbench.rank import RankAnswer, RankPlan
from ckptbench.ranks import ANSWER_TIMEOUT_S, LEAD_NS, RankGroup
from ckptbench.results import HostSpent

_T = TypeVar("_T")
CALL_TIMEOUT_S: Final = 2 * ANSWER_TIMEOUT_S
PINGS: Final = 5
HINT: Final = "is `ckptbench agent` running there?"


def parse_hosts(text: str) -> tuple[str, ...]:
    """`a,b:9000` as addresses."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    return tuple(one if ":" in one else f"{one}:{PORT_DEFAULT}" for one in found)


class Hosts:
    """I hold a connection to each agent."""

    def __init__(self, addresses: Sequence[str], secret: bytes) -> None:
        self.addresses = tuple(addresses)
        self._pool = ThreadPoolExecutor(max(1, len(addresses)), thread_name_prefix="hosts")
        self._clients = [
            RpcClient(
                address,
                Caller(secret, Role.ADMIN, "ckptbench", server_role=Role.ADMIN, cluster=CLUSTER),
                lasting=False,
            )
            for address in addresses
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self._pool.shutdown()

    def hang_up(self) -> None:
        """Agents end what they run; calls under way fail."""
        for client in self._clients:
            client.close()

    def start_skew_s(self) -> float:
        """The longest round trip to an agent, best of some: no two hosts begin further apart.

        Raises Unavailable or Unauthorized for an agent that does not answer.
        """
        skew = 0.0
        for number in range(len(self.addresses)):
            trips = []
            for _ in range(PINGS):
                begun = time.monotonic()
                self.ask(number, AgentPing(), timeout_s=10.0)
                trips.append(time.monotonic() - begun)
            skew = max(skew, min(trips))
        return skew

    def make_ranks(
        self, plans: Sequence[RankPlan], environment: Mapping[str, str], log_directory: Path
    ) -> RankGroup:
        """Spread over the hosts; they have environments and directories of their own."""
        return RemoteRanks(self, plans)

    def ask(self, host: int, request: Request, timeout_s: float = CALL_TIMEOUT_S) -> Reply:
        """One host. Raises CkptError naming it."""
        try:
            message, bulk = self._clients[host].call(
                Ask(WHAT), msgspec.json.encode(request), timeout_s=timeout_s
            )
        except CkptError as error:
            text = f"{self.addresses[host]}: {error.message}"
            raise type(error)(text, hint=error.hint or HINT) from None
        if not isinstance(message, AnswerMessage):
            raise PeerError(f"{self.addresses[host]} answered with a {type(message).__name__}")
        return replies.decode(bytes(bulk))

    def at_once(self, calls: Sequence[Callable[[], Reply]]) -> list[Future[Reply]]:
        """One call for each host, at the same time."""
        return [self._pool.submit(call) for call in calls]


class RemoteRanks:
    """See RankGroup."""

    def __init__(self, hosts: Hosts, plans: Sequence[RankPlan]) -> None:
        self._hosts, self._name = hosts, secrets.token_hex(8)
        self._number = 0
        self._replies: list[Future[Reply]] = []
        self._spent: tuple[HostSpent, ...] = ()
        #: Answers that came with an earlier batch's reply, batch by batch.
        self._ready: list[list[RankAnswer]] = []
        count = len(hosts.addresses)
        self._bounds = [number * len(plans) // count for number in range(count + 1)]
        self._ended = False
        self._all(lambda host: Start(self._name, tuple(self._part(plans, host))))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """None runs here."""
        return []

    @property
    def hosts_spent(self) -> tuple[HostSpent, ...]:
        """See RankGroup."""
        return self._spent

    def tell(self, lines: Sequence[str]) -> list[RankAnswer]:
        """See RankGroup."""
        self.begin(lines)
        return self.answers()

    def begin(self, lines: Sequence[str], *more: Sequence[str]) -> int:
        """See RankGroup."""
        self._number += 1
        number, batches = self._number, (lines, *more)

        def call(host: int) -> Callable[[], Reply]:
            parts = tuple(tuple(self._part(batch, host)) for batch in batches)
            return lambda: self._hosts.ask(host, Tell(self._name, number, parts))

        self._replies = self._hosts.at_once([call(host) for host in self._with_ranks])
        return time.monotonic_ns() + LEAD_NS

    def answers(self) -> list[RankAnswer]:
        """See RankGroup."""
        if not self._ready:
            replies = [one.result() for one in self._replies]
            names = [self._hosts.addresses[host] for host in self._with_ranks]
            self._spent = tuple(
                dataclasses.replace(reply.spent, host=name)
                for name, reply in zip(names, replies, strict=True)
                if reply.spent is not None
            )
            self._ready = [
                [
                    dataclasses.replace(answer, host=name)
                    for name, reply in zip(names, replies, strict=True)
                    for answer in reply.answers[batch]
                ]
                for batch in range(len(replies[0].answers))
            ]
        return self._ready.pop(0)

    def drop_caches(self, paths: Sequence[Path]) -> None:
        """See RankGroup."""
        self._all(lambda host: Drop(tuple(str(path) for path in paths)))

    def abandon(self) -> None:
        """See RankGroup: an agent ends what a closed session started."""
        self._ended = True
        self._hosts.hang_up()

    def finish(self) -> None:
        """See RankGroup."""
        self._ended = True
        self._all(lambda host: End(self._name, kindly=True))

    def close(self) -> None:
        """See RankGroup."""
        if not self._ended:
            self._ended = True
            self._all(lambda host: End(self._name, kindly=False))

    @property
    def _with_ranks(self) -> list[int]:
        pairs = zip(self._bounds, self._bounds[1:], strict=False)
        return [host for host, (start, end) in enumerate(pairs) if end > start]

    def _part(self, whole: Sequence[_T], host: int) -> Sequence[_T]:
        return whole[self._bounds[host] : self._bounds[host + 1]]

    def _all(self, request: Callable[[int], Request]) -> None:
        """The same of every host with ranks, at once; the first error is raised."""

        def call(host: int) -> Callable[[], Reply]:
            return lambda: self._hosts.ask(host, request(host))

        for one in self._hosts.at_once([call(host) for host in self._with_ranks]):
            one.result()
