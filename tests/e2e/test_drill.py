"""`ckpt drill` on a real cluster: what it proves, what it finds, and that it changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
from msgspec import structs

import ckpt
from ckpt.base.ids import TargetId
from ckpt.transfer.index_source import IndexSource
from ckpt_client.load.progress import ProgressTeller
from ckpt_client.load.tier_reading import TierReading
from tests.client.clikit import Ended, environment, run
from tests.e2e.cluster import OPTIONS, TARGETS, Cluster, runs
from tests.waiting import wait_until

CLUSTER_OPTIONS = f"{OPTIONS}&pretend_domains=1&restart=always"
WAIT_S = 60.0
RANKS = 2
RUN = "llama/7b"


def state_of(rank: int, step: int) -> dict[str, object]:
    """All that a tree can hold; what is frozen refers to step 1 from step 2 on."""
    half = np.arange(rank * 300_000, (rank + 1) * 300_000, dtype="f8").reshape(300, 1000)
    return {
        "own": np.random.default_rng((rank, step)).integers(0, 255, 2_000_003, "u1"),
        "frozen": np.random.default_rng(rank).integers(0, 255, 3 << 20, "u1"),
        "sharded": ckpt.Shard(half + step, (600, 1000), (rank * 300, 0)),
        "same": ckpt.Replicated(np.full((70, 3), step, "f4")),
        "count": ckpt.Replicated(step),
        "none": np.zeros((0, 4), "f4"),
        "scalar": np.float32(step),
        "texts": np.ndarray((3,), np.dtype("U0"), b""),
        "plain": {"lr": 1e-3, "name": "adam", "rank": rank},
    }


def save(store: ckpt.Store, run_name: str, step: int, shift: int = 0) -> None:
    saves = [
        store.save(run_name, step, state_of(rank, step + shift), rank=rank, world_size=RANKS)
        for rank in range(RANKS)
    ]
    for one in saves:
        one.wait(WAIT_S)


@pytest.fixture(scope="module", autouse=True)
def saved(cluster: Cluster, store: ckpt.Store) -> None:
    """Steps 1 and 2 of RUN. The store stays open: nobody reads its stagers' memory."""
    for step in (1, 2):
        save(store, RUN, step)


@pytest.fixture(autouse=True)
def healed(cluster: Cluster, saved: None) -> None:
    cluster.heal()


def stagers_of(store: ckpt.Store) -> list[int]:
    return [stager.pid for stager in store._stagers.links.values()]


def end_all(pids: list[int]) -> None:
    """Stagers, with what they hold in memory."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(runs, pids)), "the stagers' end")


def drill(cluster: Cluster, *words: str, **environ: str) -> Ended:
    return run("drill", "--store", cluster.url, "--timeout", "10", *words,
               environ=environment(**{**os.environ, **environ}))  # fmt: skip


def lines_of(ended: Ended) -> list[dict[str, object]]:
    """What `--json` prints, line by line."""
    return [json.loads(line) for line in ended.out.splitlines()]


def outcomes(cluster: Cluster, *words: str, **environ: str) -> dict[str, dict[str, object]]:
    """By scenario."""
    *each, summary = lines_of(drill(cluster, *words, "--json", **environ))
    assert summary["message_type"] == "summary"
    assert summary["scenarios"] == len(each)
    assert summary["failed"] == sum(not one["passed"] for one in each)
    return {str(one["scenario"]): one for one in each}


def files_of(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Columns and documents of all targets: size and time of the last change."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for folder in ("columns", "documents")
        for path in cluster.directory.glob(f"targets/*/{folder}/*")
    }


def test_any_passes_on_a_healthy_cluster_and_changes_nothing(cluster: Cluster) -> None:
    before = files_of(cluster), run("ls", "--json", "--store", cluster.url).out
    pids = {id: target.pid for id, target in cluster.targets().items()}
    ended = drill(cluster, RUN, "--any", "--seed", "7")
    assert (ended.code, ended.err) == (0, "")
    rows = [line.split("  ") for line in ended.out.splitlines()]
    assert rows[0][0].startswith(f"{RUN}@2, generation ")
    assert ended.out.splitlines()[-1] == "5 scenarios passed"
    found = outcomes(cluster, RUN, "--any", "--seed", "7")
    assert str(found["plain load"]["detail"]).endswith(" MiB from tier")
    assert list(found)[:3] == [
        "plain load",
        "every column where it lies",
        "every copy of the index",
    ]
    worst, drawn = list(found.values())[3:]
    assert str(worst["scenario"]).startswith("without the worst device, ")
    assert drawn["scenario"] == "without 2 targets at random, seed 7"
    assert (worst["state"], drawn["state"]) == ("equal", "equal")
    assert (len(worst["lost"]), len(drawn["lost"])) == (1, 2)
    assert worst["read_bytes"] == found["plain load"]["read_bytes"] > 10 << 20
    assert found["every column where it lies"]["detail"] == "24 columns", "of two steps"
    assert found["every copy of the index"]["detail"] == "6 copies", "of two steps, m + 1 each"
    assert (files_of(cluster), run("ls", "--json", "--store", cluster.url).out) == before
    assert {id: target.pid for id, target in cluster.targets().items()} == pids


def test_a_seed_draws_the_same_targets_again(cluster: Cluster) -> None:
    lost = {
        tuple(list(outcomes(cluster, RUN, "--any", "--seed", seed).values())[-1]["lost"])
        for seed in ("1", "1", "2", "3", "4")
    }
    assert 1 < len(lost) <= 4
    again = drill(cluster, RUN, "--any", "--json")
    assert isinstance(lines_of(again)[-1]["seed"], int), "it is printed, to be given again"


@pytest.mark.parametrize("lost", ["t0,t1", "t2,t5", "t6"])
def test_as_many_targets_as_parity_may_be_lost(cluster: Cluster, lost: str) -> None:
    for step in (1, 2):
        found = outcomes(cluster, f"{RUN}@{step}", "--lose", lost)
        without = found[f"without {lost.replace(',', ', ')}"]
        assert without["state"] == "equal"
        assert without["lost"] == lost.split(",")
        assert without["read_bytes"] == found["plain load"]["read_bytes"]
    rebuilt = [
        outcomes(cluster, f"{RUN}@{step}", "--lose", "t0,t1")["without t0, t1"]["rebuilt_bytes"]
        for step in (1, 2)
    ]
    assert any(rebuilt), "of four payloads' columns some data lies there"


def test_the_reader_asks_nothing_of_what_is_lost(store: ckpt.Store) -> None:
    with store.resolve(RUN, 2) as found:
        pinned = found._pinned
        lost = frozenset({TargetId("t0"), TargetId("t4")})
        pinned.context = replace(pinned.context, avoid=lost)
        reading = TierReading(pinned, None, ProgressTeller(None))
        reads = reading.new_reads()
        for tensor in reading.index.tensors():
            if tensor.name == "sharded":
                reads.add_box(tensor, tensor.boxes, (0, 0), np.empty((600, 1000)))
        reading.read(reads)
        (moved,) = reading.tier_statistics
        assert reading.sources == {"tier"}, "not from the stager's memory"
        asked = {target for target, count in moved.bytes_by_target.items() if count}
        assert asked
        assert not asked & lost
        reading.close()


def test_what_a_stager_of_this_host_remembers_does_not_count(cluster: Cluster) -> None:
    with ckpt.open(cluster.url) as store:
        save(store, "memory", 1)
        pids = stagers_of(store)
    has_index = min(cluster.indexes_of("memory", 1))
    lost = [id for id in TARGETS if id != has_index][:4]
    plain, without = outcomes(cluster, "memory", "--lose", ",".join(lost)).values()
    end_all(pids)
    assert str(plain["detail"]).endswith(" MiB from stager")
    assert without["state"] == "unreadable"
    assert "is out of reach: column" in str(without["detail"]), "three columns at most are left"


def test_more_than_parity_fails(cluster: Cluster) -> None:
    ended = drill(cluster, RUN, "--lose", "t0,t1,t2,t3")
    assert ended.code == 4
    assert "UNREADABLE" in ended.out
    assert ended.out.splitlines()[-1] == "1 of 2 scenarios failed"
    found = outcomes(cluster, RUN, "--lose", "t0,t1,t2,t3")
    assert not found["without t0, t1, t2, t3"]["passed"]
    everything = outcomes(cluster, RUN, "--lose", ",".join(TARGETS))
    assert "none of which is live" in str(everything[f"without {', '.join(TARGETS)}"]["detail"])


def test_a_domain_is_lost_with_all_its_targets(cluster: Cluster) -> None:
    domain = cluster.targets()["t3"].domain
    power, rack, host, device = domain.split("/")
    for text in (f"device={device}", f"device={domain}"):
        found = outcomes(cluster, RUN, "--lose-domain", text)
        assert found[f"without device {domain}"]["lost"] == ["t3"]
        assert found[f"without device {domain}"]["state"] == "equal"
    both = outcomes(cluster, RUN, "--lose-domain", f"device={device}", "--lose", "t1")
    assert both[f"without t1, device {domain}"]["lost"] == ["t1", "t3"]
    ended = drill(cluster, RUN, "--lose-domain", f"host={host}")
    assert ended.code == 4, "all targets stand on this host"
    assert f"without host {power}/{rack}/{host}" in ended.out


def test_a_target_that_is_away_already_counts(cluster: Cluster) -> None:
    """What is lost now is not supposed to be there."""
    cluster.kill("t0")
    assert drill(cluster, RUN, "--lose", "t1").code == 0
    ended = drill(cluster, RUN, "--lose", "t1,t2")
    assert ended.code == 4
    found = outcomes(cluster, RUN, "--any", "--seed", "7")
    columns = found["every column where it lies"]
    assert columns["state"] == "damaged"
    assert "on t0 is away" in str(columns["detail"])
    cluster.kill("t1", "t2")
    before = drill(cluster, RUN, "--lose", "t3", "--json")
    assert before.code == 75, "nothing is proved"
    assert before.error()["code"] == 75
    *_, summary = lines_of(before)
    assert (summary["passed"], summary["unproved"]) == (False, 1)


def listed(cluster: Cluster, name: str) -> str:
    """What is said of its steps, whoever reads them now."""
    ended = run("ls", name, "--json", "--store", cluster.url)
    return re.sub(r'"readers": \d+', "", ended.out)


def test_rot_in_a_column_is_found_and_weighs_in_a_loss(
    cluster: Cluster, store: ckpt.Store, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, "rot", 1)

    def each_lies_once() -> bool:
        names = [file.name for files in cluster.columns_of("rot").values() for file in files]
        return len(names) == len({*names})

    # One that moved to a spare, on a slow machine, lies in two places for a moment.
    wait_until(each_lies_once, "surplus columns go")
    by_target = cluster.columns_of("rot")
    rotten = [(target, file) for target, files in by_target.items() for file in files
              if file.name.endswith("-0-0")]  # fmt: skip
    ((target, file),) = rotten
    # A target that reads the column finds it damaged itself, and it would be made again meanwhile.
    run("repair", "pause", "--store", cluster.url)
    for offset in (1000, 700_000):
        cluster.flip(file, offset)
    before = listed(cluster, "rot")
    found = outcomes(cluster, "rot@1", "--any", "--seed", "1")
    columns = found["every column where it lies"]
    assert not columns["passed"]
    assert columns["detail"] == f"rank 0 column 0 on {target} is damaged"
    assert str(found["plain load"]["detail"]).endswith("damaged and mended")
    others = sorted(id for id, files in by_target.items()
                    if id != target and any("-0-" in file.name[-4:] for file in files))  # fmt: skip
    assert drill(cluster, "rot@1", "--lose", others[0]).code == 0
    ended = drill(cluster, "rot@1", "--lose", ",".join(others[:2]))
    assert ended.code == 4, ended.out
    assert listed(cluster, "rot") == before, "no damage is reported"
    assert "mended" not in caplog.text, "the outcome says it, once"
    run("repair", "resume", "--store", cluster.url)


def test_a_copy_of_another_index_is_found(store: ckpt.Store) -> None:
    """Its target finds nothing wrong with it."""
    with store.resolve(RUN, 2) as found:
        pinned = found._pinned
        record, addresses = pinned.record, {one.target: one for one in pinned.resolved.targets}
        secret, name = pinned.context.secret, pinned.context.name
        for digest, wrong in ((record.index_digest, ""), (bytes(16), "not what was committed")):
            asked = structs.replace(record, index_digest=digest)
            with IndexSource(asked, record.index_targets, addresses, secret, name) as source:
                copies = source.copies(10.0)
            assert set(copies) == set(record.index_targets)
            assert all(why.endswith(wrong) and bool(why) == bool(wrong) for why in copies.values())


def test_what_homes_hold_counts_for_the_worst_domain(store: ckpt.Store) -> None:
    with store.resolve(RUN, 2) as found:
        held = [payload.id for payload in found._pinned.finder.payloads()]
    assert [(id.checkpoint.step, id.rank) for id in held] == [(2, 0), (2, 1), (1, 0), (1, 1)]


def test_what_a_commit_never_promised_is_skipped(tmp_path: Path) -> None:
    for options in (f"{OPTIONS}&restart=never", "targets=1&code=1+0&unprotected=1"):
        other = Cluster(tmp_path / options[8], options)
        with ckpt.open(other.url) as elsewhere:
            save(elsewhere, "alone", 1)
            elsewhere.close(0.0)
        found = outcomes(other, "alone", "--any")
        code = drill(other, "alone", "--any").code
        other.stop()
        *_, domain, drawn = found.values()
        assert (domain["state"], domain["detail"]) == ("skipped", "the commit promised no device")
        if "4+2" in options:
            assert (drawn["state"], len(drawn["lost"])) == ("equal", 2)
        else:
            assert (drawn["state"], drawn["lost"]) == ("skipped", [])
        assert code == 0


def test_a_damaged_copy_of_the_index_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "burst"
    directory.mkdir(mode=0o700)
    # Else what a drill meets is mended before the next one.
    (directory / "coordinator.toml").write_text("repair = false\n")
    cluster = Cluster(directory, CLUSTER_OPTIONS)
    try:
        with ckpt.open(cluster.url) as store:
            save(store, "index", 1)
            _check_a_damaged_index(cluster)
    finally:
        assert run("local", "stop", str(directory)).code == 0


def _check_a_damaged_index(cluster: Cluster) -> None:
    copies = cluster.indexes_of("index", 1)
    assert len(copies) == 3
    victim = min(copies)
    content = copies[victim].read_bytes()
    copies[victim].write_bytes(bytes(len(content)))
    ended = drill(cluster, "index", "--any")
    assert ended.code == 4
    copy = outcomes(cluster, "index", "--any")["every copy of the index"]
    assert str(copy["detail"]).startswith(f"step 1 on {victim}: ")
    whole = sorted(set(copies) - {victim})
    found = outcomes(cluster, "index", "--lose", ",".join(whole))
    assert not found[f"without {', '.join(whole)}"]["passed"], "no copy is left"
    copies[victim].write_bytes(content)
    assert drill(cluster, "index", "--lose", ",".join(whole)).code == 0


def test_without_the_tier_it_comes_from_an_object_store(cluster: Cluster, tmp_path: Path) -> None:
    bucket = f"file://{tmp_path}"
    ended = drill(cluster, f"{RUN}@2", "--tier")
    assert ended.code == 4
    assert "is not drained: no object store is known" in ended.out
    ended = drill(cluster, f"{RUN}@2", "--tier", CKPT_DURABLE=bucket)
    assert ended.code == 4
    assert f"is not drained: {bucket}" in ended.out
    exported = run("export", f"{RUN}@2", "--format", "zarr", bucket, "--store", cluster.url)
    assert exported.code == 0, exported.err
    found = outcomes(cluster, f"{RUN}@2", "--tier", CKPT_DURABLE=bucket)["without the tier"]
    assert found["state"] == "equal", found
    assert str(found["detail"]).startswith(f"from {bucket}")
    assert found["lost"] == list(TARGETS)


def test_other_bytes_in_the_object_store_differ(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path
) -> None:
    """Put there by another cluster, under the very same name and generation."""
    save(store, "mixed", 1)
    (step,) = run("ls", "mixed", "--json", "--store", cluster.url).document()["steps"]
    term, _, counter = step["generation"].partition(".")
    assert term == "1"
    other = Cluster(tmp_path / "other", f"{OPTIONS}&restart=never")
    with ckpt.open(other.url) as elsewhere:
        for number in range(1, int(counter)):
            save(elsewhere, "filler", number)
        save(elsewhere, "mixed", 1, shift=1)
        elsewhere.close(0.0)
    bucket = f"file://{tmp_path / 'bucket'}"
    exported = run("export", "mixed@1", "--format", "zarr", bucket, "--store", other.url)
    other.stop()
    assert exported.code == 0, exported.err
    found = outcomes(cluster, "mixed@1", "--tier", CKPT_DURABLE=bucket)["without the tier"]
    assert found["state"] == "differs", found
    assert str(found["detail"]).startswith("the tree of rank 0; the tree of rank 1; own of rank 0")


def test_files_are_drilled_as_well(cluster: Cluster) -> None:
    url = f"ckpt+local://{cluster.directory}//files/1/a.bin"
    with fsspec.open(url, "wb") as file:
        file.write(os.urandom(3_000_001))
    found = outcomes(cluster, "files@1", "--any", "--lose", "t1,t4")
    assert all(one["passed"] for one in found.values()), found
    assert found["plain load"]["read_bytes"] >= 3_000_001


def test_one_run_that_cannot_be_drilled_does_not_hide_the_others(cluster: Cluster) -> None:
    with ckpt.open(cluster.url) as store:
        save(store, "gone", 1)
        end_all(stagers_of(store))
    healthy = lines_of(drill(cluster, "--lose", "t4", "--json"))
    assert {line["run"] for line in healthy[:-1]} >= {RUN, "gone"}
    assert healthy[-1]["passed"]
    columns = [file for files in cluster.columns_of("gone").values() for file in files]
    for file in columns:
        if file.name.endswith(("-0-0", "-0-1", "-0-2")):
            cluster.flip(file, 1000)
    ended = drill(cluster, "--lose", "t4", "--json")
    *each, summary = lines_of(ended)
    drilled = [line for line in each if line["message_type"] == "outcome"]
    assert {line["run"] for line in drilled} == {line["run"] for line in healthy[:-1]} - {"gone"}
    assert all(line["passed"] for line in drilled)
    assert (summary["passed"], summary["failed"], summary["unproved"]) == (False, 0, 1)
    assert ended.code == 4
    assert ended.error()["message"].startswith("gone@1 cannot be drilled: ")
    assert "4 good columns are needed" in ended.error()["message"]
    (unproved,) = [line for line in each if line["message_type"] == "unproved"]
    assert (unproved["run"], unproved["step"], unproved["code"]) == ("gone", 1, 4)


REFUSED = [
    ((RUN,), 2, "nothing is said to be lost", "--any, --tier"),
    ((RUN, "--lose", "t9"), 10, "there is no target 't9'", "t0"),
    ((RUN, "--lose", ","), 2, "--lose names no target", "--lose t1,t2"),
    ((RUN, "--lose-domain", "rack"), 2, "not of the form LEVEL=NAME", "rack=r1"),
    ((RUN, "--lose-domain", "room=r1"), 2, "'room' is none of target, device", ""),
    ((RUN, "--lose-domain", "rack=nowhere"), 10, "there is no rack 'nowhere'", "there are local"),
    (("no/such", "--any"), 10, "there is no run 'no/such'", RUN),
    ((f"{RUN}@99", "--any"), 10, "99", ""),
]


@pytest.mark.parametrize(("words", "code", "said", "hint"), REFUSED)
def test_what_is_not_there_is_refused_by_name(
    cluster: Cluster, words: tuple[str, ...], code: int, said: str, hint: str
) -> None:
    ended = drill(cluster, *words, "--json")
    assert ended.code == code
    error = ended.error()
    assert said in error["message"]
    assert hint in error["hint"]


def test_losses_that_are_not_asked_for_are_not_tried(cluster: Cluster) -> None:
    assert list(outcomes(cluster, RUN, "--lose", "t1")) == ["plain load", "without t1"]


def test_a_step_that_is_not_there_is_said_once(cluster: Cluster) -> None:
    ended = drill(cluster, f"{RUN}@99", "--any")
    assert (ended.code, ended.out) == (10, "")
    assert ended.err.startswith(f"ckpt: {RUN}@99 cannot be drilled: ")
