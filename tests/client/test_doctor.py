"""`ckpt doctor`: what a training would meet, found before it starts."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ckpt.base.errors import NotFound, Unauthorized
from ckpt.base.units import GiB
from ckpt.erasure.code import Code
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt_client.doctor import findings, probes
from ckpt_client.doctor.findings import Finding, Level, Need, TargetReach
from tests.client.checkkit import Case
from tests.client.clikit import Ended, environment, run
from tests.client.remote_daemons import remote
from tests.harm import WITHOUT_LIBRARY, harmed
from tests.waiting import ASKED_S, wait_until

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
CODE = Code(2, 1)
NOTHING = Need(0, 1, 1, 1)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    case = Case(tmp_path_factory.mktemp("doctor") / "burst", "targets=4&code=2+1&restart=never")
    yield case
    run("local", "stop", str(case.directory))


def doctor(case: Case, *flags: str, **changes: str) -> Ended:
    return run("doctor", "--json", *flags, environ={**case.environ, **changes})


def finding(ended: Ended, name: str) -> dict[str, Any]:
    (found,) = [one for one in ended.document()["findings"] if one["name"] == name]
    assert isinstance(found, dict)
    return found


def test_a_host_without_the_native_library_fails_by_name(case: Case, tmp_path: Path) -> None:
    environ = harmed(tmp_path, WITHOUT_LIBRARY) | {"CKPT_STORE": case.url}
    command = Path(sys.executable).with_name("ckpt"), "doctor", "--json"
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    found = finding(Ended(done.returncode, done.stdout, done.stderr), "erasure code")
    assert (done.returncode, found["level"]) == (1, "FAIL")
    assert "native library cannot be used" in found["message"]
    assert "pip install ckpt-burst" in found["remedy"]


def test_status_names_who_built_the_library_that_asks(case: Case) -> None:
    asked_by = case.status().document()["asked_by"]
    assert re.fullmatch(r"ckpt [\d.]+ \((gcc|clang) [^,]+, \w+\)", asked_by)


def test_a_sound_cluster_is_ok_line_by_line(case: Case) -> None:
    ended = doctor(case, "--state-bytes", "1MiB", "--ranks", "2", "--saves", "2")
    found = ended.document()["findings"]
    assert (ended.code, {one["level"] for one in found}) == (0, {"OK"}), found
    assert [one["name"] for one in found] == [
        "store", "secret", "coordinator", "targets", "clock", "room",
        "erasure code", "open files", "locked memory", "memory", "sockets",
    ]  # fmt: skip
    assert "4 of 4 reached" in finding(ended, "targets")["message"]
    text = run("doctor", environ=case.environ)
    assert text.code == 0
    assert [line[:4] for line in text.out.splitlines()] == ["OK  "] * len(found)


def test_a_stopped_target_is_named_after_two_seconds_and_saves_go_on(case: Case) -> None:
    pid = case.pid_of("t2")
    os.kill(pid, signal.SIGSTOP)
    try:
        ended = doctor(case)
    finally:
        os.kill(pid, signal.SIGCONT)
    found = finding(ended, "targets")
    assert (ended.code, found["level"]) == (3, "WARN")
    assert "3 of 4 reached" in found["message"]
    assert f"t2 at unix:{case.directory}/targets/t2/socket: " in found["message"]
    assert "ckpt status" in found["remedy"]


def test_it_says_of_the_cluster_what_status_says(case: Case) -> None:
    case.kill("t2")
    try:
        wait_until(
            lambda: case.check("TARGET_DOWN") is not None,
            "the coordinator misses t2",
            poll_s=ASKED_S,
        )
        wanted = case.check("TARGET_DOWN")
        found = finding(doctor(case), "TARGET_DOWN")
    finally:
        case.shell(f"ckpt target release t2 && ckpt local stop {case.directory} && ckpt ls")
    assert wanted is not None
    assert wanted["command"] == "ckpt target release t2"
    assert found["remedy"] == f"{wanted['remedy']}: {wanted['command']}"


def test_a_state_that_does_not_fit_fails_with_no_space(case: Case) -> None:
    ended = doctor(case, "--state-bytes", "900TiB", "--ranks", "4096", "--ranks-here", "4096")
    assert ended.code == 13
    assert finding(ended, "room")["level"] == finding(ended, "memory")["level"] == "FAIL"
    refused = doctor(case, "--state-bytes", "900TiB")
    assert (refused.code, "--ranks" in refused.err) == (2, True)


def test_a_secret_that_is_wrong_open_or_missing_fails_with_its_code(
    case: Case, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("cd" * 32)
    secret.chmod(0o600)
    wrong = doctor(case, CKPT_SECRET_FILE=str(secret))
    assert (wrong.code, finding(wrong, "coordinator")["level"]) == (12, "FAIL")
    assert finding(wrong, "open files")["level"] == "OK", "the host is looked at all the same"
    secret.chmod(0o644)
    shown = doctor(case, CKPT_SECRET_FILE=str(secret))
    assert (shown.code, finding(shown, "secret")["remedy"]) == (2, f"chmod 600 {secret}")
    missing = doctor(case, CKPT_SECRET_FILE=str(tmp_path / "none"))
    assert (missing.code, finding(missing, "secret")["level"]) == (12, "FAIL")


def test_a_store_that_does_not_parse_or_does_not_answer_fails(case: Case) -> None:
    assert doctor(case, "--store", "s3://bucket").code == 2
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ckpt://127.0.0.1:{silent.getsockname()[1]}"
        secret = str(case.directory / "secret")
        ended = doctor(case, "--store", address, "--timeout", "0.5", CKPT_SECRET_FILE=secret)
    assert (ended.code, finding(ended, "coordinator")["level"]) == (75, "FAIL")


def test_a_cluster_that_nobody_made_yet_is_a_warning(tmp_path: Path) -> None:
    store = f"ckpt+local://{tmp_path}/none"
    ended = run("doctor", "--json", "--store", store, environ=environment())
    assert (ended.code, finding(ended, "coordinator")["level"]) == (3, "WARN")
    assert not (tmp_path / "none").exists()


def test_too_few_targets_of_many_hosts_fail_and_so_does_their_check(tmp_path: Path) -> None:
    with remote(tmp_path) as hosts:
        assert "2 of 2 reached" in run("doctor", environ=hosts.environ).out
        hosts.end_target()
        hosts.wait("TARGET_DOWN")
        ended = run("doctor", "--json", environ=hosts.environ)
    found = finding(ended, "targets")
    assert (ended.code, found["level"]) == (75, "FAIL")
    assert "1 of 2 reached from here, code 1+1 needs 2" in found["message"]
    assert "can have tags: OpenSSL " in finding(ended, "tags")["message"]
    assert finding(ended, "TARGET_DOWN")["level"] in ("WARN", "FAIL")


def test_a_full_or_open_folder_of_sockets_fails(case: Case, tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir(mode=0o755)
    ended = doctor(case, XDG_RUNTIME_DIR=str(tmp_path))
    assert (ended.code, finding(ended, "sockets")["level"]) == (1, "FAIL")
    ended = doctor(case, XDG_RUNTIME_DIR=str(tmp_path / "nowhere"))
    assert finding(ended, "sockets")["level"] == "OK", "the temporary directory takes them"
    with small_disk() as folder:
        (folder / "ckpt").mkdir(mode=0o700)
        with pytest.raises(OSError, match="No space left"):
            (folder / "rest").write_bytes(bytes(65536))
        ended = doctor(case, XDG_RUNTIME_DIR=str(folder))
    assert (ended.code, finding(ended, "sockets")["level"]) == (13, "FAIL"), ended.out


@contextmanager
def small_disk() -> Iterator[Path]:
    """16 KiB, under a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ckpt-", dir="/tmp") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "small", folder]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("a small file system needs root")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (findings.judge_coordinator("a:1", 0.9, 1, 1), OK),
        (findings.judge_coordinator("a:1", 1.1, 1, 1), WARN),
        (findings.judge_coordinator("a:1", 0.1, 1, 2), WARN),
        (findings.judge_targets([TargetReach(id, "a:1", 0.1) for id in "abc"], CODE), OK),
        (findings.judge_targets([TargetReach(id, "a:1", 0.1) for id in "ab"], CODE), FAIL),
        (findings.judge_clock(100.0, 99.0, is_same_host=False), OK),
        (findings.judge_clock(100.0, 0.0, is_same_host=False), OK),
        (findings.judge_clock(100.0, 160.0, is_same_host=False), WARN),
        (findings.judge_clock(100.0, 160.0, is_same_host=True), OK),
        (findings.judge_open_files(1024, 4096, 100), OK),
        (findings.judge_open_files(1024, 4096, 1000), WARN),
        (findings.judge_open_files(1024, 1024, 1000), FAIL),
        (findings.judge_locked_memory(65536), OK),
        (findings.judge_locked_memory(None), OK),
        (findings.judge_memory(NOTHING, 1, 2), OK),
        (findings.judge_memory(Need(8 * GiB, 8, 4, 1), 16 * GiB, 32 * GiB), OK),
        (findings.judge_memory(Need(8 * GiB, 8, 4, 1), 8 * GiB, 32 * GiB), WARN),
        (findings.judge_memory(Need(8 * GiB, 8, 4, 1), 7 * GiB, 32 * GiB), FAIL),
        (findings.judge_sockets("/run/user/1", 0), FAIL),
        (findings.judge_health(Check("A", "warning", "it is", "do it")), WARN),
        (findings.judge_health(Check("A", "error", "it is", "do it", "ckpt ls")), FAIL),
        (findings.judge_missing(NotFound("none")), WARN),
    ],
)
def test_what_was_measured_is_judged(found: Finding, level: Level) -> None:
    assert found.level is level
    assert found.remedy or level is OK or found.name == "coordinator"


@pytest.mark.parametrize("soft", [65536, None])
def test_who_locks_memory_is_said(soft: int | None) -> None:
    """A user of a GPU who reads that nothing is locked looks for the fault elsewhere."""
    assert "a GPU's driver locks arenas" in findings.judge_locked_memory(soft).message


def test_room_counts_parity_and_that_columns_of_a_payload_go_to_distinct_targets() -> None:
    need = Need(8 * GiB, 4, 1, 2)
    free = {"a": 4 * GiB, "b": 4 * GiB, "c": 20 * GiB}
    apart = [([id], size) for id, size in free.items()]
    assert findings.judge_room(need, CODE, free, apart).level is FAIL, "no third place"
    free = dict.fromkeys("abc", 9 * GiB)
    apart = [([id], size) for id, size in free.items()]
    assert findings.judge_room(need, CODE, free, apart).level is OK
    assert findings.judge_room(need, CODE, free, [(list("abc"), 9 * GiB)]).level is FAIL
    assert findings.judge_room(need, CODE, {}, []).level is FAIL
    assert findings.judge_room(NOTHING, CODE, free, apart).level is OK


def test_targets_of_one_domain_share_a_device() -> None:
    free, domains = {"a": 5, "b": 5, "c": 7}, {"a": "h/1", "b": "h/1", "c": "h/2"}
    assert probes.devices_of(free, domains, {}) == [(["a", "b"], 5), (["c"], 7)]


def test_a_target_of_this_host_is_reached_by_its_socket_where_there_is_one(tmp_path: Path) -> None:
    assert probes.address_here(tmp_path, "a:1") == "a:1"
    (tmp_path / "socket").touch()
    assert probes.address_here(tmp_path, "a:1") == "a:1", "a file is no socket"


def test_the_exit_code_is_that_of_the_first_failure() -> None:
    fine, odd = Finding("a", OK, ""), Finding("b", WARN, "")
    bad = findings.failed("c", Unauthorized("no"))
    assert findings.exit_code([fine]) == 0
    assert findings.exit_code([fine, odd]) == 3
    assert findings.exit_code([odd, bad, Finding("d", FAIL, "")]) == 12
    assert findings.exit_code([Finding("d", FAIL, ""), bad]) == 1
