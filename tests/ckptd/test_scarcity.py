"""What the system does not give a worker."""

from __future__ import annotations

import errno
import os

import pytest

from ckpt.aio.threads import NO_THREAD
from ckpt.base.errors import Unavailable
from ckptd.scarcity import scarcity_is_unavailable


@pytest.mark.parametrize(
    "lacks",
    [
        MemoryError("of 1 GiB"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError(NO_THREAD),
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        OSError(errno.ENFILE, os.strerror(errno.ENFILE)),
    ],
)
def test_it_may_come_later(lacks: Exception) -> None:
    with (
        pytest.raises(Unavailable) as raised,
        scarcity_is_unavailable("give it more"),
    ):
        raise lacks
    assert raised.value.hint == "give it more"


@pytest.mark.parametrize("defect", [RuntimeError("another"), OSError(errno.EIO, "a disk")])
def test_a_defect_stays_one(defect: Exception) -> None:
    with pytest.raises(type(defect)), scarcity_is_unavailable("give it more"):
        raise defect
