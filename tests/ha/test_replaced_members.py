"""Members of etcd are replaced one by one, as docs/operations.md says, and a job saves on."""

from __future__ import annotations

import signal
import urllib.error
from pathlib import Path

import pytest

import ckpt
from tests.ha.clusters import SharedCluster
from tests.ha.members import Etcd, Member, free_ports
from tests.ha.places import Prefix, asked
from tests.ha.test_takeovers import RUN, WAIT_S, check_loads, one_record_a_step, state
from tests.waiting import ASKED_S, wait_until


def test_a_job_saves_on_while_each_member_of_etcd_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Etcd(tmp_path / "etcd", 3) as etcd,
        SharedCluster(tmp_path, etcd, Prefix(etcd.addresses), ids="ab") as cluster,
    ):
        monkeypatch.setenv("CKPT_SECRET_FILE", str(cluster.secret_file))
        with ckpt.open(cluster.url) as store:
            for step, old in enumerate(list(etcd.members), 1):
                store.save(RUN, step, state(step)).wait(WAIT_S)
                replace(etcd, old, tmp_path / "etcd")
                cluster.place = Prefix(etcd.addresses, cluster.place.name)
                for id in "ab":
                    cluster.kill(id, signal.SIGTERM)
                    cluster.start(id)
            store.save(RUN, 4, state(4)).wait(WAIT_S)
            for step in range(1, 5):
                check_loads(store, step)
        one_record_a_step(cluster, 4)


def replace(etcd: Etcd, old: Member, folder: Path) -> None:
    """By another one, with a name and ports of its own; it has all on return."""
    first, second = free_ports(2)
    new = Member(f"{old.name}-2", folder, (first, second))
    changed(old, "add", {"peerURLs": [new.peer_url]})
    together = ",".join(f"{each.name}={each.peer_url}" for each in (*etcd.members, new))
    new.launch(["--initial-cluster", together, "--initial-cluster-state", "existing"])
    etcd.members[etcd.members.index(old)] = new
    try:
        new.wait_up()
        listed = asked(new, "/v3/cluster/member/list", {})["members"]
        (id,) = (each["ID"] for each in listed if each.get("name") == old.name)
        changed(new, "remove", {"ID": id})
    finally:
        old.kill()


def changed(member: Member, how: str, request: dict[str, object]) -> None:
    """etcd refuses while it is not sure that all others are there."""

    def done() -> bool:
        try:
            asked(member, f"/v3/cluster/member/{how}", request)
        except urllib.error.HTTPError:
            return False
        return True

    wait_until(done, f"member {how}", poll_s=ASKED_S)
