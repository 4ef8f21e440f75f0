"""An index whose copies are out of reach, or whose targets answer with something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from ckpt.aio.net.serving.server import Server
from ckpt.base.ids import BootId, LaunchNumber, TargetId
from ckpt.format.index.document import Index
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.reading import DocumentData, ReadDocument
from ckpt.format.messages.writing import CreditGranted
from ckpt.protocol.handshake import Identity
from ckpt.testing.indexes import encode_index
from ckpt.testing.network import Heard, RecordingHandler
from ckpt.transfer import index_source
from ckpt.transfer.index_source import IndexSource, IndexUnreadable
from tests.aio.netkit import SECRET, serving
from tests.format.test_record import RECORD
from tests.transfer.test_homes import OLD, TENSOR, record_of

TIMEOUT_S = 1.0


def test_the_last_copies_get_no_more_patience_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_source, "PATIENCE_S", (0.01, 3600.0))
    ids = [TargetId(f"t{number}") for number in range(3)]
    addresses = {id: TargetAddress(id, BootId(1), f"unix:/nowhere/{id}", "") for id in ids}
    source = IndexSource(RECORD, ids, addresses, SECRET, "test")
    with closing(source), pytest.raises(IndexUnreadable) as caught:
        source.reader(TIMEOUT_S)
    found = re.search(r"no answer from unix:/nowhere/t(\d) in ([\d.]+) s", caught.value.message)
    assert found is not None
    assert found[1] == "0", "nobody has time for another one"
    assert 0 < float(found[2]) <= TIMEOUT_S


class OddHolder:
    """A target with a copy of the index. `how` names its fault: odd (another message), empty (no
    bytes), elsewhere (bytes of another place).
    """

    def __init__(self, number: int, document: bytes, how: str) -> None:
        self.id = TargetId(f"t{number}")
        self.how = how
        self.document = document
        self.handler = RecordingHandler(answer=self._answer)
        self.server: Server

    def _answer(self, heard: Heard) -> None:
        assert isinstance(heard.message, ReadDocument)
        start, end = heard.message.start, heard.message.end
        at, size = start + (self.how == "elsewhere"), len(self.document)
        answer: Message = DocumentData(size, at, last=end == size)
        if self.how == "odd":
            answer = CreditGranted(1)
        bulk = b"" if self.how in ("odd", "empty") else self.document[start:end]
        self.server.send(heard.session, heard.request, answer, bulk)


@contextmanager
def source_of(*faults: str) -> Iterator[IndexSource]:
    """An index of one tensor, with a holder for each fault; one that is empty has none."""
    document = encode_index(Index(OLD, LaunchNumber(1), 1, (), (TENSOR,)))
    with ExitStack() as stack:
        made = [OddHolder(number, document, how) for number, how in enumerate(faults)]
        addresses = {}
        for holder in made:
            identity = Identity("cluster-a", Role.TARGET, holder.id, BootId(9))
            thread = stack.enter_context(serving(identity=identity, handler=holder.handler))
            holder.server = thread.server
            address = f"127.0.0.1:{thread.server.port}"
            addresses[holder.id] = TargetAddress(holder.id, BootId(9), address)
        record, ids = record_of(OLD, document, ()), [holder.id for holder in made]
        yield stack.enter_context(IndexSource(record, ids, addresses, SECRET, "test"))


@pytest.mark.parametrize("how", ["odd", "empty", "elsewhere"])
@pytest.mark.parametrize("whole_bytes_max", [0, index_source.WHOLE_BYTES_MAX])
def test_a_copy_whose_target_answers_with_something_else_is_passed_over(
    how: str, whole_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read whole or in ranges; and where there is no other copy, that is said."""
    monkeypatch.setattr(index_source, "WHOLE_BYTES_MAX", whole_bytes_max)
    with source_of(how, "") as source:
        assert source.reader(TIMEOUT_S).tensor("w") == TENSOR
    with source_of(how) as source, pytest.raises(IndexUnreadable, match="with something else"):
        source.reader(0)
