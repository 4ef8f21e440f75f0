"""ckptbench's engines on the real packages: the same state goes in and comes back, bit by bit.

Those of torch.fio and orbax.fio (dcp_mode=async and process, Orbax, TensorStore, the tier's loads
of what torch holds) do so in test_peers.py, which runs these files on tensors of such sizes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ckptbench import cluster
from ckptbench.cli import main
from ckptbench.engines import RESHARDS, make_engine
from ckptbench.engines.base import EnginePlan, Resharding
from ckptbench.engines.torch_arrays import full_disk_as_oserror
from ckptbench.job.flags import parse_flags
from ckptbench.job.grammar import Words
from ckptbench.job.jobs import build_jobs
from ckptbench.rank import Rank, RankPlan
from ckptbench.workload import StatePlan
from tests.frameworks.bench_ranks import run_warm
from tests.frameworks.warm import Warm
from tests.landing import in_turn
from tests.warm_child import start_bench_daemon

WORDS = Words({}, {})

MODES = ("ckpt_mode", "dcp_mode", "orbax_mode")
SETTINGS = {"bs": "65536", "direct": "0", "end_fsync": "1", **dict.fromkeys(MODES, "default")}


def run(warm: Warm, *flags: str) -> list[str]:
    """Save and load with these flags; the kinds of checkpoints that came back equal."""
    words = ["--numjobs=2", "--size=64k", "--tensor_size=4k-24k", "--dtype=bfloat16", *flags]
    load = "reshard" if "--readers=1" in flags else "load"
    sections = [
        "--name=save",
        "--rw=save",
        "--verify=0",
        "--name=load",
        f"--rw={load}",
        "--stonewall",
    ]
    line = parse_flags([*words, *sections], WORDS)
    jobs = build_jobs([line.sections], line.everywhere)
    found = run_warm(warm, jobs)
    assert found.errors == []
    return [one.kind for job in found.jobs for one in job.checkpoints if job.verified]


@pytest.mark.parametrize("engine", in_turn(["torch_save", "dcp", "safetensors", "zarr"], every=2))
def test_what_an_engine_saved_is_what_it_loads(warm: Warm, tmp_path: Path, engine: str) -> None:
    assert run(warm, f"--ioengine={engine}", f"--directory={tmp_path}") == ["load"]
    assert list(tmp_path.iterdir()) == []


def test_dcp_saves_with_what_is_tuned(warm: Warm, tmp_path: Path) -> None:
    flags = ["--ioengine=dcp", "--dcp_mode=tuned", f"--directory={tmp_path}"]
    assert run(warm, *flags) == ["load"]


def test_one_reader_takes_from_the_tier_what_torch_held(warm: Warm, tmp_path: Path) -> None:
    flags = ["--ckpt_mode=torch", "--code=2+1", "--targets=3", f"--directory={tmp_path}"]
    assert run(warm, *flags, "--readers=1") == ["reshard"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", in_turn(["default", "torch"], every=2))
def test_saves_overlap(warm: Warm, tmp_path: Path, mode: str) -> None:
    flags = [f"--ckpt_mode={mode}", "--staging=overlap", "--code=2+1", "--targets=3"]
    assert run(warm, *flags, f"--directory={tmp_path}") == ["load"]


def test_what_a_save_costs_a_training_is_measured_on_a_cpu_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "start_child", start_bench_daemon)
    line = ["gpu", "--device=cpu", "--size=16Mi", "--loops=1", "--width=64", "--json"]
    assert main([*line, f"--directory={tmp_path}"]) == 0
    said = capfd.readouterr()
    figures = json.loads(said.out)["figures"]
    modes = ["copy", "overlap", "dcp"]
    assert [row["mode"] for row in figures["staging"]] == [*modes, *modes]
    assert [row["mode"] for row in figures["training"]] == modes
    assert all(0 < row["call_s"] <= row["staged_s"] for row in figures["staging"])
    assert 0 < figures["load"]["first_s"] <= figures["load"]["whole_s"]
    first, _, rest = said.err.partition("\n")
    assert "cpu: a state of 16 MiB, a training of 16 layers of width 64, 1 + 1 rounds" in first
    assert "the training's 80 steps are to take about" in rest
    assert "training: round 1 of 1" in rest
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_accelerator_the_measurement_says_so_and_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is one: it would be measured")
    assert main(["gpu", "--json", f"--directory={tmp_path}"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    last = said.err.splitlines()[-1]
    assert last.startswith("NO ACCELERATOR: nothing was measured; --device=cpu ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", in_turn(["dcp", "zarr", "safetensors"], every=2))
def test_one_reader_takes_what_two_ranks_saved(warm: Warm, tmp_path: Path, engine: str) -> None:
    flags = [f"--ioengine={engine}", f"--directory={tmp_path}", "--readers=1"]
    assert run(warm, *flags) == ["reshard"]


@pytest.mark.parametrize("engine", in_turn(["fsspec", "s3"], every=2))
def test_object_engines_work_on_a_directory_too(warm: Warm, tmp_path: Path, engine: str) -> None:
    place = tmp_path / "store"
    place.mkdir()
    flags = [f"--ioengine={engine}", f"--url=file://{place}", f"--directory={tmp_path}"]
    assert run(warm, *flags) == ["load"]
    assert run(warm, *flags, "--readers=1") == ["reshard"]
    assert [path for path in place.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    "engine", ["posix", "torch_save", "safetensors", "zarr", "fsspec", "s3", "tensorstore"]
)
def test_the_table_says_which_engines_can_reshard(tmp_path: Path, engine: str) -> None:
    url = f"file://{tmp_path}" if engine in ("fsspec", "s3") else str(tmp_path)
    plan = EnginePlan(engine, 0, 1, StatePlan((4096,), (4096, 4096)), "run", "x", url, SETTINGS)
    made = make_engine(plan)
    assert isinstance(made, Resharding) == (engine in RESHARDS)
    made.close()


def test_torch_s_word_for_a_full_disk_is_no_space(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space left") as caught,
        full_disk_as_oserror(tmp_path, 1 << 62),
    ):
        raise RuntimeError("unexpected pos 704 vs 598")
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(RuntimeError, match="pos"), full_disk_as_oserror(tmp_path, 1):
        raise RuntimeError("unexpected pos 704 vs 598")


def test_an_error_of_dcp_is_an_answer_with_its_cause(tmp_path: Path) -> None:
    """DCP raises a BaseException, which ended the rank without a word."""
    state = StatePlan((65536,), (4096, 4096))
    plan = EnginePlan("dcp", 0, 1, state, "run", "x", str(tmp_path), SETTINGS)
    rank = Rank(RankPlan(plan, holds_state=True))
    try:
        assert rank.perform(["fill", "1"]).error == ""
        (tmp_path / "run" / "step-1").mkdir(parents=True)
        (tmp_path / "run" / "step-1" / "__0_0.distcp").mkdir()
        assert "IsADirectoryError" in rank.perform(["save", "1", "0"]).error
    finally:
        rank.close()
