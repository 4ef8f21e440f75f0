"""What does a lease stand for: the payload, who has columns of it now, and where lost ones go?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Aborted
from ckpt.base.ids import ColumnNumber
from ckpt.base.units import US_PER_S
from ckpt.format.documents.record import decode_record
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.repairs import RepairLeased
from ckpt.plan.reads import PayloadKey
from ckpt.transfer.column_rebuilder import LostColumns
from ckpt.transfer.landings import Landings
from ckpt.transfer.moves import ask_moves
from ckpt.transfer.payload_finder import PayloadFinder

ANSWER_S: Final = 30.0
READ_S: Final = 10.0
"""How long to keep trying when too few columns are in reach. After that the coordinator leases the
payload again.
"""


@dataclass(frozen=True, slots=True)
class LocatedColumns:
    """What is to be made again, and where all of it is."""

    lost: LostColumns
    cluster: str


@contextmanager
def located(
    rpc: RpcClient, secret: bytes, name: str, leased: RepairLeased
) -> Iterator[LocatedColumns]:
    """Of a lease that has a payload, which stays while the `with` lasts. Raises Aborted when it is
    gone, what the coordinator says, and as PayloadFinder.
    """
    payload = leased.payload
    assert payload is not None
    id = payload.checkpoint
    question = Resolve(
        id.run, id.step, timeout_us=int(READ_S * US_PER_S), only=id.generation, for_repair=True
    )  # fmt: skip
    resolved, bulk = rpc.ask(question, Resolved, timeout_s=READ_S + ANSWER_S)
    try:
        record = decode_record(bulk)
        if record.info.checkpoint != id:
            raise Aborted(f"{id} is not there any more")
        with PayloadFinder(
            resolved, record, partial(ask_moves, rpc),
            secret=secret, name=name, timeout_s=READ_S,
        ) as finder:  # fmt: skip
            source = finder.job(finder.find(PayloadKey(None, payload.rank)), Landings())
        places = {one.column: one.place for one in leased.lost}
        lost = LostColumns(source, record.info.launch, places, _moves(leased))
        yield LocatedColumns(lost, record.cluster)
    finally:
        rpc.tell(ReleasePin(resolved.pin))


def _moves(leased: RepairLeased) -> ColumnNumber | None:
    """The only column, where it is read alone."""
    return next((one.column for one in leased.lost if one.alone), None)
