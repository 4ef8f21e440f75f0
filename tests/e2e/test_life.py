"""From the first open to nothing left: options, retention, the commands, and the end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt_client.local.processes import find_marked
from tests.e2e.cluster import Cluster, command, runs
from tests.e2e.states import form_of
from tests.waiting import wait_until

CLUSTER_OPTIONS = "targets=3&keep=2&restart=never"
WAIT_S = 60.0


def processes(mark: str) -> list[tuple[str, ...]]:
    return [one.command for one in find_marked(mark)]


def test_without_a_code_three_targets_make_two_plus_one(store: ckpt.Store) -> None:
    commit = store.save("code", 1, {"a": 1}).wait(WAIT_S)
    assert (commit.code, commit.targets_survivable) == ("2+1", 1)


@pytest.mark.parametrize(
    ("option", "made"), [("targets=4", "targets=3"), ("code=1+1", "code=2+1"), ("keep=9", "keep=2")]
)
def test_an_option_that_contradicts_the_directory_is_refused_naming_both(
    cluster: Cluster, option: str, made: str
) -> None:
    bare = cluster.url.partition("?")[0]
    with pytest.raises(ckpt.Refused) as caught:
        ckpt.open(f"{bare}?{option}")
    assert option in str(caught.value)
    assert made in str(caught.value)
    ckpt.open(bare).close()


def test_targets_of_this_host_take_the_bytes_where_they_lie(
    cluster: Cluster, store: ckpt.Store
) -> None:
    state = {"w": np.random.default_rng(5).integers(0, 255, 24 << 20, np.uint8)}
    store.save("lent", 1, state).wait(WAIT_S)
    for target in cluster.targets():
        mapped = Path(f"/proc/{cluster.pid_of(target)}/maps").read_text()
        assert "memfd:ckpt-arena" in mapped or "memfd:ckpt-parity" in mapped, target
    assert np.array_equal(store.load("lent", 1)["w"], state["w"])


def test_an_option_that_nobody_knows_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ckpt.Refused, match="colour"):
        ckpt.open(f"{cluster.url}&colour=red")


def test_steps_and_latest_tell_what_is_committed_and_only_the_newest_are_kept(
    cluster: Cluster, store: ckpt.Store
) -> None:
    assert (store.latest("kept"), store.steps("kept")) == (None, [])
    for step in (10, 20):
        store.save("kept", step, {"a": step}).wait(WAIT_S)
    with store.resolve("kept", 10) as pinned:
        commits = [store.save("kept", s, {"a": s}).wait(WAIT_S) for s in (30, 40)]
        assert pinned.load() == {"a": 10}  # Its reader has it for as long as it is open.
    wait_until(lambda: [c.step for c in store.steps("kept")] == [30, 40], "older steps are gone")
    assert store.steps("kept") == commits
    assert store.latest("kept") == 40
    with pytest.raises(ckpt.NotFound):
        store.load("kept", 20)
    wait_until(
        lambda: {
            file.name.split("-")[1] for files in cluster.columns_of("kept").values() for file in files
        } == {"30", "40"},
        "the targets hold only what is kept",
    )  # fmt: skip


def test_an_old_generation_goes_when_its_last_reader_has_closed_it(
    cluster: Cluster, store: ckpt.Store
) -> None:
    store.save("pinned", 1, {"a": 1}).wait(WAIT_S)

    def generations() -> set[str]:
        files = cluster.columns_of("pinned").values()
        return {file.name.split("-")[2] for each in files for file in each}

    with store.resolve("pinned", 1) as old:
        second = store.save("pinned", 1, {"a": 2}).wait(WAIT_S)
        assert old.load() == {"a": 1}
        assert generations() == {str(old.generation), str(second.generation)}
    wait_until(lambda: generations() == {str(second.generation)}, "the old generation is gone")
    assert store.load("pinned", 1) == {"a": 2}


def test_verify_reads_every_column_whole(store: ckpt.Store) -> None:
    store.save("verified", 1, {"a": np.zeros(1 << 20)}).wait(WAIT_S)
    report = store.verify("verified", 1)
    assert (report.state, len(report.columns)) == ("healthy", 3)
    assert report.bytes_read >= 3 * (1 << 20) * 8 // 2


def test_the_commands_show_what_the_api_tells(cluster: Cluster, store: ckpt.Store) -> None:
    commit = store.save("shown", 5, {"a": 1}).wait(WAIT_S)
    steps = json.loads(command("ls", "shown", "--store", cluster.url, "--json").out)
    assert str(commit.generation) in json.dumps(steps)
    status = json.loads(command("status", "--store", cluster.url, "--json").out)
    assert status["coordinator"]["pid"] == cluster.coordinator_pid
    wanted = {"id", "state", "domain", "address", "pid", "directory", "bytes_used", "bytes_free"}
    assert [wanted - set(target) for target in status["targets"]] == [set()] * 3


def test_the_secret_is_in_no_command_line_no_environment_and_no_other_file(
    mark: str, cluster: Cluster, store: ckpt.Store
) -> None:
    store.save("hidden", 1, {"a": np.ones(1000)}).wait(WAIT_S)
    command("status", "--store", cluster.url)
    secret = (cluster.directory / "secret").read_text().strip()
    forms = (secret.encode(), bytes.fromhex(secret))
    others = [path for path in cluster.directory.rglob("*") if path.is_file()]
    others.remove(cluster.directory / "secret")
    for one in find_marked(mark):
        others += [Path(f"/proc/{one.pid}/cmdline"), Path(f"/proc/{one.pid}/environ")]
    found = {path: content_of(path) for path in others}
    assert len(list(filter(None, found.values()))) > 20
    assert not [path for path, content in found.items() if any(form in content for form in forms)]


def content_of(path: Path) -> bytes:
    """Of a file that may go at any moment; nothing when it has gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_daemons_log_one_json_object_a_line(cluster: Cluster, store: ckpt.Store) -> None:
    store.save("logged", 1, {"a": np.ones(1000)}).wait(WAIT_S)
    for name in ("coordinator", "t0"):
        lines = (cluster.directory / "logs" / f"{name}.log").read_text().splitlines()
        assert lines, name
        for line in lines:
            assert {"ts", "level", "logger", "msg"} <= set(json.loads(line)), name


def test_after_close_stop_and_idle_no_process_and_no_file_is_left(
    mark: str, runtime: Path, tmp_path: Path
) -> None:
    before = processes(mark)
    others = set(runtime.iterdir()) if runtime.exists() else set()
    with ckpt.open(f"ckpt+local://{tmp_path}?targets=2", stager_idle_s=0.2) as store:
        store.save("left", 1, {"a": np.ones(1000)}).wait(WAIT_S)
        assert len(processes(mark)) > len(before)
    command("local", "stop", str(tmp_path))
    wait_until(lambda: len(processes(mark)) == len(before), "every process has gone by itself")
    assert set(runtime.iterdir()) <= others
    assert not (tmp_path / "ready.json").exists()


def test_a_cluster_that_nobody_uses_stops_by_itself_and_comes_back(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no redundancy"):
        store = ckpt.open(f"ckpt+local://{tmp_path}?targets=1&linger=0.5", stager_idle_s=0.2)
    with store:
        commit = store.save("linger", 1, {"a": 1}).wait(WAIT_S)
        assert (commit.code, commit.targets_survivable) == ("1+0", 0)
        supervisor = json.loads((tmp_path / "ready.json").read_text())["pid"]
    wait_until(lambda: not runs(supervisor), "the idle stop")
    with ckpt.open(f"ckpt+local://{tmp_path}") as store:
        assert form_of(store.load("linger")) == form_of({"a": 1})
        os.kill(json.loads((tmp_path / "ready.json").read_text())["pid"], signal.SIGTERM)
