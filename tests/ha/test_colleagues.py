"""`ckpt coordinator`, health checks, metrics and readiness of coordinators that share an etcd."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_client.cli.main import main
from ckptd.catalog.etcd.roll import Coordinator
from ckptd.catalog.etcd.times import LATEST_S, TransactionTimes
from ckptd.coordinator.disagreements import out_of_reach
from tests.ha import places
from tests.ha.clusters import FOUR, SharedCluster
from tests.ha.coordinators import CODE, Coordinators
from tests.ha.members import Etcd
from tests.ha.places import Prefix
from tests.waiting import ASKED_S, wait_until


@pytest.fixture
def two(tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinators]:
    with Coordinators(tmp_path, etcd, Prefix(etcd.addresses), ids="ab") as made:
        monkeypatch.setenv("CKPT_SECRET_FILE", str(made.secret_file))
        yield made


def ckpt(capsys: pytest.CaptureFixture[str], where: str, *words: str) -> tuple[int, str, str]:
    """Exit code, and what was said on both."""
    code = main([*words, "--store", f"ckpt://{where}"])
    out, err = capsys.readouterr()
    return code, out, err


def asked(capsys: pytest.CaptureFixture[str], where: str, *words: str) -> dict[str, object]:
    code, out, err = ckpt(capsys, where, *words, "--json")
    assert code == 0, err
    return dict(json.loads(out))


def checks(capsys: pytest.CaptureFixture[str], where: str) -> set[str]:
    _, out, _ = ckpt(capsys, where, "status", "--json")
    return {check["name"] for check in json.loads(out)["checks"]}


def where_serves(two: Coordinators) -> str:
    """Who leads, once it serves."""
    leader = two.leader()
    wait_until(lambda: two.logged(leader, f'"term": {two.term()}') > 0, "it serves")
    return two.listen[leader]


def test_ls_shows_who_leads_who_stands_by_and_how_etcd_is(
    two: Coordinators, capsys: pytest.CaptureFixture[str]
) -> None:
    leader, where = two.leader(), where_serves(two)
    wait_until(
        lambda: len(asked(capsys, where, "coordinator", "ls")["coordinators"]) == 2,  # type: ignore[arg-type]
        "both are on the roll", poll_s=ASKED_S,
    )  # fmt: skip
    found = json.loads(ckpt(capsys, where, "coordinator", "ls", "--json")[1])
    rows = {row["id"]: row for row in found["coordinators"]}
    (other,) = rows.keys() - {leader}
    assert (rows[leader]["state"], rows[leader]["term"]) == ("leads", two.term())
    assert (rows[other]["state"], rows[other]["term"]) == ("stands by", None)
    assert {id: row["address"] for id, row in rows.items()} == two.listen
    assert {id: row["pid"] for id, row in rows.items()} == {
        id: daemon.process.pid for id, daemon in two.running.items()
    }
    (member,) = found["members"]
    assert member["address"] == two.etcd.addresses
    assert member["healthy"]
    code, out, _ = ckpt(capsys, where, "coordinator", "ls")
    assert code == 0
    assert "stands by" in out
    assert two.place.url in out


def lags_at(capsys: pytest.CaptureFixture[str], where: str) -> dict[str, object]:
    rows = asked(capsys, where, "coordinator", "ls")["coordinators"]
    return {row["id"]: row["lag"] for row in rows}  # type: ignore[attr-defined]


def test_ls_says_how_far_the_copy_of_who_stands_by_is(
    two: Coordinators, capsys: pytest.CaptureFixture[str]
) -> None:
    leader, where = two.leader(), where_serves(two)
    (other,) = {"a", "b"} - {leader}

    def lags() -> dict[str, object]:
        return lags_at(capsys, where)

    wait_until(lambda: lags() == {leader: None, other: 0}, "its copy is whole", poll_s=ASKED_S)
    assert "lag" in ckpt(capsys, where, "coordinator", "ls")[1]
    two.running[other].process.send_signal(signal.SIGSTOP)
    assert lags() == {leader: None, other: None}, "it does not say"
    two.running[other].process.send_signal(signal.SIGCONT)
    wait_until(lambda: lags() == {leader: None, other: 0}, "it says", poll_s=ASKED_S)


def test_codes_that_differ_are_said_until_they_do_not(
    two: Coordinators, capsys: pytest.CaptureFixture[str]
) -> None:
    """CODES_DIFFER: "CODES_DIFFER" comes with who has which, and goes by what it names."""
    leader, where = two.leader(), where_serves(two)
    (other,) = {"a", "b"} - {leader}
    two.kill(other, signal.SIGTERM)
    two.code = "4+2"
    two.start(other)
    wait_until(lambda: "CODES_DIFFER" in checks(capsys, where), "it is said", poll_s=ASKED_S)
    assert f"{other} has --code 4+2 --max-per-domain 2" in ckpt(capsys, where, "status")[1]
    two.kill(other, signal.SIGTERM)
    two.code = CODE
    two.start(other)
    wait_until(lambda: "CODES_DIFFER" not in checks(capsys, where), "it is gone", poll_s=ASKED_S)


def test_who_listens_on_loopback_is_named_when_there_are_several_hosts() -> None:
    def at(host: str, address: str) -> Coordinator:
        return Coordinator("p", host, 1, address)

    one, two = at("h1", "127.0.0.1:7070"), at("h2", "10.0.0.2:7070")
    assert out_of_reach({"a": one, "b": at("h1", "localhost:1")}) == ""
    assert out_of_reach({"a": two, "b": at("h1", "n1:7070")}) == ""
    assert out_of_reach({"a": one, "b": two}) == "other hosts do not reach a"
    both = {"a": at("h1", "[::1]:7070"), "b": at("h2", "localhost:7070")}
    assert out_of_reach(both) == "other hosts do not reach a, b"


def test_an_etcd_without_a_majority_is_said_while_nobody_can_lead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CATALOG_NO_QUORUM: "CATALOG_NO_QUORUM" comes, and goes by what it names."""
    with (
        Etcd(tmp_path / "etcd", 3) as etcd,
        Coordinators(tmp_path, etcd, Prefix(etcd.addresses), ids="ab") as two,
    ):
        monkeypatch.setenv("CKPT_SECRET_FILE", str(two.secret_file))
        leader = two.leader()
        everywhere = ",".join(two.listen.values())
        assert "CATALOG_NO_QUORUM" not in checks(capsys, everywhere)
        for member in etcd.members[1:]:
            member.kill()
        wait_until(lambda: two.logged(leader, "its lease was not kept") == 1, "nobody leads")
        code, out, _ = ckpt(capsys, everywhere, "status", "--json")
        found = {check["name"]: check for check in json.loads(out)["checks"]}
        assert code == 75
        assert found["CATALOG_NO_QUORUM"]["severity"] == "error"
        assert etcd.members[1].address in found["CATALOG_NO_QUORUM"]["message"]
        assert ckpt(capsys, everywhere, "status")[0] == 75
        view = asked(capsys, everywhere, "coordinator", "ls")
        assert {row["state"] for row in view["coordinators"]} == {"stands by"}  # type: ignore[attr-defined]
        healthy = [each["healthy"] for each in view["members"]]  # type: ignore[attr-defined]
        assert healthy == [False, False, False]
        code, _, err = ckpt(capsys, everywhere, "ls")
        assert code == 75
        assert "no coordinator leads now" in err
        for member in etcd.members[1:]:
            member.start()
        two.leader()
        wait_until(
            lambda: "CATALOG_NO_QUORUM" not in checks(capsys, everywhere), "it is gone",
            poll_s=ASKED_S,
        )  # fmt: skip


def test_who_stands_by_names_no_leader_that_is_gone_when_nobody_can_lead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Etcd(tmp_path / "etcd", 3) as etcd,
        Coordinators(tmp_path, etcd, Prefix(etcd.addresses), ids="ab") as two,
    ):
        monkeypatch.setenv("CKPT_SECRET_FILE", str(two.secret_file))
        leader = two.leader()
        (other,) = {"a", "b"} - {leader}
        where = where_serves(two)
        wait_until(lambda: lags_at(capsys, where).get(other) == 0, "it holds a session to it")
        for member in etcd.members[1:]:
            member.kill()
        two.kill(leader)
        wait_until(lambda: two.logged(other, "the leader's process is gone") == 1, "it is missed")
        code, out, err = ckpt(capsys, two.listen[other], "status", "--json")
        assert code == 75
        assert "CATALOG_NO_QUORUM" in {check["name"] for check in json.loads(out)["checks"]}, err


def test_step_down_lets_the_other_one_lead(
    two: Coordinators, capsys: pytest.CaptureFixture[str]
) -> None:
    leader, where = two.leader(), where_serves(two)
    (other,) = {"a", "b"} - {leader}
    code, _, err = ckpt(capsys, where, "coordinator", "step-down", other)
    assert code == 10
    assert f"{other} does not lead: {leader} does" in err
    assert asked(capsys, where, "coordinator", "step-down", leader) == {
        "id": leader, "term": two.term()
    }  # fmt: skip
    assert two.leader(but=leader) == other
    assert two.running[leader].process.poll() is None
    two.kill(leader)
    # The roll has the one that was killed until its lease ends.
    wait_until(
        lambda: "NO_STANDBY" in checks(capsys, where_serves(two)), "it is missed", poll_s=ASKED_S
    )
    code, _, err = ckpt(capsys, where_serves(two), "coordinator", "step-down")
    assert code == 2
    assert f"nobody stands by to lead after {other}" in err


def test_no_standby_stands_until_there_is_one(
    two: Coordinators, capsys: pytest.CaptureFixture[str]
) -> None:
    """NO_STANDBY: "NO_STANDBY" comes, and goes by what it names."""
    leader = two.leader()
    (other,) = {"a", "b"} - {leader}
    two.kill(other)
    where = where_serves(two)
    wait_until(lambda: "NO_STANDBY" in checks(capsys, where), "it is said", poll_s=ASKED_S)
    two.start(other)
    wait_until(lambda: "NO_STANDBY" not in checks(capsys, where), "it is gone", poll_s=ASKED_S)


def test_a_catalog_that_answers_slowly_is_said() -> None:
    """ "CATALOG_SLOW" by its percentile, which the clock that it is given lets go again."""
    times = TransactionTimes()
    for _ in range(19):
        times.took(0.001, 100.0)
    assert times.percentile(99, 100.0) == 0.0, "few say nothing"
    for _ in range(80):
        times.took(0.001, 100.0)
    assert times.percentile(99, 100.0) == 0.001
    times.took(0.5, 110.0)
    times.took(0.6, 110.0)
    assert times.percentile(99, 110.0) >= 0.5
    assert times.percentile(99, 110.0 + LATEST_S + 1) == 0.0
    assert sum(times.histogram.counts) == 101


def test_metrics_and_readiness_say_who_leads(tmp_path: Path, etcd: Etcd) -> None:
    with Coordinators(
        tmp_path, etcd, Prefix(etcd.addresses), ids="ab", flags=("--http", "127.0.0.1:0")
    ) as two:
        leader = two.leader()
        (other,) = {"a", "b"} - {leader}
        wait_until(lambda: two.logged(leader, '"leads"') == 1, "it serves")
        assert "ckpt_coordinator_leading 1" in metrics(two, leader)
        found = metrics(two, leader)
        assert f"ckpt_coordinator_term {two.term()}" in found
        assert "ckpt_coordinator_takeovers_total 1" in found
        assert re.search(r"^ckpt_catalog_transaction_seconds_count [1-9]", found, re.MULTILINE)
        assert "ckpt_catalog_written_bytes_total 0" in metrics(two, other)
        assert "ckpt_coordinator_leading 0" in metrics(two, other)
        assert "ckpt_coordinator_takeovers_total 0" in metrics(two, other)
        status, text = got(two, other, "/readyz")
        assert (status, text) == (
            503, f"this coordinator stands by: {two.listen[leader]} leads\n"
        )  # fmt: skip
        assert got(two, other, "/livez")[0] == 200


def got(two: Coordinators, id: str, path: str, token: str = "") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{two.running[id].ready['http']}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(two: Coordinators, id: str) -> str:
    token = (two.directory / id / "metrics.token").read_text().strip()
    status, text = got(two, id, "/metrics", token)
    assert status == 200, text
    return text


def before(two: Coordinators, etcd: Etcd) -> None:
    """The catalog as an earlier version begins it, and one of that version on the roll."""
    (member,) = etcd.members
    for id in "ab":
        two.kill(id, signal.SIGTERM)
    for name in ("protocol", "count"):
        key = places.in_base64(f"{two.place.name}:{name}")
        places.asked(member, "/v3/kv/deleterange", {"key": key})
    meta = json.loads(places.value_of(etcd, two.place, "meta") or b"")
    older = {"process": "p", "host": "h", "pid": 1, "address": "127.0.0.1:1"}
    for name, value in (("meta", {**meta, "schema": 1}), ("coordinator/older", older)):
        key = places.in_base64(f"{two.place.name}:{name}")
        put = {"key": key, "value": places.in_base64(json.dumps(value))}
        places.asked(member, "/v3/kv/put", put)
    for id in "ab":
        two.start(id)


@pytest.fixture
def upgraded(
    tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SharedCluster]:
    """Two coordinators, and targets that none has said anything to before."""
    place = Prefix(etcd.addresses)
    with SharedCluster(tmp_path, etcd, place, ids="ab", targets=()) as made:
        monkeypatch.setenv("CKPT_SECRET_FILE", str(made.secret_file))
        made.leader()
        before(made, etcd)
        for id in FOUR:
            made.start_target(id)
        yield made


def test_an_upgrade_waits_for_the_coordinators_that_stand_by(
    upgraded: SharedCluster, capsys: pytest.CaptureFixture[str], etcd: Etcd
) -> None:
    two = upgraded
    leader, where = two.leader(), where_serves(two)
    serves = lambda: "CATALOG_UNPROVED" not in checks(capsys, where)  # noqa: E731
    wait_until(serves, "its targets vouch", poll_s=ASKED_S)
    (other,) = {"a", "b"} - {leader}

    def speaking() -> dict[str, int | None]:
        code, out, err = ckpt(capsys, where, "upgrade", "--json")
        assert code == 0, err
        rows = json.loads(out)["members"]
        return {row["name"]: row["protocol"] for row in rows if row["kind"] == "coordinator"}

    wanted = {"": 3, other: 3, "older": 2}
    wait_until(lambda: speaking() == wanted, "all are known", poll_s=ASKED_S)
    assert "UPGRADE_UNFINISHED" in checks(capsys, where)
    _, _, err = ckpt(capsys, where, "upgrade", "finish")
    assert "coordinator older speaks protocol 2, not 3" in err
    key = places.in_base64(f"{two.place.name}:coordinator/older")
    places.asked(etcd.members[0], "/v3/kv/deleterange", {"key": key})
    wait_until(lambda: "older" not in speaking(), "it is gone", poll_s=ASKED_S)
    code, _, err = ckpt(capsys, where, "upgrade", "finish")
    assert code == 0, err
    assert json.loads(places.value_of(etcd, two.place, "meta") or b"")["schema"] == 2
    # Whoever leads next knows it.
    two.kill(leader, signal.SIGKILL)
    assert two.leader(but=leader) == other
    assert where_serves(two) == two.listen[other]
    assert "UPGRADE_UNFINISHED" not in checks(capsys, two.listen[other])
