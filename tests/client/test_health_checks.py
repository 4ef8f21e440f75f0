"""Every health check of the code: brought about in a real cluster, its command run, and it goes.

The list is the code's own (`checks.py`): a check without a proof fails here, and so does one whose
advice names no command or one that does not help.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from ckpt.base.limits import DEVICE_FAILURES_MAX
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.messages.targets import RenewLease, ScrubReport
from ckpt.protocol.coordinator.reading.checks import CHECKS
from tests.ckptd.catalogs import spoil_page
from tests.client.checkkit import PATIENCE_S, RUN_NAME, Case, made, running
from tests.client.clikit import fill, flip, run
from tests.client.remote_daemons import remote
from tests.client.upkeep_proofs import (
    a_last_header_that_rots,
    a_removed_target_that_runs,
    a_repair_that_is_paused,
    a_store_that_nobody_serves,
    an_upgrade_that_is_not_finished,
    moves_that_nobody_makes,
)
from tests.protocol.coordinating import Bench
from tests.waiting import ASKED_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


# --------------------------------------------------------------------------- proofs


def a_held_target(case: Case) -> None:
    case.kill("t1")
    case.prove("TARGET_DOWN", "^ckpt target release t1$", r"down: t1 \(not connected\)")


def a_stopped_target(case: Case) -> None:
    pid = case.pid_of("t1")
    os.kill(pid, signal.SIGSTOP)
    case.prove("TARGET_DOWN", f"^kill -CONT {pid}$", r"t1 \(silent for \d+ s")


def a_target_that_is_not_started_again(folder: Path) -> None:
    with made(folder, "targets=4&code=2+1&restart=never") as case:
        case.kill("t1", held=False)
        case.prove("TARGET_DOWN", r"^ckpt local stop \S+ && ckpt ls$")


def a_target_of_another_host(folder: Path) -> None:
    """Its command is run there, by a person."""
    with remote(folder) as case:
        case.end_target()
        for name in ("TARGET_DOWN", "TOO_FEW_TARGETS", "REDUNDANCY_LOW"):
            found = case.wait(name)
            assert found["command"].startswith("ckptd target --id ")
            assert "held" not in found["remedy"]
        assert case.status().code == 3
        case.start(found["command"])
        wait_until(lambda: case.status().code == 0, "all is well", PATIENCE_S, ASKED_S)
        assert case.document()["checks"] == []


def a_failing_device(case: Case) -> None:
    staging = case.directory / "targets" / "t1" / "staging"
    staging.rename(staging.with_name("taken away"))
    fill(case.url, "burst", tuple(range(1, 5 + DEVICE_FAILURES_MAX)), ranks=2)
    found = case.prove("DEVICE_FAILING", r"^kill \d+$", "^t1: .*ENOENT")
    assert str(staging.parent) in found["remedy"]
    rows = run("ls", "burst", "--json", environ=case.environ).document()["steps"]
    assert all(row["columns_missing"] == 0 for row in rows), "nothing was lost by it"


def a_failing_device_whose_cause_is_mended(case: Case) -> None:
    """No command at all: its target finds out."""
    staging = case.directory / "targets" / "t1" / "staging"
    staging.rename(staging.with_name("taken away"))
    fill(case.url, "burst", tuple(range(1, 5 + DEVICE_FAILURES_MAX)), ranks=2)
    wait_until(lambda: case.check("DEVICE_FAILING") is not None, "it fails", PATIENCE_S, ASKED_S)
    shown = {each["id"]: each for each in case.status().document()["targets"]}
    assert (shown["t1"]["state"], shown["t1"]["device_failing"]) == ("live", True)
    assert sum(shown["t1"]["device_errors"].values()) >= DEVICE_FAILURES_MAX
    assert "live (device fails)" in run("status", environ=case.environ).out
    fill(case.url, "later", (1, 2, 3), ranks=2)
    sealed = list(case.directory.glob("targets/t1/columns/*"))
    staging.with_name("taken away").rename(staging)
    wait_until(lambda: case.check("DEVICE_FAILING") is None, "it is well", PATIENCE_S, ASKED_S)
    fill(case.url, "again", tuple(range(1, 9)), ranks=2)
    assert len(list(case.directory.glob("targets/t1/columns/*"))) > len(sealed)


def a_failing_device_and_a_new_coordinator(folder: Path) -> None:
    """The new term cannot be made durable there; what lies there is read all the same."""
    with made(folder) as case:
        holder = case.columns(1)[0].parents[1]
        staging = holder / "staging"
        staging.rename(staging.with_name("taken away"))
        os.kill(case.status().document()["coordinator"]["pid"], signal.SIGKILL)
        wait_until(
            lambda: case.check("DEVICE_FAILING") is not None, "it fails", PATIENCE_S, ASKED_S
        )
        names = {each["name"] for each in case.status().document()["checks"]}
        assert names == {"DEVICE_FAILING"}, "no column is missed"
        assert run("verify", f"{RUN_NAME}@1", environ=case.environ).code == 0
        found = case.prove("DEVICE_FAILING", r"^kill \d+$", f"^{holder.name}: .*ENOENT")
        assert str(holder) in found["remedy"]
        whole = lambda: run("verify", f"{RUN_NAME}@1", environ=case.environ).code == 0  # noqa: E731
        wait_until(whole, "it has started again, with all it held", PATIENCE_S, ASKED_S)


def too_few_targets(case: Case) -> None:
    case.kill("t0", "t1")
    case.prove("TOO_FEW_TARGETS", "release t0 && ckpt target release t1", "a save needs 3 for 2")


def a_device_that_is_nearly_full(folder: Path) -> None:
    filling(folder, "TARGET_NEARFULL", "nearfull_percent = 19")


def a_device_that_is_full(folder: Path) -> None:
    filling(folder, "TARGET_FULL", "nearfull_percent = 18\nfull_percent = 19")


def filling(folder: Path, name: str, marks: str) -> None:
    """Above the mark with three steps, below it with two."""
    (folder / "burst").mkdir()
    (folder / "burst" / "coordinator.toml").write_text(f"{marks}\n")
    with made(folder, "targets=3&code=2+1&capacity=18MiB") as case:
        fill(case.url, RUN_NAME, (3,), ranks=1)
        case.prove(name, f"^ckpt rm {RUN_NAME}@1$", r"\d% taken; ckpt's columns \d.* other files 0")


def columns_on_a_target_that_is_down(case: Case) -> None:
    holder = case.columns(1)[0].parents[1].name
    case.kill(holder)
    case.prove("REDUNDANCY_LOW", f"^ckpt target release {holder}$", f"on {holder}, which is down")


def columns_that_are_gone(folder: Path) -> None:
    with made(folder, repairs=False) as case:
        case.rested(case.columns(1)[0].unlink)
        case.prove("REDUNDANCY_LOW", f"^ckpt rm {RUN_NAME}@1$", "1 checkpoint has less redundancy")


def copies_of_index_and_record_that_are_gone(folder: Path) -> None:
    with made(folder, repairs=False) as case:
        shown = run("show", f"{RUN_NAME}@1", "--json", environ=case.environ).document()
        index, record = shown["documents"]
        assert (index["kind"], index["live"], index["copies"]) == ("index", [True, True], 2)
        assert (record["kind"], record["targets"]) == ("record", index["targets"])
        holder, other = index["targets"]
        prefix = xxh3_128(RUN_NAME.encode()).hex()
        files = [*case.directory.glob(f"targets/{holder}/documents/*{prefix}-1*")]
        assert len(files) == 2
        case.rested(lambda: [path.unlink() for path in files] and None)

        def are_missed() -> bool:
            text = run("show", f"{RUN_NAME}@1", environ=case.environ).out
            return f"record        {other}; 1 of 2 copies\n" in text and f"({holder})" in text

        # A target that has just begun may not have said yet what it holds.
        wait_until(are_missed, "both copies are missed", PATIENCE_S, ASKED_S)
        assert " 0 + 2 documents " in run("ls", environ=case.environ).out
        case.prove(
            "REDUNDANCY_LOW", f"^ckpt rm {RUN_NAME}@1$", "(2 copies of index or record missing)"
        )


def too_many_columns_on_targets_that_are_down(case: Case) -> None:
    one, two = sorted(path.parents[1].name for path in case.columns(1)[:2])
    case.kill(one, two)
    case.prove("CHECKPOINT_UNREACHABLE", f"release {one} && ckpt target release {two}")
    assert run("ls", environ=case.environ).code == 0


def too_many_columns_that_are_gone(folder: Path) -> None:
    with made(folder) as case:
        case.rested(lambda: [path.unlink() for path in case.columns(1)[:2]] and None)
        listed = run("ls", environ=case.environ)
        assert (listed.code, "unreachable" in listed.out) == (3, True)
        case.prove("CHECKPOINT_UNREACHABLE", f"^ckpt verify {RUN_NAME}@1$", "1 checkpoint is out")
        assert case.check("CHECKPOINT_LOST") is not None
        listed = run("ls", "--json", environ=case.environ)
        (one, _) = listed.document()["steps"]
        assert (listed.code, one["state"]) == (4, "lost")


def a_checkpoint_that_is_lost(folder: Path) -> None:
    with made(folder) as case:
        spoil(case)
        case.prove("CHECKPOINT_LOST", f"^ckpt rm {RUN_NAME}@1$", "damaged beyond repair")


def a_checkpoint_that_an_object_store_has(folder: Path) -> None:
    (folder / "burst").mkdir()
    (folder / "burst" / "drain.toml").write_text(f'to = "file://{folder}/store"\npoll_s = 0.2\n')
    with made(folder) as case:
        drained = lambda: case.status().document()["stores"][0]["backlog"] == 0  # noqa: E731
        wait_until(lambda: bool(case.status().document()["stores"]), "a store", PATIENCE_S, ASKED_S)
        wait_until(drained, "all is drained", PATIENCE_S, ASKED_S)
        spoil(case)
        case.prove("CHECKPOINT_STORED", "^ckpt fetch --lost$", "whole in an object store")
        listed = run("ls", "--json", environ=case.environ).document()["steps"]
        assert [each["step"] for each in listed if each["readable"]] == [1, 2]


def spoil(case: Case) -> None:
    """Two columns of step 1 rot, and a reader finds out."""
    for path in case.columns(1)[:2]:
        flip(path, FRAGMENTS_OFFSET)
    # Not a load: that may still find it in the memory of its stager.
    out = str(case.directory / "exported")
    line = ("export", f"{RUN_NAME}@1", out, "--format", "npz")
    assert run(*line, environ=case.environ).code == 4


def a_store_that_cannot_be_used(case: Case) -> None:
    folder = case.directory.parent
    (folder / "store").write_text("a file, where a folder should be")
    line = [
        "drain", "--to", f"file://{folder}/store/x", "--poll-s", "0.2",
        "--coordinator", case.status().document()["coordinator"]["address"],
        "--secret-file", str(case.directory / "secret"), "--patience-s", "0.5",
    ]  # fmt: skip
    with running(line, case, folder / "daemon.log"):
        wait_until(lambda: bool(case.check("DRAIN_FAILING")), "fails", PATIENCE_S, ASKED_S)
    left = lambda: not case.status().document()["stores"][0]["workers"]  # noqa: E731
    wait_until(left, "its worker is gone", PATIENCE_S, ASKED_S)
    found = case.check("DRAIN_FAILING")
    assert found is not None
    assert found["command"] == "", "what waits for a store that comes back is not forgotten"
    case.shell(found["remedy"].rpartition("for good: ")[2])
    wait_until(lambda: case.check("DRAIN_FAILING") is None, "it goes", PATIENCE_S, ASKED_S)


def a_target_without_descriptors(_folder: Path) -> None:
    """As the machine hears it; tests/ckptd/test_descriptors.py fills a real daemon, and raises."""
    bench = Bench(4)
    target = next(iter(bench.targets.values()))
    assert target.session is not None
    counters = {"connections_full": 1, "descriptor_limit": 99}
    bench.tell(target.session, RenewLease(target.id, target.boot, *target.space, counters=counters))
    view = bench.ask("status")
    assert isinstance(view, dict)
    (found,) = view["checks"]
    assert (found["name"], found["severity"]) == ("CONNECTIONS_FULL", "error")
    assert "descriptor limit 99" in found["message"]
    # On the target's host: elsewhere another process may have that number.
    assert re.match(r"ssh t0 prlimit --pid \d+ --nofile=", found["command"])
    bench.tell(target.session, RenewLease(target.id, target.boot, *target.space, counters={}))
    view = bench.ask("status")
    assert isinstance(view, dict)
    assert view["checks"] == []


def a_scrub_that_is_late(_folder: Path) -> None:
    """As the machine hears it; tests/protocol/test_target_scrub.py has a target that is."""
    bench = Bench(4)
    target = next(iter(bench.targets.values()))

    def hears(late_s: int) -> list[dict[str, str]]:
        assert target.session is not None
        report = ScrubReport(period_s=604_800.0, late_s=late_s)
        message = RenewLease(target.id, target.boot, *target.space, scrub=report)
        bench.tell(target.session, message)
        view = bench.ask("status")
        assert isinstance(view, dict)
        return list(view["checks"])

    (found,) = hears(7200)
    assert (found["name"], found["severity"]) == ("SCRUB_LATE", "warning")
    assert found["command"] == f"ckpt scrub {target.id}"
    assert "was to be read 2 h ago, within a period of 7d" in found["message"]
    assert hears(0) == []


def a_cluster_that_rests(case: Case) -> None:
    assert run("local", "stop", str(case.directory)).code == 0
    case.prove("NOT_RUNNING", "^ckpt ls$")


def a_stopped_coordinator(case: Case) -> None:
    pid = case.status().document()["coordinator"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    case.timeout_s, before = 1.0, case.timeout_s  # Each question lasts so long.
    assert case.status().code == 75
    case.prove("COORDINATOR_DOWN", f"^kill -CONT {pid}$")
    case.timeout_s = before


def a_catalog_that_became_unreadable(folder: Path) -> None:
    with made(folder) as case:
        pid = case.status().document()["coordinator"]["pid"]
        for path in case.directory.glob("catalog.sqlite-*"):
            path.unlink()
        (case.directory / "catalog.sqlite").write_bytes(b"no catalog any more " * 1000)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: case.status().code == 4, "it is known", PATIENCE_S, ASKED_S)
        case.prove(
            "CATALOG_CORRUPT", "&& ckpt catalog rebuild ", "is unreadable: file is not a data"
        )
        listed = run("ls", "--json", environ=case.environ).document()["steps"]
        assert [each["step"] for each in listed] == [1, 2]


def a_catalog_that_was_unreadable_before_the_start(folder: Path) -> None:
    with made(folder) as case:
        assert run("local", "stop", str(case.directory)).code == 0
        for path in case.directory.glob("catalog.sqlite-*"):
            path.unlink()
        catalog = case.directory / "catalog.sqlite"
        command = f"ckpt catalog rebuild {case.directory}"
        spoil_page(catalog)
        for said in ("is unreadable: *** in database main *** ", "file is not a database"):
            ended = run("ls", "--json", environ=case.environ)
            assert ended.code == 4
            told = ended.error()
            assert said in told["message"]
            assert command in told["hint"]
            catalog.write_bytes(b"no catalog any more " * 1000)
        case.shell(command)
        assert run("ls", environ=case.environ).code == 0


def a_catalog_that_was_removed(folder: Path) -> None:
    with made(folder) as case:
        assert run("local", "stop", str(case.directory)).code == 0
        for path in case.directory.glob("catalog.sqlite*"):
            path.unlink()
        assert run("ls", environ=case.environ).code != 0
        case.prove("CATALOG_OLD", "&& ckpt catalog rebuild ", "older than its targets")
        listed = run("ls", "--json", environ=case.environ).document()["steps"]
        assert [each["step"] for each in listed] == [1, 2]
        well = lambda: case.status().document()["checks"] == []  # noqa: E731
        wait_until(well, "nothing is missing", PATIENCE_S, ASKED_S)


def a_catalog_for_which_too_few_vouch(folder: Path) -> None:
    with made(folder) as case:
        coordinator = case.status().document()["coordinator"]["pid"]
        case.kill("t1", "t2")
        os.kill(coordinator, signal.SIGKILL)
        case.prove("CATALOG_UNPROVED", "^ckpt target release t1 ", "away: t1, t2$")


def a_catalog_that_forgot_what_stays(folder: Path) -> None:
    with made(folder, "targets=4&code=2+1&keep=2") as case:
        assert run("local", "stop", str(case.directory)).code == 0
        for path in case.directory.glob("catalog.sqlite*"):
            path.unlink()
        rebuilt = run("catalog", "rebuild", str(case.directory))
        assert f"ckpt keep RUN …): {RUN_NAME}" in rebuilt.out
        assert run("ls", environ=case.environ).code == 0
        case.prove("RETENTION_UNSAID", f"^ckpt keep {RUN_NAME} --none$", f"1 run .*: {RUN_NAME}")


def an_emptied_directory(folder: Path) -> None:
    with made(folder) as case:
        case.rested(lambda: shutil.rmtree(case.directory / "targets" / "t1"))
        assert case.check("TARGET_DOWN") is None, "its process runs: a start mends nothing"
        case.prove("DIRECTORY_UNKNOWN", "^ckpt target replace t1$", "emptied.*/targets/t1 on ")
        wait_until(lambda: not case.check("TARGET_DOWN"), "it is there", PATIENCE_S, ASKED_S)


def all_directories_emptied(folder: Path) -> None:
    with made(folder) as case:
        assert run("local", "stop", str(case.directory)).code == 0
        shutil.rmtree(case.directory / "targets")
        listed = run("ls", environ=case.environ)
        assert (listed.code, "0 of 3 have vouched" in listed.err) == (75, True)
        named = case.status("--store", case.url).document()["checks"]
        commands = [each["command"] for each in named if each["name"] == "CATALOG_UNPROVED"]
        assert commands[0].count(f"--store {case.url}") == 4
        case.prove("CATALOG_UNPROVED", "^ckpt target replace t0 --force; .* t1 --force; ")


def a_copied_directory(case: Case) -> None:
    folder = case.directory.parent
    original, copy = case.directory / "targets" / "t1", folder / "copy"
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("socket"))
    line = [
        "target", "--directory", str(copy),
        "--coordinator", case.status().document()["coordinator"]["address"],
        "--secret-file", str(case.directory / "secret"),
    ]  # fmt: skip
    with running(line, case, folder / "daemon.log") as impostor:
        wait_until(lambda: bool(case.check("DIRECTORY_COPIED")), "it asks", PATIENCE_S, ASKED_S)
        listed = run("target", "ls", environ=case.environ).out
        assert re.search(rf"(?m)^refused: .*copy of.*: kill {impostor.pid}$", listed)
        case.prove("DIRECTORY_COPIED", f"^kill {impostor.pid}$", "has another process.*copy of")
        assert impostor.wait(PATIENCE_S) == 0


HARMLESS: dict[str, list[Callable[[Case], None]]] = {
    "TARGET_DOWN": [a_held_target, a_stopped_target],
    "TOO_FEW_TARGETS": [too_few_targets],
    "REDUNDANCY_LOW": [columns_on_a_target_that_is_down],
    "CHECKPOINT_UNREACHABLE": [too_many_columns_on_targets_that_are_down],
    "DRAIN_FAILING": [a_store_that_cannot_be_used],
    "NOT_RUNNING": [a_cluster_that_rests],
    "COORDINATOR_DOWN": [a_stopped_coordinator],
    "DIRECTORY_COPIED": [a_copied_directory],
    "DEVICE_FAILING": [a_failing_device_whose_cause_is_mended, a_failing_device],
}  # fmt: skip
"""After these a cluster is what it was: one serves them all."""

PROOFS: dict[str, list[Callable[[Path], None]]] = {
    "CATALOG_OLD": [a_catalog_that_was_removed],
    "CATALOG_UNPROVED": [a_catalog_for_which_too_few_vouch, all_directories_emptied],
    "TARGET_DOWN": [a_target_that_is_not_started_again, a_target_of_another_host],
    "DIRECTORY_UNKNOWN": [an_emptied_directory],
    "TARGET_REMOVED": [a_removed_target_that_runs],
    "DEVICE_FAILING": [a_failing_device_and_a_new_coordinator],
    "TARGET_NEARFULL": [a_device_that_is_nearly_full],
    "TARGET_FULL": [a_device_that_is_full],
    "REDUNDANCY_LOW": [columns_that_are_gone, copies_of_index_and_record_that_are_gone],
    "CHECKPOINT_UNREACHABLE": [too_many_columns_that_are_gone],
    "CHECKPOINT_LOST": [a_checkpoint_that_is_lost],
    "CHECKPOINT_STORED": [a_checkpoint_that_an_object_store_has],
    "DRAIN_STOPPED": [a_store_that_nobody_serves],
    "ROT": [a_last_header_that_rots],
    "SCRUB_LATE": [a_scrub_that_is_late],
    "CONNECTIONS_FULL": [a_target_without_descriptors],
    "REPAIR_PAUSED": [a_repair_that_is_paused],
    "MOVES_STOPPED": [moves_that_nobody_makes],
    "UPGRADE_UNFINISHED": [an_upgrade_that_is_not_finished],
    "RETENTION_UNSAID": [a_catalog_that_forgot_what_stays],
    "CATALOG_CORRUPT": [
        a_catalog_that_became_unreadable, a_catalog_that_was_unreadable_before_the_start,
    ],
}  # fmt: skip


ON_ETCD = {"NO_STANDBY", "CATALOG_SLOW", "CATALOG_FULL", "CATALOG_NO_QUORUM", "CODES_DIFFER"}
"""Proved with a real etcd, in tests/ha."""


def test_every_check_has_a_proof_and_none_is_made_but_of_the_list() -> None:
    assert PROOFS.keys() | HARMLESS.keys() | ON_ETCD == CHECKS.keys()
    files = ("test_colleagues.py", "test_full.py")
    proofs_on_etcd = "".join((ROOT / "tests" / "ha" / name).read_text() for name in files)
    assert all(f'"{name}"' in proofs_on_etcd for name in ON_ETCD)
    folders = [ROOT / room for room in ("ckpt", "clients", "servers")]
    texts = {path: path.read_text() for each in folders for path in each.rglob("*.py")}
    made_by_hand = re.compile(r"(?<!def )\bCheck\(\s*(name=)?\"[A-Z_]+\"")
    assert [path for path, text in texts.items() if made_by_hand.search(text)] == []
    used = {name for text in texts.values() for name in re.findall(r'check\(\s*"([A-Z_]+)"', text)}
    assert used <= CHECKS.keys()


def each_of(proofs: Mapping[str, list[Callable[[T], None]]]) -> pytest.MarkDecorator:
    listed = [proof for each in proofs.values() for proof in each]
    return pytest.mark.parametrize("proof", listed, ids=lambda proof: proof.__name__)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    with made(tmp_path_factory.mktemp("checks")) as case:
        yield case


@pytest.mark.timeout(240)
@each_of(HARMLESS)
def test_the_command_that_a_check_names_mends_it_and_all_is_well(
    proof: Callable[[Case], None], lasting: Case
) -> None:
    proof(lasting)
    lasting.wait_well()


@pytest.mark.timeout(240)
@each_of(PROOFS)
def test_the_command_that_a_check_names_mends_it(
    proof: Callable[[Path], None], tmp_path: Path
) -> None:
    proof(tmp_path)
