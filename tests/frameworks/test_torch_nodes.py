"""torchrun on several nodes: each counts its own restarts, so that the count names no start.

Two agents on this host are the nodes, of one rank each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ckpt
import ckpt_torch
from ckpt.base.errors import Refused
from tests.frameworks.clusters import local_cluster
from tests.frameworks.gloo import Ranks
from tests.frameworks.test_torch_restarts import under_torchrun
from tests.frameworks.warm import Warm
from tests.ha.members import free_ports
from tests.landing import in_turn
from tests.waiting import wait_until

ROWS = 4
PATIENCE_S = 240.0
TRAINER = f"""
import json, os, sys
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor
import ckpt, ckpt_torch

dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
weights = distribute_tensor(torch.arange({ROWS}), mesh, [Shard(0)])
key = ckpt_torch.launch_key() if sys.argv[5] == "word" else None
store = ckpt.open(sys.argv[1], launch=key)
state = {{"weights": weights}}
try:
    step = ckpt_torch.load(state, checkpoint_id=sys.argv[5], store=store)
except ckpt.NotFound:
    step = 0

def tell(**fields):
    fields |= {{"pid": os.getpid(), "rank": dist.get_rank(), "size": dist.get_world_size()}}
    fields |= {{"node": int(sys.argv[4]), "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"]}}
    with open(sys.argv[2], "ab", buffering=0) as log:
        log.write(json.dumps(fields).encode() + b"\\n")

tell(loaded=step)
ends = torch.zeros(1)
while not ends.item():
    step += 1
    weights.to_local().mul_(3).add_(step)
    ckpt_torch.save(state, checkpoint_id=f"{{sys.argv[5]}}/{{step}}", store=store)
    tell(saved=step)
    ends.fill_(os.path.exists(sys.argv[3]))
    dist.all_reduce(ends)
store.close()
dist.destroy_process_group()
"""


def trained(step: int) -> torch.Tensor:
    weights = torch.arange(ROWS)
    for number in range(1, step + 1):
        weights = weights * 3 + number
    return weights


@dataclass
class Job:
    """An elastic job of one or two nodes."""

    warm: Warm
    url: str
    directory: Path
    port: int
    run: str
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_node(self) -> None:
        """The first one holds the rendezvous."""
        script = self.directory / "trainer.py"
        script.write_text(TRAINER)
        quick = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
        agent = [
            *["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=2", "--monitor-interval=0.2"],
            *["--rdzv-id=job", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}"],
            f"--rdzv-conf=is_host={int(not self.nodes)},{quick}",
        ]
        log, end = str(self.directory / "log"), str(self.directory / "end")
        line = [self.url, log, end, str(len(self.nodes)), self.run]
        with open(self.directory / "output", "ab") as output:
            node = subprocess.Popen(
                under_torchrun(self.warm, agent, script, line),
                stdout=output,
                stderr=output,
                # As docs/examples/torch_fsdp2.py says.
                env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            )
        self.nodes.append(node)

    def kill_node(self, number: int) -> None:
        """Its agent and its rank, without a word."""
        self.nodes[number].kill()
        os.kill(next(one["pid"] for one in self.lines() if one["node"] == number), signal.SIGKILL)

    def lines(self) -> list[dict[str, Any]]:
        log = self.directory / "log"
        return [json.loads(line) for line in log.read_bytes().splitlines()] if log.exists() else []

    def wait_saved(self, size: int, since: int) -> dict[int, dict[str, Any]]:
        """Until all of so many ranks have saved a step, as the log's lines since then say; what
        each has told of that.
        """
        saved: dict[int, dict[str, Any]] = {}

        def all_have() -> bool:
            assert self.nodes[0].poll() is None, self.output()
            saved.clear()
            told = [one for one in self.lines()[since:] if one["size"] == size and "saved" in one]
            saved.update({one["rank"]: one for one in told})
            return len(saved) == size

        wait_until(all_have, f"a step of {size} ranks", PATIENCE_S)
        return saved

    def output(self) -> str:
        return (self.directory / "output").read_text()[-6000:]

    def stop(self) -> None:
        for node in self.nodes:
            if node.poll() is None:
                node.terminate()
        for node in self.nodes:
            node.wait(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with local_cluster(tmp_path_factory.mktemp("nodes")) as url:
        yield url


@pytest.mark.timeout(700)
@pytest.mark.parametrize("run", in_turn(["environment", "word"], every=2))
def test_a_job_saves_on_after_a_node_died_and_another_took_its_place(
    cluster: str, warm: Warm, tmp_path: Path, run: str
) -> None:
    """Where each start has a port of its own, the environment says enough; the ranks' own word
    always does.
    """
    job = Job(warm, cluster, tmp_path, free_ports(1)[0], run)
    try:
        job.add_node()
        job.add_node()
        job.wait_saved(2, 0)
        since = len(job.lines())
        job.kill_node(1)
        job.wait_saved(1, since)
        since = len(job.lines())
        job.add_node()
        again = job.wait_saved(2, since)
        counts = sorted(line["restarts"] for line in again.values())
        assert counts == ["0", "1"], "each node counts its own, and no save cost a restart"
        (tmp_path / "end").touch()
        assert [job.nodes[number].wait(PATIENCE_S) for number in (0, 2)] == [0, 0], job.output()
    finally:
        job.stop()
    with ckpt.open(cluster) as store:
        for commit in store.steps(run):
            weights = torch.zeros(ROWS, dtype=torch.int64)
            state: dict[str, object] = {"weights": weights}
            name = f"{run}/{commit.step}"
            ckpt_torch.load(state, checkpoint_id=name, store=store, no_dist=True)
            assert torch.equal(weights, trained(commit.step)), commit.step


def keys_job() -> tuple[str, str, str]:
    """Of all ranks, of this rank's half of them, and of all ranks again."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = halves[dist.get_rank() // 2]
    return ckpt_torch.launch_key(), ckpt_torch.launch_key(half), ckpt_torch.launch_key()


def test_ranks_that_ask_together_get_one_word_each_time_another(ranks: Ranks) -> None:
    told = ranks.run(4, keys_job)
    everyone, halves, again = (list(words) for words in zip(*told, strict=True))
    assert len(set(everyone)) == len(set(again)) == 1
    assert halves[0] == halves[1] != halves[2] == halves[3]
    assert len({*everyone, *halves, *again}) == 4


def test_ranks_that_cannot_talk_get_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Refused, match="launch_key: 2 ranks without a process group"):
        ckpt_torch.launch_key()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert ckpt_torch.launch_key() != ckpt_torch.launch_key()
