"""The commands against a real cluster: what they show, change and refuse, and their exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ckpt
from ckpt.base.units import format_bytes, format_seconds
from ckpt_client.cli.cluster import is_running
from ckpt_client.store import Store
from tests.client.clikit import environment, fill, on_terminal, run
from tests.client.remote_daemons import remote
from tests.waiting import ASKED_S, wait_until

TARGETS = ("t0", "t1", "t2", "t3")
TARGET_FIELDS = {
    "id", "state", "domain", "address", "pid", "directory", "bytes_used", "bytes_free",
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """DIR of a cluster of 4 targets, 2+1, whose targets are not started again by themselves."""
    directory = tmp_path_factory.mktemp("cli") / "burst"
    fill(f"ckpt+local://{directory}?targets=4&code=2+1&restart=never", "llama/7b", (1, 2, 3))
    fill(f"ckpt+local://{directory}", "single", (5,), ranks=1)
    yield directory
    run("local", "stop", str(directory))


@pytest.fixture
def store(directory: Path) -> str:
    """Its URL, with all targets live."""
    url = f"ckpt+local://{directory}"
    with ckpt.open(url) as opened:
        wait_until(lambda: live(opened) == set(TARGETS), "all targets live")
    return url


def status_of(url: str) -> dict[str, Any]:
    return run("status", "--json", "--store", url).document()


def targets_of(url: str) -> dict[str, dict[str, Any]]:
    targets = status_of(url)["targets"]
    return {target["id"]: target for target in targets}


def states(store: Store) -> dict[str, str]:
    """Asked without a process of its own, for as long as it takes."""
    targets = json.loads(store._control.ask("status"))["targets"]
    return {target["id"]: target["state"] for target in targets}


def live(store: Store) -> set[str]:
    return {id for id, state in states(store).items() if state == "live"}


def restart(directory: Path) -> None:
    """Stop the cluster, and start it as any reader does."""
    assert run("local", "stop", str(directory)).code == 0
    assert run("ls", "--store", f"ckpt+local://{directory}").code == 0


# --------------------------------------------------------------------------- looking


def test_status_names_the_coordinator_and_every_target(directory: Path, store: str) -> None:
    status = status_of(store)
    ready = json.loads((directory / "ready.json").read_text())
    assert status["coordinator"] == {
        "address": ready["address"], "pid": ready["coordinator_pid"], "wire": "auto",
    }  # fmt: skip
    assert (status["running"], status["health"]) == (True, "HEALTH_OK")
    targets = targets_of(store)
    assert tuple(targets) == TARGETS
    for told in ready["targets"]:
        target = targets[told["id"]]
        assert target.keys() >= TARGET_FIELDS
        assert target["pid"] == told["pid"]
        assert target["address"] == told["address"]
        assert target["directory"] == told["directory"]
        assert str(target["domain"]).count("/") == 3
        assert isinstance(target["bytes_used"], int)
        assert isinstance(target["bytes_free"], int)
        assert target["bytes_free"] > 0
        os.kill(told["pid"], 0)


def test_status_for_people_has_one_line_for_each_target_and_run(store: str) -> None:
    ended = run("status", "--store", store)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].endswith("HEALTH_OK")
    assert any(line.startswith("targets  4/4 live, code 2+1") for line in lines)
    for id in TARGETS:
        assert any(line.startswith(f"{id}  ") and " live " in line for line in lines)
    assert any(line.startswith("llama/7b") for line in lines)
    assert max(map(len, lines)) <= 140


def test_status_prints_an_address_that_opens_the_page(directory: Path, store: str) -> None:
    text = run("status", "--store", store).out
    address = page_of(text)
    assert "llama/7b" in opened_page(address)
    assert (directory / "secret").read_text().strip() not in text
    with pytest.raises(urllib.error.HTTPError) as refused:
        opened_page(address.partition("?")[0])
    with refused.value as answer:
        assert answer.code == 401
        assert "`ckpt status` prints an address" in answer.read().decode()
    in_logs = json.dumps(status_of(store))
    assert address.partition("token=")[2] not in in_logs, "monitoring keeps what it reads"


def test_status_of_another_host_prints_the_address_of_its_page_as_well(tmp_path: Path) -> None:
    with remote(tmp_path) as case:
        text = run("status", environ=case.environ).out
        assert "llama/7b" in opened_page(page_of(text))


def page_of(text: str) -> str:
    found = re.search(r"^page +(http://\S+)  \(opens for 10 min\)$", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


def opened_page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as page:
        return str(page.read(), "utf-8")


def test_ls_marks_the_newest_of_each_run(store: str) -> None:
    document = run("ls", "--store", store, "--json").document()
    steps = document["steps"]
    assert [(each["run"], each["step"], each["newest"]) for each in steps] == [
        ("llama/7b", 1, False),
        ("llama/7b", 2, False),
        ("llama/7b", 3, True),
        ("single", 5, True),
    ]
    head, *rows = run("ls", "--store", store).out.splitlines()
    for row, step in zip(rows, steps, strict=True):
        assert ("*" in row) is step["newest"]
        assert " committed " in row
        assert step["bytes"] > 0
        assert f" {format_bytes(step['bytes'])} " in row
        assert step["commit_s"] > 0
        assert f" {format_seconds(step['commit_s'])} " in row
        place = head.index("survives now")
        assert row[place:].startswith("1 target, 0 devices")
    assert len({len(line[: head.index("state")]) for line in (head, *rows)}) == 1


def test_ls_of_one_run_shows_that_run_alone(store: str) -> None:
    document = run("ls", "single", "--json", "--store", store).document()
    assert [each["run"] for each in document["steps"]] == ["single"]
    ended = run("ls", "nobody", "--json", "--store", store)
    assert (ended.code, ended.out) == (10, "")
    assert ended.error()["hint"] == "runs with checkpoints: llama/7b, single"


def test_a_checkpoint_that_is_named_as_in_a_url_hears_its_name_in_commands(store: str) -> None:
    ended = run("show", "llama/7b/2", "--json", "--store", store)
    assert (ended.code, ended.error()["hint"]) == (10, "did you mean llama/7b@2?")


def test_the_store_may_come_from_the_environment_and_options_stand_anywhere(store: str) -> None:
    environ = environment(CKPT_STORE=store)
    assert run("--json", "ls", "single", environ=environ).document()
    assert run("ls", "single", environ=environ).code == 0


def test_show_tells_where_every_column_is(store: str) -> None:
    document = run("show", "llama/7b@3", "--json", "--store", store).document()
    columns = document["columns"]
    assert [each["rank"] for each in columns] == [0, 1]
    for each in columns:
        assert len(each["targets"]) == 3
        assert each["live"] == [True, True, True]
    text = run("show", "llama/7b@3", "--store", store).out
    assert "checkpoint    llama/7b@3 (newest)" in text
    assert run("show", "llama/7b@4", "--store", store).code == 10


def test_another_secret_is_not_authorized(store: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("cd" * 32)
    secret.chmod(0o600)
    ended = run("ls", "--json", "--store", store, environ=environment(CKPT_SECRET_FILE=str(secret)))
    assert (ended.code, ended.error()["code"]) == (12, 12)


def test_a_secret_that_goes_under_its_cluster_is_not_made_again(
    directory: Path, store: str, tmp_path: Path
) -> None:
    """The daemons have the old one: another in its place would shut everybody out."""
    secret, kept = directory / "secret", tmp_path / "kept"
    secret.rename(kept)
    try:
        ended = run("status", "--store", store)
        assert (ended.code, secret.exists()) == (12, False)
        assert f"the secret of the cluster in {directory} is gone" in ended.err
        assert f"put a copy of it back as {secret}" in ended.err
        secret.write_text("cd" * 32)
        secret.chmod(0o600)
        ended = run("status", "--store", store)
        assert ended.code == 12
        assert f"`ckpt local stop {directory} && ckpt ls` serves with it" in ended.err
    finally:
        kept.rename(secret)
    assert run("status", "--store", store).code == 0


def test_a_secret_that_others_can_read_is_refused(store: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("cd" * 32)
    secret.chmod(0o644)
    ended = run("ls", "--store", store, environ=environment(CKPT_SECRET_FILE=str(secret)))
    assert ended.code == 2
    assert f"chmod 600 {secret}" in ended.err


def test_options_that_contradict_the_directory_are_refused_naming_both(store: str) -> None:
    ended = run("ls", "--store", f"{store}?targets=9")
    assert ended.code == 2
    assert "targets=9" in ended.err
    assert "targets=4" in ended.err


def test_a_directory_of_another_host_is_refused(directory: Path, tmp_path: Path) -> None:
    made = (directory / "cluster.toml").read_text()
    moved = re.sub('host = ".*"', 'host = "elsewhere"', made)
    (tmp_path / "cluster.toml").write_text(moved)
    for verb in (["status"], ["ls"], ["local", "stop"], ["target", "hold", "t0"]):
        ended = run(*verb, "--store", f"ckpt+local://{tmp_path}")
        assert ended.code == 2
        assert "belongs to host elsewhere" in ended.err


def test_a_coordinator_that_hangs_is_told_by_status(directory: Path, store: str) -> None:
    pid = json.loads((directory / "ready.json").read_text())["coordinator_pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        ended = run("status", "--json", "--timeout", "0.5", "--store", store)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert ended.code == 75
    status = ended.document()
    assert status["coordinator"]["pid"] == pid
    (check,) = status["checks"]
    assert check["name"] == "COORDINATOR_DOWN"
    assert [target["id"] for target in status["targets"]] == list(TARGETS)
    assert all(target["pid"] for target in status["targets"])


# --------------------------------------------------------------------------- losing, holding


def test_a_killed_target_shows_in_status_ls_and_show(directory: Path, store: str) -> None:
    pid = targets_of(store)["t1"]["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    with ckpt.open(store) as opened:
        wait_until(lambda: states(opened)["t1"] == "down", "t1 is down")
    status = status_of(store)
    assert targets_of(store)["t1"]["pid"] is None
    assert status["health"] == "HEALTH_WARN"
    checks = status["checks"]
    assert {check["name"] for check in checks} == {"TARGET_DOWN", "REDUNDANCY_LOW"}
    assert run("status", "--store", store).code == 0
    assert run("status", "--check", "--store", store).code == 3
    page = opened_page(page_of(run("status", "--store", store).out))
    assert f"<code>ckpt status --store {store}</code>" in page
    assert "ckptd target" not in page, "its supervisor has the words"
    away = "5 min for a target that is away, unless no more may be lost"
    waits = re.compile(rf"^waits   {away}; t1: .+ more$", re.MULTILINE)
    wait_until(
        lambda: waits.search(run("repair", "--store", store).out) is not None, "it is waited for",
        poll_s=ASKED_S,
    )  # fmt: skip

    (row,) = run("ls", "single", "--json", "--store", store).document()["steps"]
    document = run("show", "llama/7b@3", "--json", "--store", store).document()
    shown = document["columns"]
    missing = 0
    for each in shown:
        for target, is_live in zip(each["targets"], each["live"], strict=True):
            assert is_live is (target != "t1")
            missing += not is_live
    (generation,) = document["generations"]
    assert generation["columns_missing"] == missing
    assert row["targets_survivable_at_commit"] == 1
    # As many targets as the worst payload has columns to spare, and its index copies.
    (index,) = (one for one in document["documents"] if one["kind"] == "index")
    assert generation["targets_survivable"] == (0 if missing or not all(index["live"]) else 1)
    if missing:
        assert "(t1)" in run("show", "llama/7b@3", "--store", store).out
        assert "degraded" in run("ls", "llama/7b", "--store", store).out
        listed = run("ls", "llama/7b", "--json", "--store", store).document()["steps"]
        (third,) = (one for one in listed if one["step"] == 3)
        assert (third["state"], generation["state"]) == ("degraded", "degraded")
    restart(directory)


def test_a_held_target_is_not_started_until_it_is_released(directory: Path, store: str) -> None:
    held = run("target", "hold", "t2", "--json", "--store", store).document()
    assert held == {
        "id": "t2",
        "held": True,
        "changed": True,
        "pid": targets_of(store)["t2"]["pid"],
    }
    assert "already held" in run("target", "hold", "t2", "--store", store).out
    assert "live (held)" in run("status", "--store", store).out
    restart(directory)
    target = targets_of(store)["t2"]
    assert (target["held"], target["pid"], target["state"] == "live") == (True, None, False)

    released = run("target", "release", "t2", "--json", "--store", store).document()
    assert released["changed"] is True
    with ckpt.open(store) as opened:
        wait_until(lambda: "t2" in live(opened), "t2 is started again")
    assert run("target", "release", "t2", "--store", store).out == "t2 was not held\n"


def test_an_unknown_target_is_not_found(store: str) -> None:
    ended = run("target", "hold", "t9", "--store", store)
    assert ended.code == 10
    assert "it has t0, t1, t2, t3" in ended.err


def test_a_hold_needs_a_cluster_of_this_machine() -> None:
    ended = run("target", "hold", "t0", "--store", "ckpt://127.0.0.1:9")
    assert ended.code == 2
    assert "ckpt+local:///DIR" in ended.err


# --------------------------------------------------------------------------- deleting


def test_rm_deletes_one_step_and_tells_what_is_newest(store: str) -> None:
    fill(store, "doomed", (1, 2), ranks=1)
    document = run("rm", "doomed@2", "--json", "--store", store).document()
    assert (document["step"], document["latest"]) == (2, 1)
    assert run("rm", "doomed@2", "--store", store).code == 10


def test_rm_keeps_the_only_step_of_a_run_unless_forced(store: str) -> None:
    fill(store, "last", (9,), ranks=1)
    ended = run("rm", "last@9", "--yes", "--store", store)
    assert ended.code == 2
    assert "--force" in ended.err
    assert run("ls", "last", "--store", store).code == 0
    forced = run("rm", "last@9", "--force", "--store", store)
    assert forced.code == 0
    assert "no checkpoint is left" in forced.out
    assert run("ls", "last", "--store", store).code == 10


def test_a_dry_run_of_rm_says_what_a_deletion_then_does(store: str) -> None:
    fill(store, "spared", (1, 2), ranks=1)
    line = ("rm", "spared@2", "--store", store)
    foretold = run(*line, "--dry-run", "--json").document()
    assert [one["step"] for one in foretold["generations"]] == [2]
    assert (foretold["against"], foretold["held_by"], foretold["dry_run"]) == ([], [], True)
    shown = run(*line, "--dry-run")
    assert (shown.code, "; the newest would be step 1\n" in shown.out) == (0, True)
    both = run(*line, "--dry-run", "--yes")
    assert (both.code, "--yes and --dry-run" in both.err) == (2, True)
    done = run(*line, "--json").document()
    assert done == {key: foretold[key] for key in done}


def test_a_dry_run_of_rm_deletes_nothing_and_says_that_it_would_be_refused(store: str) -> None:
    fill(store, "only", (9,), ranks=1)
    line = ("rm", "only@9", "--dry-run", "--store", store)
    ended = run(*line)
    assert ended.code == 3
    assert "against it: only@9 is the only committed checkpoint of its run: --force" in ended.out
    assert "would delete" not in ended.out
    forced = run(*line, "--force")
    assert (forced.code, "no checkpoint would be left" in forced.out) == (0, True)
    assert run("ls", "only", "--store", store).code == 0


def test_rm_asks_on_a_terminal(store: str) -> None:
    fill(store, "asked", (1, 2), ranks=1)
    code, shown = on_terminal("rm", "asked@1", "--store", store, answer="n\n")
    assert code == 1
    assert "delete asked@1" in shown
    assert "[y/N]" in shown
    assert "nothing was deleted" in shown
    code, shown = on_terminal("rm", "asked@1", "--store", store, answer="y\n")
    assert (code, "deleted asked@1" in shown) == (0, True)


def test_colours_need_a_terminal_and_no_no_color(store: str) -> None:
    _, shown = on_terminal("status", "--store", store)
    assert "\x1b[32mHEALTH_OK\x1b[0m" in shown
    _, plain = on_terminal("status", "--store", store, NO_COLOR="1")
    assert "\x1b[" not in plain
    assert "\x1b[" not in run("status", "--store", store).out


def test_what_the_library_logs_is_a_remark_and_no_line_beside_json(
    directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "cluster.toml").write_text((directory / "cluster.toml").read_text())
    line = ("ls", "--store", f"ckpt+local://{tmp_path}", "--timeout", "2.5")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = run(*line)
        assert f"ckpt: another process opens or starts the cluster in {tmp_path}\n" in ended.err
        assert run(*line, "--json").error()["code"] == ended.code == 75


def test_tables_fit_a_narrow_terminal_and_say_what_they_do_without(store: str) -> None:
    for line in ("ls", "target ls"):
        whole = run(*line.split(), "--store", store).out.splitlines()
        assert max(map(len, whole)) > 80
        code, shown = on_terminal(*line.split(), "--store", store, COLUMNS="80", NO_COLOR="1")
        rows = shown.split("\r\n")
        assert (code, max(map(len, rows)) <= 80) == (0, True), rows
        (note,) = (row for row in rows if row.startswith("(80 columns have no room for "))
        for title in note.partition(" for ")[2].partition(";")[0].split(", "):
            assert title in whole[0]
            assert title not in rows[0]


# --------------------------------------------------------------------------- resting, rebuilding


def test_a_stopped_cluster_is_reported_not_started(directory: Path, store: str) -> None:
    supervisor = json.loads((directory / "ready.json").read_text())["pid"]
    stopped = run("local", "stop", str(directory), "--json").document()
    assert (stopped["was_running"], stopped["pid"]) == (True, supervisor)
    assert stopped["took_s"] == stopped["seconds"] > 0, "0.1.0 knows the second name"
    assert not is_running(supervisor)

    ended = run("status", "--store", store)
    assert ended.code == 3
    assert f"the cluster in {directory} is not running" in ended.out
    assert f"ckptd local {directory}" in ended.out
    status = status_of(store)
    assert status["coordinator"] == {"address": None, "pid": None, "wire": ""}
    targets = targets_of(store)
    assert tuple(targets) == TARGETS
    for target in targets.values():
        assert target.keys() >= TARGET_FIELDS
        assert (target["pid"], target["state"]) == (None, "stopped")
        assert target["bytes_used"] != 0
    assert not (directory / "ready.json").exists()

    again = run("local", "stop", str(directory))
    assert (again.code, again.out) == (0, f"the cluster in {directory} was not running\n")
    read = run("ls", "--store", store)
    assert read.code == 0
    assert f"started the cluster in {directory}" in read.err


def test_a_lost_catalog_comes_back_from_the_targets(directory: Path, store: str) -> None:
    before = run("ls", "llama/7b", "--json", "--store", store).document()["steps"]
    assert run("catalog", "rebuild", str(directory)).code == 11
    assert run("local", "stop", str(directory)).code == 0
    for path in directory.glob("catalog.sqlite*"):
        path.unlink()
    # A target's directory stands for its cluster.
    target = directory / "targets" / "t0"
    document = run("catalog", "rebuild", str(target), str(directory), "--json").document()
    (rebuilt,) = document["catalogs"]
    assert {text.partition("#")[0] for text in rebuilt["committed"]} >= {
        "llama/7b@1", "llama/7b@2", "llama/7b@3", "single@5",
    }  # fmt: skip
    refused = {each["checkpoint"].partition("#")[0]: each["reason"] for each in rebuilt["refused"]}
    for checkpoint, reason in refused.items():
        assert reason, checkpoint
    after = run("ls", "llama/7b", "--json", "--store", store).document()["steps"]
    assert [(each["step"], each["generation"]) for each in after] == [
        (each["step"], each["generation"]) for each in before
    ]


def test_a_catalog_of_nowhere_is_not_rebuilt(tmp_path: Path) -> None:
    lost = run("catalog", "rebuild", str(tmp_path), "--json")
    assert lost.code == 10
    assert "--targets 'HOST:PORT HOST:PORT'" in lost.error()["hint"]
    assert list(tmp_path.iterdir()) == []
