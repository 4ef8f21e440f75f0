"""What people and other programs do to the etcd of a cluster while its coordinators run: each is
said, nobody has to start anything again, and no save fails.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import ckpt
from ckpt_client.cli.main import main
from ckptd.catalog.backup import read_backup
from tests.ha.clusters import SharedCluster
from tests.ha.coordinators import Coordinators
from tests.ha.members import Etcd, Member
from tests.ha.places import Prefix, asked, in_base64
from tests.ha.test_admission import admit, file_with
from tests.ha.test_takeovers import RUN, WAIT_S, check_loads, one_record_a_step, state
from tests.waiting import ASKED_S, wait_until

OLD, SILENT = "CATALOG_OLD", "CATALOG_NO_QUORUM"


@contextmanager
def sharing(
    folder: Path, etcd: Etcd, place: Prefix, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SharedCluster]:
    with SharedCluster(folder, etcd, place, ids="ab") as made:
        monkeypatch.setenv("CKPT_SECRET_FILE", str(made.secret_file))
        yield made


def said(capsys: pytest.CaptureFixture[str], cluster: SharedCluster) -> dict[str, str]:
    """What `ckpt status` finds, by the check."""
    main(["status", "--json", "--store", cluster.url])
    checks = json.loads(capsys.readouterr().out)["checks"]
    return {each["name"]: each["message"] for each in checks}


def as_root(member: Member, path: str, request: dict[str, object]) -> None:
    root = {"name": "root", "password": "root-word"}
    token = str(asked(member, "/v3/auth/authenticate", root)["token"])
    asked(member, path, request, token=token)


def reached(coordinators: Coordinators, term: int) -> bool:
    return coordinators.term() >= term


def test_a_leader_s_key_that_somebody_wrote_by_hand_is_freed(tmp_path: Path, etcd: Etcd) -> None:
    """It hangs on no lease then, and would stay for ever."""
    with Coordinators(tmp_path, etcd, Prefix(etcd.addresses), ids="ab") as two:
        for value in ("{}", "nonsense", json.dumps(two.key())):
            second, third = two.term() + 1, two.term() + 2
            key = in_base64(f"{two.place.name}:leader")
            asked(etcd.members[0], "/v3/kv/put", {"key": key, "value": in_base64(value)})
            wait_until(partial(reached, two, second), "another term")
            two.kill(two.leader())
            wait_until(partial(reached, two, third), "and one after it")
            for id in {"a", "b"} - two.running.keys():
                two.start(id)


def removed(cluster: Coordinators, start: str) -> None:
    """All keys that begin so, as by `etcdctl del --prefix`."""
    name = f"{cluster.place.name}:{start}"
    range_end = name[:-1] + chr(ord(name[-1]) + 1)
    gone = {"key": in_base64(name), "range_end": in_base64(range_end)}
    assert int(asked(cluster.etcd.members[0], "/v3/kv/deleterange", gone)["deleted"]) > 0


def test_keys_that_somebody_removed_are_missed_by_who_leads_next(
    tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No target does. Until then a backup has them."""
    with sharing(tmp_path, etcd, Prefix(etcd.addresses), monkeypatch) as cluster:
        with ckpt.open(cluster.url) as store:
            for step in (1, 2):
                store.save(RUN, step, state(step)).wait(WAIT_S)
        removed(cluster, "launch/")
        copy = tmp_path / "copy.sqlite"
        assert main(["catalog", "backup", "--to", str(copy), "--store", cluster.url]) == 0
        capsys.readouterr()
        cluster_id = str(cluster.running["a"].ready["cluster"])
        assert read_backup(copy, cluster_id).launches, "who leads has them all"
        removed(cluster, "leader")
        for _ in range(2):
            wait_until(
                lambda: "keys in etcd are gone" in said(capsys, cluster).get(OLD, ""),
                "it is said", poll_s=ASKED_S,
            )  # fmt: skip
            for id in "ab":
                assert cluster.kill(id, signal.SIGTERM) == 0
            for id in "ab":
                cluster.start(id)
        other = Prefix(etcd.addresses, f"{cluster.place.name}-2")
        targets = " ".join(each.address for each in cluster.targets.values())
        assert main(["catalog", "rebuild", other.url, "--targets", targets]) == 0
        for id in "ab":
            cluster.kill(id, signal.SIGTERM)
        cluster.place = other
        for id in "ab":
            cluster.start(id)
        with ckpt.open(cluster.url) as store:
            for step in (1, 2):
                check_loads(store, step)
            store.save(RUN, 3, state(3)).wait(WAIT_S)
        capsys.readouterr()  # Of the rebuild.
        assert OLD not in said(capsys, cluster)


@pytest.mark.parametrize("value", [None, "0"], ids=["gone", "lower"])
def test_a_term_ends_when_what_it_has_stored_is_gone_and_no_coordinator_does(
    tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """As after a snapshot of this term was put back, quicker than its lease runs out."""
    with (
        sharing(tmp_path, etcd, Prefix(etcd.addresses), monkeypatch) as cluster,
        ckpt.open(cluster.url) as store,
    ):
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        term, processes = cluster.term(), [each.process for each in cluster.running.values()]
        if value is None:
            removed(cluster, "sequence")
        else:
            key = in_base64(f"{cluster.place.name}:sequence")
            put = {"key": key, "value": in_base64(value)}
            asked(etcd.members[0], "/v3/kv/put", put)
        store.save(RUN, 2, state(2)).wait(WAIT_S)
        assert cluster.term() > term
        assert [each.poll() for each in processes] == [None, None]
        for step in (1, 2):
            check_loads(store, step)
        one_record_a_step(cluster, 2)


def test_users_are_let_in_from_now_on_and_rights_that_go_for_a_while_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Coordinators have the password before etcd asks for it."""
    own = f"?user=ckpt&password_file={file_with(tmp_path / 'word', 'ckpt-word')}"
    with (
        Etcd(tmp_path / "etcd") as etcd,
        sharing(
            tmp_path / "shared", etcd, Prefix(etcd.addresses, "mine", own), monkeypatch
        ) as cluster,
        ckpt.open(cluster.url) as store,
    ):  # fmt: skip
        (member,) = etcd.members
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        term, processes = cluster.term(), [each.process for each in cluster.running.values()]
        admit(member)
        store.save(RUN, 2, state(2)).wait(WAIT_S)
        as_root(member, "/v3/auth/user/revoke", {"name": "ckpt", "role": "ckpt"})
        save = store.save(RUN, 3, state(3))
        wait_until(
            lambda: "permission denied" in said(capsys, cluster).get(SILENT, ""),
            "it is said", poll_s=ASKED_S,
        )  # fmt: skip
        assert not save.ended
        as_root(member, "/v3/auth/user/grant", {"user": "ckpt", "role": "ckpt"})
        save.wait(WAIT_S)
        check_loads(store, 3)
        assert SILENT not in said(capsys, cluster)
        assert [each.poll() for each in processes] == [None, None]
        as_root(member, "/v3/auth/disable", {})
        store.save(RUN, 4, state(4)).wait(WAIT_S)
        assert cluster.term() == term
        one_record_a_step(cluster, 4)


def test_an_etcd_that_lets_nobody_in_without_a_name_any_more_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        Etcd(tmp_path / "etcd") as etcd,
        sharing(tmp_path / "shared", etcd, Prefix(etcd.addresses), monkeypatch) as cluster,
        ckpt.open(cluster.url) as store,
    ):
        (member,) = etcd.members
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        processes = [each.process for each in cluster.running.values()]
        admit(member)
        save = store.save(RUN, 2, state(2))
        wait_until(
            lambda: "user name is empty" in said(capsys, cluster).get(SILENT, ""),
            "it is said", poll_s=ASKED_S,
        )  # fmt: skip
        assert not save.ended
        as_root(member, "/v3/auth/disable", {})
        save.wait(WAIT_S)
        check_loads(store, 2)
        assert [each.poll() for each in processes] == [None, None]
        one_record_a_step(cluster, 2)


def test_an_etcd_that_finds_itself_corrupt_is_said_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It renews leases, and stores nothing."""
    with (
        Etcd(tmp_path / "etcd") as etcd,
        sharing(tmp_path / "shared", etcd, Prefix(etcd.addresses), monkeypatch) as cluster,
        ckpt.open(cluster.url) as store,
    ):
        (member,) = etcd.members
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        id = asked(member, "/v3/maintenance/status", {})["header"]["member_id"]
        alarm = {"memberID": id, "alarm": "CORRUPT"}
        asked(member, "/v3/maintenance/alarm", {"action": "ACTIVATE", **alarm})
        save = store.save(RUN, 2, state(2))
        wait_until(
            lambda: "corrupt" in said(capsys, cluster).get(SILENT, ""), "it is said", poll_s=ASKED_S
        )
        assert not save.ended
        asked(member, "/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
        save.wait(WAIT_S)
        check_loads(store, 2)
        assert SILENT not in said(capsys, cluster)
        one_record_a_step(cluster, 2)
