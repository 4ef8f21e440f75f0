"""An index whose copies are all out of reach: who asks hears it when his time is over."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from ckpt.base.ids import BootId, TargetId
from ckpt.format.messages.loading import TargetAddress
from ckpt.transfer import index_source
from ckpt.transfer.index_source import IndexSource, IndexUnreadable
from tests.aio.netkit import SECRET
from tests.format.test_record import RECORD

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
