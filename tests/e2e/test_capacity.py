"""A capacity is shared out among the targets of one device; what does not fit is refused with a
time to come again.
"""

from __future__ import annotations

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import RunName, Step
from ckpt.format.checksum import xxh3_128
from ckpt.format.messages.asking import DeleteStep, StepDeleted
from ckpt_client.control import Control
from ckpt_client.locate import Locator
from tests.e2e.cluster import Cluster
from tests.e2e.states import form_of
from tests.waiting import wait_until

CLUSTER_OPTIONS = "targets=3&code=2+1&capacity=60MiB"
WAIT_S = 60.0


def state(mib: int) -> dict[str, object]:
    return {"a": np.random.default_rng(mib).integers(0, 255, mib << 20, "u1")}


def test_columns_fit_as_long_as_each_target_has_room_for_its_own(store: ckpt.Store) -> None:
    """Three columns of 10 MiB, 20 MiB for each target: together more than any one of them has."""
    store.save("fits", 1, state(20)).wait(WAIT_S)
    assert form_of(store.load("fits")) == form_of(state(20))


def test_what_does_not_fit_is_refused_and_says_when_to_come_again(store: ckpt.Store) -> None:
    with pytest.raises(ckpt.NoSpace) as caught:
        store.save("large", 1, state(50)).wait(WAIT_S)
    assert caught.value.retry_after_s == 5.0
    assert "retry after 5 s" in str(caught.value)
    assert caught.value.retryable


def test_a_deleted_step_leaves_nothing_on_its_targets(cluster: Cluster, store: ckpt.Store) -> None:
    store.save("gone", 1, state(1)).wait(WAIT_S)
    control = Control(Locator(str(cluster.directory), ""), cluster.directory / "secret", None)
    try:
        control.call(DeleteStep(RunName("gone"), Step(1)), StepDeleted)
    finally:
        control.close()
    digest = xxh3_128(b"gone").hex()

    def left() -> list[str]:
        files = cluster.directory.glob("targets/*/*/*")
        return [file.name for file in files if digest in file.name]

    wait_until(lambda: left() == [], "columns, index, record and tombstones are gone")
