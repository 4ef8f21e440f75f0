"""What targets have given to readers, by their own counters."""

from __future__ import annotations

import json

import ckpt
from tests.waiting import wait_until


def given_bytes(url: str, run: str, step: int) -> int:
    """Column bytes that all targets have sent since they started.

    Counters come with leases, a moment late. So the targets are asked to verify the checkpoint's
    columns, which sends none of their bytes: a lease that counts that counts all before it.
    """
    with ckpt.open(url) as store:
        before = _counters(store)
        columns = len(store.verify(run, step).columns)
        verified = sum(each["columns_verified"] for each in before) + columns
        now = before

        def counted() -> bool:
            nonlocal now
            now = _counters(store)
            return sum(each["columns_verified"] for each in now) >= verified

        wait_until(counted, "leases that count what was verified")
        return sum(each["bytes_given"] for each in now)


def _counters(store: ckpt.Store) -> list[dict[str, int]]:
    status = json.loads(store._control.ask("status"))
    return [target["counters"] for target in status["targets"]]
