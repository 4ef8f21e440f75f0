"""An etcd that has reached its quota: no save begins, all else goes on, and nobody ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from ckpt.base.errors import Busy, NoSpace, Refused
from ckpt.protocol.coordinator.catalog import AttemptDecided, RowState
from ckpt.testing.catalog_contract import Writer, found, on_a_loop, writing
from ckpt.testing.catalog_entries import attempt, checkpoint
from ckpt_client.cli.main import main
from ckptd.catalog.etcd.fence import LEASE_S
from tests.e2e_remote.cluster import Daemon
from tests.ha.clusters import SharedCluster
from tests.ha.coordinators import CODE, Coordinators
from tests.ha.filling import QUOTA, fill, make_room
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, in_base64, names_in
from tests.ha.test_takeovers import RUN, WAIT_S, check_loads, one_record_a_step, state
from tests.waiting import ASKED_S, wait_until, wait_until_async


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd", flags=QUOTA) as made:
        yield made


# --------------------------------------------------------------------------- the catalog


@on_a_loop
async def test_tickets_wait_for_room_and_each_is_stored_once(small: Etcd) -> None:
    """Among them the one that fills it, which etcd stores and says no space of."""
    place, count = Prefix(small.addresses), 40
    async with writing(place) as writer:
        for step in range(count):
            writer.submit(attempt(step), AttemptDecided(checkpoint(step), bytes(500_000)))
        catalog = writer.catalog
        await wait_until_async(lambda: catalog.full is not None, "it says that it is full")
        assert isinstance(catalog.full, NoSpace)
        assert "alarm disarm" in catalog.full.hint
        stored = len(writer.durable)
        assert 3 < stored < count
        rows = [name for name in names_in(small, place) if name.startswith("row/")]
        assert len(rows) == stored, "what etcd has stored is acknowledged, and nothing else"
        assert writer.failures == []
        _raise_quota(small)
        await writer.wait_until(lambda: len(writer.durable) == count)
        assert catalog.full is None
        assert writer.durable == list(range(1, count + 1))
    image = await found(place)
    assert {id.step for id in image.rows} == set(range(count))
    assert {row.state for row in image.rows.values()} == {RowState.DECIDED}


@on_a_loop
async def test_an_end_in_a_full_etcd_says_so_at_once(small: Etcd) -> None:
    place = Prefix(small.addresses)
    async with writing(place) as writer:
        await writer.write(attempt(1))
        fill(small)
        writer.submit(attempt(2))
        await wait_until_async(lambda: writer.catalog.full is not None, "it says that it is full")
    assert [type(each) for each in writer.failures] == [NoSpace]
    make_room(small)
    assert set((await found(place)).rows) == {checkpoint(1)}


@on_a_loop
async def test_who_lost_a_full_catalog_hears_it(small: Etcd) -> None:
    """etcd says no space ahead of every comparison: what only reads finds it."""
    place = Prefix(small.addresses)
    writer = Writer(await place.open())
    await writer.write(attempt(1))
    fill(small)
    writer.submit(attempt(2))
    await wait_until_async(lambda: writer.catalog.full is not None, "it says that it is full")
    asked(small.members[0], "/v3/kv/deleterange", {"key": in_base64(f"{place.name}:leader")})
    await writer.wait_until(lambda: bool(writer.failures))
    assert [type(each) for each in writer.failures] == [Busy]
    await writer.catalog.close()


@on_a_loop
async def test_no_catalog_is_begun_in_a_full_etcd(small: Etcd) -> None:
    fill(small)
    with pytest.raises(NoSpace, match="space exceeded"):
        await Prefix(small.addresses).open()


def _launch_again(etcd: Etcd, *flags: str) -> None:
    """The member is gone for a moment."""
    (member,) = etcd.members
    member.kill()
    member.launch(["--initial-cluster", f"{member.name}={member.peer_url}", *flags])
    member.wait_up()


def _raise_quota(etcd: Etcd) -> None:
    _launch_again(etcd, "--quota-backend-bytes", str(64 << 20))
    (member,) = etcd.members
    for alarm in asked(member, "/v3/maintenance/alarm", {"action": "GET"})["alarms"]:
        asked(member, "/v3/maintenance/alarm", {**alarm, "action": "DEACTIVATE"})


# --------------------------------------------------------------------------- coordinators


@pytest.fixture
def cluster(
    tmp_path: Path, small: Etcd, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SharedCluster]:
    with SharedCluster(tmp_path, small, Prefix(small.addresses)) as made:
        monkeypatch.setenv("CKPT_SECRET_FILE", str(made.secret_file))
        yield made


def said(
    cluster: SharedCluster, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str]:
    """Exit code and all that was said."""
    code = main([*words, "--store", cluster.url])
    return code, "".join(capsys.readouterr())


def test_a_save_is_refused_and_the_rest_goes_on_until_there_is_room(
    cluster: SharedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """CATALOG_FULL: "CATALOG_FULL" comes, and goes when there is room."""
    with ckpt.open(cluster.url) as store:
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        leader, term = cluster.leader(), cluster.term()
        fill(cluster.etcd)
        with pytest.raises(NoSpace) as caught:
            store.save(RUN, 2, state(2)).wait(WAIT_S)
        assert str(cluster.running[leader].ready["cluster"]) in str(caught.value)
        assert "space exceeded" in str(caught.value)
        assert "alarm disarm" in caught.value.hint
        check_loads(store, 1)
    with ckpt.open(cluster.url) as another:
        check_loads(another, 1)
        assert another.latest(RUN) == 1
        code, text = said(cluster, capsys, "status", "--json")
        (check,) = [each for each in json.loads(text)["checks"] if each["name"] == "CATALOG_FULL"]
        assert code == 3
        assert "alarm disarm" in check["remedy"]
        code, text = said(cluster, capsys, "rm", f"{RUN}@1", "--force")
        assert code == NoSpace.exit_code, text
        code, text = said(cluster, capsys, "coordinator", "step-down")
        assert code == NoSpace.exit_code, text
        assert "nobody could lead after" in text
        assert all(daemon.process.poll() is None for daemon in cluster.running.values())
        make_room(cluster.etcd)
        wait_until(
            lambda: "CATALOG_FULL" not in said(cluster, capsys, "status")[1],
            "there is room", poll_s=ASKED_S,
        )  # fmt: skip
        another.save(RUN, 2, state(2)).wait(WAIT_S)
        check_loads(another, 2)
    assert (cluster.leader(), cluster.term()) == (leader, term), "its term went on"
    one_record_a_step(cluster, 2)


def test_nobody_ends_when_nobody_can_lead_and_one_does_when_there_is_room(
    cluster: SharedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with ckpt.open(cluster.url) as store:
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        fill(cluster.etcd)
        with pytest.raises(NoSpace):
            store.save(RUN, 2, state(2)).wait(WAIT_S)
        leader = cluster.leader()
        cluster.kill(leader, signal.SIGKILL)
        others = sorted(cluster.running)
        wait_until(
            lambda: all(cluster.logged(id, '"cannot lead"') == 1 for id in others),
            "each says why", timeout_s=5 * LEASE_S,
        )  # fmt: skip
        code, text = said(cluster, capsys, "ls")
        assert code == 75
        assert "no coordinator leads now" in text
        assert "space exceeded" in text
        code, text = said(cluster, capsys, "status")
        assert code == 3
        assert "CATALOG_FULL" in text
        assert all(cluster.running[id].process.poll() is None for id in others)
        make_room(cluster.etcd)
        assert cluster.leader() in others
        store.save(RUN, 3, state(3)).wait(WAIT_S)
        check_loads(store, 1)
        check_loads(store, 3)


def test_one_that_starts_in_a_full_etcd_follows_who_leads(cluster: SharedCluster) -> None:
    leader = cluster.leader()
    other = min(set(cluster.running) - {leader})
    cluster.kill(other)
    fill(cluster.etcd)
    wait_until(lambda: f"coordinator/{other}" not in names_in(cluster.etcd, cluster.place), "gone")
    cluster.start(other)
    assert cluster.running[other].ready["leader"] == cluster.listen[leader]
    make_room(cluster.etcd)
    wait_until(
        lambda: f"coordinator/{other}" in names_in(cluster.etcd, cluster.place),
        "it is on the roll", poll_s=ASKED_S,
    )  # fmt: skip


def test_how_much_a_full_etcd_takes_at_once_is_asked_before_one_leads(
    tmp_path: Path, small: Etcd
) -> None:
    place = Prefix(small.addresses)
    with Coordinators(tmp_path, small, place, ids="a") as first:
        first.kill("a", signal.SIGTERM)
        fill(small)
        # So far beyond its quota that it looks at nothing else of a request that writes.
        _launch_again(small, "--quota-backend-bytes", str(8 << 20), "--max-txn-ops", "64")
        daemon = Daemon(
            "coordinator", "--directory", str(tmp_path / "a"), "--listen", "127.0.0.1:0",
            "--id", "a", "--catalog", place.url, "--code", CODE,
            "--secret-file", str(first.secret_file), log=first.log_of("a"),
        )  # fmt: skip
        try:
            wait_until(lambda: first.logged("a", '"cannot lead"') == 1, "it says why")
            assert daemon.process.poll() is None
            make_room(small)
            assert daemon.process.wait(timeout=WAIT_S) == Refused.exit_code
        finally:
            daemon.end()
        assert first.logged("a", "--max-txn-ops") >= 1
