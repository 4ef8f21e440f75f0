"""The effects of a coordinator's daemon that are the simulator's here: clocks, dice, secrets, the
port, and what looks on.

All else of the daemon runs as it is. What it asks of a clock is answered by the loop it runs on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from ckpt.protocol import resting
from ckptd.catalog.etcd import catalog, client, fence, lease, mirror, times
from ckptd.coordinator import colleagues, contender, front, leader_watch, shell, silence
from tests.sim.leading.book import WatchedCatalog
from tests.sim.leading.loop import running
from tests.sim.leading.process import SimShell
from tests.sim.leading.roads import SimDialer, refuses

TICK_S = 0.1
"""A daemon's loop turns twice as often."""


def _now_us() -> int:
    return running().loop.now_us


def _wall_s() -> float:
    return running().loop.wall_s()


def _draw() -> float:
    return running().draw()


def _token(size: int) -> bytes:
    return running().token(size)


_TIME = SimpleNamespace(time=_wall_s, monotonic=lambda: running().loop.time())
_SECRETS = SimpleNamespace(
    token_bytes=_token, token_hex=lambda size: _token(size).hex(), randbits=lambda bits: 1
)


@contextmanager
def simulated(*, rests: bool = False) -> Iterator[None]:
    """While the block runs. `rests`: a coordinator of which nobody wants anything turns less often,
    as a daemon does; else each history is turned at the same times, whatever it is about.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (contender, shell, silence, client, fence, lease):
            patch.setattr(module, "now_us", _now_us)
        for module in (catalog, mirror, leader_watch):
            patch.setattr(module, "draw", _draw)
        for module in (shell, fence, times):
            patch.setattr(module, "time", _TIME)
        for module in (contender, colleagues):
            patch.setattr(module, "time", _wall_s)
        for module in (contender, fence, front):
            patch.setattr(module, "secrets", _SECRETS)
        # The world's etcd has no limit; tests/ha has one that does.
        patch.setattr(fence, "_PROBE_BYTES", 1)
        patch.setattr(front, "TICK_S", TICK_S)
        if not rests:
            patch.setattr(resting, "REST_US", 0)
            for module in (contender, front):
                patch.setattr(module, "REST_S", TICK_S)
        patch.setattr(contender, "say_ready", lambda *_, **__: None)
        patch.setattr(contender, "CoordinatorShell", SimShell)
        patch.setattr(contender, "EtcdCatalog", WatchedCatalog)
        patch.setattr(leader_watch, "Dialer", SimDialer)
        patch.setattr(leader_watch, "_refuses", refuses)
        yield
