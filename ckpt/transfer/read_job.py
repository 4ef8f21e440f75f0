"""What a receiver is asked for, and what it says afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ckpt.base.errors import Lost
from ckpt.base.ids import ColumnNumber, PayloadId, TargetId
from ckpt.format.layout import Layout
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import TargetAddress
from ckpt.protocol.events import Report
from ckpt.protocol.reader.events import ReadLimits, Standing
from ckpt.transfer.assembly import Checks
from ckpt.transfer.landings import Landings


class PayloadDamaged(Lost):
    """Fewer than k columns of a payload are good at some place, by what their targets themselves
    say."""

    def __init__(self, payload: PayloadId, message: str) -> None:
        super().__init__(message)
        self.payload = payload


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Some bytes of one payload, and where they go."""

    payload: PayloadId
    layout: Layout
    manifest_digest: bytes
    columns: tuple[TargetId | None, ...]
    """As the index names them."""
    addresses: Mapping[TargetId, TargetAddress]
    """Of live targets; more than are needed may be named."""
    landings: Landings
    spared: frozenset[ColumnNumber] = frozenset()
    """Columns that are read only where the others do not suffice."""

    def standings(self, suspects: frozenset[TargetId]) -> tuple[Standing, ...]:
        """Of its columns, before anybody is asked."""
        return tuple(
            Standing.ABSENT if target is None
            else Standing.AWAY if target not in self.addresses
            else Standing.SUSPECT if target in suspects
            else Standing.REACHABLE
            for target in self.columns
        )  # fmt: skip

    def within(self, spans: Iterable[tuple[int, int]]) -> ReadJob:
        """The same, of payload bytes in the spans only."""
        return replace(self, landings=self.landings.within(spans))

    def from_peer(self, peer: TargetAddress) -> ReadJob:
        """The same from another reader, who has every data column of what he has read."""
        code = self.layout.code
        columns = (*(peer.target for _ in range(code.k)), *(None for _ in range(code.m)))
        return replace(self, columns=columns, addresses={peer.target: peer})


@dataclass(frozen=True, slots=True)
class ReceiverOptions:
    """Who reads, and how patiently."""

    secret: bytes
    name: str
    cluster: str = ""
    role: Role = Role.READER
    concurrent_max: int = 4
    """Payloads under way at once."""
    limits: ReadLimits = field(default_factory=ReadLimits)
    """Windows, and how long columns that are out of reach are tried again."""
    checks: Checks = field(default_factory=Checks)
    suspects: frozenset[TargetId] = frozenset()
    """Targets that earlier reads gave up: asked only when the others do not suffice."""
    borrows: bool = False
    """Columns of this host are read from their files, where much of them is wanted."""
    report: Callable[[Report], None] | None = None
    """Warnings of the machines: damage, columns given up."""


@dataclass(frozen=True, slots=True)
class ReceiverStatistics:
    """What one call moved."""

    wanted_bytes: int
    bytes_by_target: Mapping[TargetId, int]
    rebuilt_bytes: int
    """Decoded from parity."""
    damaged_bytes: int
    extra_bytes: int
    """Received beyond what was wanted."""
    targets_out: frozenset[TargetId]
    """Given up, or never asked because they were suspects."""
    seconds: float
    cpu_s: Mapping[str, float]
    """By stage: link, verify, decode (with the copies to their places)."""


Progress = Callable[[int], None]
"""Called with the bytes done, a few times a second at most. What it raises ends the read."""
