"""The connections of a receiver: one to each target that its reads ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from ckpt.aio.net.link import Link, LinkState
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.base.ids import TargetId
from ckpt.format.frame import FrameHead
from ckpt.format.messages import Message
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.reading import RangeData
from ckpt.protocol.handshake import Caller
from ckpt.transfer.read_job import ReadJob, ReceiverOptions
from ckpt.transfer.target_links import nearest_address

LandAt = Callable[[TargetId, FrameHead, Message], memoryview | None]
"""Where a bulk of this target lands; see `link.Sink`."""


@dataclass(slots=True, eq=False)
class PeerLink:
    """The connection to one target."""

    link: Link
    waiting: list[tuple[int, Message]] = field(default_factory=list)
    """Requests for when it stands."""


class PeerLinks:
    """I belong to the receiver's thread."""

    def __init__(self, loop: LinkLoop, options: ReceiverOptions, land_at: LandAt) -> None:
        self._loop = loop
        self._options = options
        self._land_at = land_at
        self._links: dict[TargetId, PeerLink] = {}

    def ask(self, where: TargetAddress, request: int, message: Message) -> bool:
        """Say it, now or once the connection stands. False: the target takes no questions."""
        peer = self._reach(where)
        if peer.link.state is LinkState.OPEN and not peer.waiting:
            return peer.link.try_send(request, message)
        peer.waiting.append((request, message))
        return True

    def say(self, target: TargetId, request: int, message: Message) -> None:
        """Say it, if the connection stands."""
        peer = self._links.get(target)
        if peer is not None:
            peer.link.try_send(request, message)

    def dial_ahead(self, job: ReadJob, suspects: Iterable[TargetId]) -> None:
        """The targets that its next questions go to, all at once: a load reads a payload's tree
        first, which lies on one of them.
        """
        for target in job.columns[: job.layout.code.k]:
            if target is not None and target in job.addresses and target not in suspects:
                self._reach(job.addresses[target])

    def opened(self, link: Link) -> TargetId | None:
        """It stands: what waited for it is said. Whose it is, as `target_of`."""
        target = self.target_of(link)
        if target is not None:
            peer = self._links[target]
            waiting, peer.waiting = peer.waiting, []
            for request, message in waiting:
                link.try_send(request, message)
        return target

    def get(self, target: TargetId | None) -> Link | None:
        """The connection to a target, where there is one."""
        peer = None if target is None else self._links.get(target)
        return None if peer is None else peer.link

    def target_of(self, link: Link) -> TargetId | None:
        """None when the link was cut while an event of it waited for its turn."""
        return next((target for target, peer in self._links.items() if peer.link is link), None)

    def cut(self, target: TargetId) -> bool:
        """Close it; False where there is none."""
        peer = self._links.pop(target, None)
        if peer is not None:
            self._loop.close(peer.link)
        return peer is not None

    def _reach(self, where: TargetAddress) -> PeerLink:
        peer = self._links.get(where.target)
        if peer is None:
            peer = self._links[where.target] = PeerLink(self._dial(where))
        return peer

    def _dial(self, where: TargetAddress) -> Link:
        options = self._options
        caller = Caller.of_target(
            options.secret, options.role, options.name, where.target, options.cluster
        )
        return self._loop.connect(
            nearest_address(where), caller, sink=partial(self._land_at, where.target),
            unchecked=frozenset({RangeData}), takes_files=options.borrows,
        )  # fmt: skip
