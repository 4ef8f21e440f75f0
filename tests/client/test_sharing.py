"""Ranks that load together on a real cluster, with peers that are gone, that hang or lie."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import BootId, Rank, TargetId
from ckpt.base.units import MiB, format_bytes
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.sharing import NextReads, ShareReads
from ckpt.format.spans import OURS, PayloadSpan, decode_spans, encode_spans
from ckpt_client.load.checkpoint import Checkpoint
from ckpt_client.load.together.sharing import _host_towards
from ckpt_client.store import Store
from tests.client.test_stager_process import runs
from tests.waiting import wait_until

BYTES = 20 * MiB
URL = "ckpt+local://{}?targets=3&code=2+1&pretend_domains=1"
MOVED = re.compile(
    ": (.*) were wanted, (.*) came from targets, (.*) from other ranks, (.*) from a stager of"
)
PEER = TargetAddress(TargetId("peer-of-nobody"), BootId(1), "127.0.0.1:9")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    directory = tmp_path_factory.mktemp("burst")
    with ckpt.open(URL.format(directory)) as opened:
        content = np.random.default_rng(1).integers(0, 255, BYTES, np.uint8)
        opened.save("run", 1, {"w": ckpt.Replicated(content)}).wait()
        for stager in opened._stagers.links.values():  # Its memory would be nearer than any peer.
            os.kill(stager.pid, signal.SIGKILL)
        yield opened
    supervisor = json.loads((directory / "ready.json").read_text())["pid"]
    os.kill(supervisor, signal.SIGTERM)
    wait_until(lambda: not runs(supervisor), "the supervisor's end")


def right(state: object) -> bool:
    assert isinstance(state, dict)
    return bool((state["w"] == np.random.default_rng(1).integers(0, 255, BYTES, np.uint8)).all())


def resolved(store: Store, rank: int) -> Checkpoint:
    return store.resolve("run", 1, rank=rank, world_size=3)


def test_who_was_given_several_coordinators_serves_peers_where_they_reach_it() -> None:
    assert _host_towards("127.0.0.1:1,10.255.255.1:2") == "127.0.0.1"


class Ghost:
    """A rank that takes what it is granted, and reads nothing."""

    def __init__(self, store: Store) -> None:
        self.checkpoint = resolved(store, 0)
        meeting = self.checkpoint._pinned.meeting()
        assert self.checkpoint._share_key is not None
        wanted = encode_spans([PayloadSpan(OURS, Rank(0), 0, BYTES)])
        question = ShareReads(
            self.checkpoint.info.checkpoint, self.checkpoint._share_key, PEER, 1 * MiB
        )
        _, granted = meeting.share(question, wanted)
        self.granted = decode_spans(granted)
        assert self.granted

    def lie(self) -> None:
        """Say that it has read all that."""
        thread = threading.Thread(target=self._next, daemon=True)
        thread.start()

    def _next(self) -> None:
        try:
            self.checkpoint._pinned.meeting().share(NextReads(), b"")
        except ckpt.CkptError:
            return  # The test is over.


@pytest.mark.parametrize("how", ["dies", "hangs", "lies"])
def test_a_peer_that_gives_nothing_costs_a_read_of_the_tier(store: Store, how: str) -> None:
    ghost = Ghost(store)
    if how == "lies":
        ghost.lie()
    if how == "dies":
        ghost.checkpoint.close()
    with resolved(store, 1) as checkpoint:
        assert right(checkpoint.load(whole=True))
        assert "tier" in checkpoint.source
        assert checkpoint.statistics
    ghost.checkpoint.close()


def test_memory_of_a_load_goes_with_its_arrays(store: Store) -> None:
    """Also where the collector of garbage does not run, as in trainings that switch it off."""
    gc.collect()
    gc.disable()
    try:
        with resolved(store, 0) as checkpoint:
            state = checkpoint.load(whole=True)
            assert checkpoint.source == "tier"
        assert isinstance(state, dict)
        memory = state["w"]
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        kept = weakref.ref(memory)
        del state, memory
        assert kept() is None
    finally:
        gc.enable()


def test_ranks_in_threads_pass_bytes_on_and_name_their_sources(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ckpt.restore")
    checkpoints = [resolved(store, rank) for rank in range(3)]
    gate = threading.Barrier(3)
    found: dict[int, tuple[bool, set[str]]] = {}

    def work(rank: int) -> None:
        gate.wait()
        state = checkpoints[rank].load(whole=True)
        found[rank] = right(state), set(checkpoints[rank].source.split("+"))

    threads = [threading.Thread(target=work, args=(rank,), name=str(rank)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for checkpoint in checkpoints:
        checkpoint.close()
    assert sorted(found) == [0, 1, 2]
    assert all(good for good, _ in found.values())
    assert all(sources <= {"tier", "peers"} for _, sources in found.values())
    assert any("peers" in sources for _, sources in found.values())
    lines = [record for record in caplog.records if record.levelno == logging.INFO]
    told = {int(line.threadName or ""): MOVED.findall(line.getMessage()) for line in lines}
    assert sorted(told) == [0, 1, 2]
    for rank, ((wanted, targets, peers, stager),) in told.items():
        assert (wanted, stager) == (format_bytes(BYTES), "0 B")
        came = {name for name, size in (("tier", targets), ("peers", peers)) if size != "0 B"}
        # Its tree, which it reads before, comes from the tier.
        assert came | {"tier"} == found[rank][1] | {"tier"}


def test_one_rank_of_many_that_loads_alone_waits_for_nobody(store: Store) -> None:
    with resolved(store, 2) as checkpoint:
        assert right(checkpoint.load(whole=True))
        assert checkpoint.source == "tier"
