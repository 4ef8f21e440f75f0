"""A stager in whose cluster's place another one stands."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckpt.aio.secret import read_secret
from ckpt.base.errors import Aborted
from ckpt.base.ids import BootId
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Identity
from ckpt_client.local.cluster import SUPERVISOR_LOCK_NAME
from ckpt_client.locate import READY_NAME
from tests.aio.netkit import serving
from tests.client.stagerkit import Bench, runs, stage
from tests.waiting import wait_until


def test_it_speaks_to_no_other_cluster_and_goes(tmp_path: Path) -> None:
    """Its launch has a number that the other cluster gave to another launch: it would fence it."""
    with ExitStack() as stack:
        bench = Bench(tmp_path, stack)
        link = bench.start()
        save = stage(link, 1)
        assert save is not None
        link.close()
        secret = read_secret(tmp_path / "secret")
        other = Identity("c2", Role.COORDINATOR, "", BootId(1))
        running = stack.enter_context(serving(identity=other, secret=secret))
        # As its supervisor's: else the stager starts its cluster again, for the save's sake.
        held = stack.enter_context((tmp_path / SUPERVISOR_LOCK_NAME).open("w"))
        fcntl.flock(held, fcntl.LOCK_EX)
        address = f"127.0.0.1:{running.server.port}"
        ready = {"address": address, "pid": os.getpid(), "cluster": "c2", "boot": ""}
        (tmp_path / READY_NAME).write_text(json.dumps(ready))
        wait_until(lambda: not runs(link.pid), "nobody will ever answer it, and it stayed")
        assert running.handler.opened_ == []
        assert running.handler.received_ == []
        log = (tmp_path / "stager.log").read_text()
        assert "this is cluster 'c2', not 'c1'" in log
        assert "given up, it is not known to be committed" in log
        with pytest.raises(Aborted):
            save.wait()
