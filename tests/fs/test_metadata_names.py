"""The names in a `.metadata`, without loading it."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import pytest

from ckpt.base.errors import Refused
from ckpt_client.fs.metadata_names import data_files


class Bomb:
    """Loading me fails the test."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("the pickle was loaded",))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_each_data_file_is_named_once_and_nothing_is_loaded(protocol: int) -> None:
    names = ["__1_0.distcp", "__0_0.distcp", "__0_0.distcp", "__10_2.distcp"]
    document = ForkingPickler.dumps(
        {"files": names, "other": ["__a_0.distcp", "x__0_0.distcp", ".metadata"], "bomb": Bomb()},
        protocol,
    )
    assert data_files(bytes(document)) == ("__0_0.distcp", "__10_2.distcp", "__1_0.distcp")


@pytest.mark.parametrize("document", [b"", b"{}", b"\x80\x04garbage"])
def test_what_is_no_pickle_is_refused(document: bytes) -> None:
    with pytest.raises(Refused, match="torch"):
        data_files(document)
