"""`ckpt drill` and `ckpt durability` where targets stand on several hosts, two on each."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.client.clikit import Ended, run
from tests.e2e_remote.cluster import HOSTS, RemoteCluster
from tests.e2e_remote.conftest import started
from tests.e2e_remote.test_repair import AGAIN_S, is_whole, lose, repair_worker, state
from tests.e2e_remote.test_repair import RUN as REPAIRED
from tests.waiting import ASKED_S, wait_until

RUN = "llama/7b"


@pytest.fixture(scope="module", autouse=True)
def saved(cluster: RemoteCluster) -> None:
    with ckpt.open(cluster.url) as store:
        saves = [
            store.save(RUN, 1, {"w": np.full(400_000, rank, "f4")}, rank=rank, world_size=2)
            for rank in range(2)
        ]
        for one in saves:
            one.wait(60.0)


def ask(cluster: RemoteCluster, *words: str) -> Ended:
    return run(*words, "--json", "--store", cluster.url, environ=dict(os.environ))


def test_any_host_may_be_lost_and_the_worst_one_is_tried(cluster: RemoteCluster) -> None:
    for host in range(HOSTS):
        ended = ask(cluster, "drill", RUN, "--lose-domain", f"host=host{host}")
        without = json.loads(ended.out.splitlines()[1])
        assert ended.code == 0
        assert without["scenario"] == f"without host power/rack/host{host}"
        assert without["lost"] == [f"h{host}d0", f"h{host}d1"]
        assert without["state"] == "equal"
    lines = [json.loads(line) for line in ask(cluster, "drill", RUN, "--any").out.splitlines()]
    (worst,) = [line for line in lines if "the worst host" in line.get("scenario", "")]
    assert worst["state"] == "equal"
    assert len({target[:2] for target in worst["lost"]}) == 1
    assert lines[-1]["passed"]


def test_all_of_a_rack_is_too_much(cluster: RemoteCluster) -> None:
    assert ask(cluster, "drill", RUN, "--lose-domain", "rack=rack").code == 4
    hosts = [word for host in range(3) for word in ("--lose-domain", f"host=host{host}")]
    ended = ask(cluster, "drill", RUN, *hosts)
    assert ended.code == 4, "two targets are left"
    assert len(json.loads(ended.out.splitlines()[1])["lost"]) == 6


def test_durability_knows_the_hosts(cluster: RemoteCluster) -> None:
    found = ask(cluster, "durability").document()
    assert (found["level"], found["domains"], found["targets"]) == ("host", HOSTS, 2 * HOSTS)
    assert found["max_per_domain"] == 2, "six columns on four hosts"
    assert found["placements"][0]["columns_survivable"] == 2
    apart = ask(cluster, "durability", "--domains", "8", "--domain-afr", "0").document()
    assert apart["placements"][0]["loss_chance"] < found["placements"][0]["loss_chance"]


def test_columns_that_were_made_again_elsewhere_are_drilled_where_they_are(tmp_path: Path) -> None:
    with started(RemoteCluster(tmp_path, ("--rebuild-after-s", "1"))) as cluster:
        with ckpt.open(cluster.url) as store:
            store.save(REPAIRED, 1, state(1)).wait(AGAIN_S)
            for link in store._stagers.links.values():
                os.kill(link.pid, signal.SIGKILL)
        held = columns_of(cluster)
        victim, *others = held
        lose(cluster, victim)
        cluster.wait_live()
        broken = ask(cluster, "drill", REPAIRED, "--lose", ",".join(others[:2]))
        assert broken.code == 4, "three of six columns are gone"
        worker = repair_worker(cluster)
        wait_until(lambda: is_whole(cluster, 1), "it is whole", AGAIN_S, ASKED_S)
        worker.end(signal.SIGTERM)
        now = columns_of(cluster)
        assert victim not in now
        (new,) = set(now) - set(held)
        lines = [
            json.loads(line) for line in ask(cluster, "drill", REPAIRED, "--any").out.splitlines()
        ]
        assert lines[-1]["passed"], lines
        without = ask(cluster, "drill", REPAIRED, "--lose", ",".join(others[:2]))
        assert without.code == 0, "the column on the new holder counts"
        assert ask(cluster, "drill", REPAIRED, "--lose", ",".join([*others[:2], new])).code == 4


def columns_of(cluster: RemoteCluster) -> list[str]:
    """Targets that hold a column of the one payload, as the coordinator shows it."""
    shown = ask(cluster, "show", f"{REPAIRED}@1").document()["columns"][0]
    return sorted(target for target in shown["targets"] if target)
