"""`ckpt durability`: from flags alone, from a store, and what it refuses."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.protocol.coordinator.repairing.measuring import NOTE_BYTES
from ckpt_client.cli.upkeep.durability import nines
from tests.client.clikit import Ended, environment, fill, run
from tests.e2e.cluster import Cluster
from tests.harm import remove_under
from tests.waiting import ASKED_S, wait_until

LARGE = ("--code", "8+4", "--targets", "1024", "--domains", "128", "--payloads", "100000")


def durability(*flags: str) -> Ended:
    return run("durability", *flags)


def test_flags_alone_say_what_the_tier_is() -> None:
    found = durability(*LARGE, "--json").document()
    assert (found["code"], found["targets"], found["domains"]) == ("8+4", 1024, 128)
    placed, anywhere, copies = found["placements"]
    assert (placed["groups"], anywhere["groups"]) == (28, 1)
    assert 0 < placed["loss_chance"] < anywhere["loss_chance"] < copies["loss_chance"] < 1e-6
    assert 0 < placed["away_s"] < anywhere["away_s"]
    assert (placed["stored_ratio"], copies["stored_ratio"]) == (1.5, 3.0)
    assert found["tried"] is None


def test_people_read_what_was_assumed_and_that_nothing_is_made_again() -> None:
    ended = durability(*LARGE)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("1024 targets in 128 hosts, code 8+4: a payload survives 4 columns")
    assert "fails 2.4 times a year" in lines[1]
    assert "1% for good" in lines[1]
    assert lines[2].startswith(
        "supposed: nothing makes lost columns again; redundancy returns when"
    )
    assert "saved again" in lines[2]
    sizes = [line for line in lines if line.endswith("##")]
    assert len(sizes) > 5
    assert all("never" in line for line in sizes)
    assert [line for line in sizes if "36 (as it is)" in line]


def test_a_rebuild_rate_is_a_supposition_and_shows_what_large_groups_give() -> None:
    flags = (*LARGE, "--target-bytes", "8TB", "--rebuild-rate", "200MB", "--step-life", "30d")
    ended = durability(*flags)
    assert "supposed: each target spends 191 MiB/s on making lost columns again" in ended.out
    found = durability(*flags, "--json").document()
    times = [each["rebuild_s"] for each in found["group_sizes"]]
    assert times == sorted(times, reverse=True)
    assert (found["conditions"]["rebuild_after_s"], found["rebuild_after_from"]) == (300, "default")
    late = durability(*flags, "--rebuild-after", "2h", "--json").document()
    assert late["rebuild_after_from"] == "flag"
    later = [each["rebuild_s"] for each in late["group_sizes"]]
    assert later == pytest.approx([time + 7200 - 300 for time in times])
    idle = durability(*LARGE, "--step-life", "30d", "--json").document()
    assert found["placements"][0]["loss_chance"] < idle["placements"][0]["loss_chance"]


def test_trials_are_the_same_for_a_seed_and_agree_with_the_chain() -> None:
    flags = (
        "--code", "4+2", "--targets", "24", "--afr", "60", "--permanent", "0.01",
        "--domain-afr", "0", "--step-life", "10d", "--trials", "3000", "--payloads", "1000000",
    )  # fmt: skip
    found = durability(*flags, "--json").document()["tried"]
    assert found == durability(*flags, "--json").document()["tried"]
    assert found["groups"] == 3000
    assert 0.3 < found["group_loss_chance"] < 0.5
    assert found["interval"][0] < found["group_loss_chance"] < found["interval"][1]
    text = durability(*flags).out
    assert f"tried: {found['lost']} of 3000 groups lost data" in text
    assert "more than one year in a thousand costs data" in text


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("durable") / "burst"
    fill(f"ckpt+local://{directory}?targets=4&code=2+1", "llama/7b", (1, 2))
    yield f"ckpt+local://{directory}"
    run("local", "stop", str(directory))


def test_a_store_says_what_it_is_and_options_count_before_that(store: str) -> None:
    found = run("durability", "--json", environ=environment(CKPT_STORE=store)).document()
    assert (found["code"], found["targets"], found["payloads"]) == ("2+1", 4, 4)
    assert (found["level"], found["domains"]) == ("device", 1), "all on one disk"
    assert found["max_per_domain"] == 3, "or nothing could be stored"
    assert found["target_bytes"] > 0
    one_disk = found["placements"][0]["loss_chance"]
    assert one_disk > 5e-4, "the disk fails 0.1 times a year, 1% of that for good"
    apart = run("durability", "--level", "target", "--json", "--store", store).document()
    assert (apart["domains"], apart["max_per_domain"]) == (4, 1)
    assert apart["placements"][0]["loss_chance"] < one_disk / 100
    supposed = run(
        "durability", "--code", "4+2", "--targets", "12", "--domains", "12", "--json",
        "--store", store,
    ).document()  # fmt: skip
    assert (supposed["code"], supposed["targets"], supposed["domains"]) == ("4+2", 12, 12)
    assert supposed["payloads"] == 4


def test_a_store_s_repair_is_taken_as_it_was_measured_and_a_flag_counts_before_it(
    tmp_path: Path,
) -> None:
    """A target of a real cluster loses its disk; the cluster then starts again."""
    directory = tmp_path / "burst"
    directory.mkdir()
    # A worker tells how far it is while it works: it is given the time.
    options = f"rebuild_after_s = 1\nrepair_floor_bytes = {NOTE_BYTES // 4}\n"
    (directory / "coordinator.toml").write_text(f"{options}repair_cap_bytes = {NOTE_BYTES // 4}\n")
    cluster = Cluster(directory, "targets=4&code=2+1")
    url = cluster.url
    try:
        with ckpt.open(url) as opened:
            opened.save("run", 1, {"w": np.zeros(3 * NOTE_BYTES, np.uint8)}).wait(120)
        before = run("durability", "--json", "--store", url).document()
        assert (before["rebuild_rate_from"], before["measured"]) == ("none", None)
        assert "no repair was measured here" in run("durability", "--store", url).out
        lost = min(path.parts[-3] for path in directory.glob("targets/*/columns/*"))
        pid = cluster.pid_of(lost)
        remove_under(directory / "targets" / lost)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: measured_of(url) is not None, "it is measured", 180.0, ASKED_S)
        assert run("repair", "--wait", "--store", url).code == 0
        run("local", "stop", str(directory))
        found = run("durability", "--json", "--store", url).document()
        measured = found["measured"]["bytes_per_s"]
        assert (found["rebuild_rate_from"], measured > 0) == ("measured", True)
        assert found["placements"][0]["rebuild_s"] == pytest.approx(
            1 + found["target_bytes"] / measured
        ), "it waits as long as this cluster does"
        assert found["rebuild_after_from"] == "store"
        assert "measured " in run("durability", "--store", url).out
        flagged = run("durability", "--rebuild-rate", "1MB", "--json", "--store", url).document()
        assert (flagged["rebuild_rate_from"], flagged["measured"]) == ("supposed", None)
        assert flagged["conditions"]["rebuild_rate"] == 1_000_000
        assert flagged["conditions"]["rebuild_after_s"] == 1
        never = run("durability", "--rebuild-rate", "0", "--store", url)
        assert "nothing makes lost columns again" in never.out
        assert "no repair was measured" not in never.out
        run("local", "stop", str(directory))
        (directory / "coordinator.toml").write_text("repair = false\n")
        off = run("durability", "--json", "--store", url).document()
        assert (off["rebuild_rate_from"], off["measured"]) == ("none", None)
        assert "the coordinator says so (repair = false)" in run("durability", "--store", url).out
        assert "nothing is ever made again" in run("repair", "--store", url).out
    finally:
        run("local", "stop", str(directory))


def measured_of(url: str) -> object:
    return run("repair", "--json", "--store", url).document()["measured"]


@pytest.mark.parametrize(
    ("flags", "said", "hint"),
    [
        ((), "neither a store nor --code and --targets", "--code 4+2 --targets 96"),
        (("--code", "4+2"), "neither a store nor --code and --targets", "--store URL"),
        (("--code", "4+2", "--targets", "0"), "'0' is not a whole number from 1 on", "--help"),
        (("--code", "4", "--targets", "9"), "not of the form K+M", ""),
        (
            ("--code", "4+2", "--targets", "96", "--domains", "3"),
            "room for 3 columns of a payload", "more domains",
        ),
        (("--code", "4+2", "--targets", "9", "--domains", "10"), "10 domains of 9 targets", ""),
        (("--code", "4+2", "--targets", "9", "--permanent", "2"), "share is from 0 to 1", ""),
        (("--code", "4+2", "--targets", "9", "--step-life", "0s"), "longer than 0", ""),
        (("--code", "4+2", "--targets", "9", "--afr", "nan"), "finite numbers", ""),
        (("--code", "4+2", "--targets", "9", "--domain-afr", "inf"), "finite numbers", ""),
        (("--code", "4+2", "--targets", "9", "--permanent", "nan"), "share is from 0 to 1", ""),
        (("--code", "4+2", "--targets", "1000000000000"), "at most 65536", ""),
        (
            ("--code", "4+2", "--targets", "9", "--rebuild-rate", "1GB"),
            "depends on the bytes", "--target-bytes",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(flags: tuple[str, ...], said: str, hint: str) -> None:
    ended = durability(*flags, "--json")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.error()["message"]
    assert hint in ended.error()["hint"]


@pytest.mark.parametrize(
    ("chance", "marks"), [(1.0, 0), (0.5, 0), (0.001, 3), (2e-3, 2), (1e-11, 11), (0.0, 40)]
)
def test_a_mark_for_each_nine(chance: float, marks: int) -> None:
    assert nines(chance) == "#" * marks
