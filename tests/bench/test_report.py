"""Known records make known text, JSON, bars, logs and drawings."""

from __future__ import annotations

import io
import json
import re
import sys
import threading
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckptbench.cli import main
from ckptbench.compare import compare, compare_text, read_report, unlike
from ckptbench.faults.words import FaultKind
from ckptbench.report import numbers, plot
from ckptbench.report.bandwidth_log import log_lines, write_logs
from ckptbench.report.bars import bars
from ckptbench.report.document import encode, run_document
from ckptbench.report.drawing import draw, rates
from ckptbench.report.entries import entries
from ckptbench.report.plot import check_plot, page, write_plot
from ckptbench.report.plot_svg import STYLE, svg, tick_ms
from ckptbench.report.summary import summarize
from ckptbench.report.text import run_text
from ckptbench.results import Sample, Strike
from tests.bench import made

GOLDEN = Path(__file__).parent / "golden"
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "burst.svg"
FIO_DIRECTION_KEYS = {
    "io_bytes", "io_kbytes", "bw_bytes", "bw", "iops", "runtime", "total_ios", "short_ios",
    "drop_ios", "slat_ns", "clat_ns", "lat_ns", "bw_min", "bw_max", "bw_agg", "bw_mean", "bw_dev",
    "bw_samples", "iops_min", "iops_max", "iops_mean", "iops_stddev", "iops_samples",
}  # fmt: skip
FIO_JOB_KEYS = {
    "jobname", "groupid", "job_start", "error", "eta", "elapsed", "job options", "read", "write",
    "trim", "sync", "job_runtime", "usr_cpu", "sys_cpu", "ctx", "majf", "minf", "iodepth_level",
    "iodepth_submit", "iodepth_complete",
    "latency_ns", "latency_us", "latency_ms",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["txt", "json"])
def test_the_report_is_the_golden_one(kind: str) -> None:
    found = made.run(
        made.job(made.save(0, counts=False), made.save(1), made.save(2, slow_ms=40)),
        made.job(made.load(), name="load", group=1, verb="load"),
    )
    text = run_text(found) if kind == "txt" else encode(run_document(found, plus=True))
    assert text + "\n" == (GOLDEN / f"report.{kind}").read_text()


def test_a_job_of_one_rank_is_not_said_to_have_ranks() -> None:
    text = run_text(made.run(made.job(made.save(1), world_size=1)))
    assert "  checkpoint   : ckpt, 1 rank x 95.4 MiB\n" in text


def test_json_has_the_keys_of_fio_and_ours_under_one_more() -> None:
    document = json.loads(encode(run_document(made.run(made.job(made.save())), plus=False)))
    assert set(document) == {
        "fio version", "timestamp", "timestamp_ms", "time", "global options", "jobs", "disk_util",
        "checkpoint",
    }  # fmt: skip
    (job,) = document["jobs"]
    assert set(job) >= FIO_JOB_KEYS
    assert set(job) - FIO_JOB_KEYS == {
        "checkpoint", "latency_depth", "latency_target", "latency_percentile", "latency_window",
    }  # fmt: skip
    assert set(job["write"]) == set(job["read"]) == FIO_DIRECTION_KEYS
    assert job["write"]["runtime"] == 90
    assert job["write"]["bw"] == job["write"]["bw_bytes"] // 1024
    assert job["write"]["clat_ns"]["percentile"].keys() == {"50.000000", "99.000000"}
    assert "bins" not in job["write"]["clat_ns"]
    assert "checkpoints" not in job["checkpoint"]


def test_bins_of_json_plus_hold_every_value() -> None:
    document = run_document(made.run(made.job(made.save(), made.save(1))), plus=True)
    lat = json.loads(encode(document))["jobs"][0]["write"]["lat_ns"]
    assert sum(lat["bins"].values()) == lat["N"] == 4
    assert str(lat["percentile"]["50.000000"]) in lat["bins"]


def test_without_group_reporting_each_rank_has_its_entry() -> None:
    found = entries(made.job(made.save(), group_reporting=False))
    assert [one.ranks for one in found] == [(0,), (1,)]
    assert [one.flows["write"].io_bytes for one in found] == [100 * made.MB] * 2
    assert found[0].flows["write"].runtime_ns == 100 * made.MS


def test_hosts_are_reported_apart_and_merged_from_their_histograms() -> None:
    one = made.save()
    ranks = tuple(replace(rank, host=f"h{rank.rank}:9") for rank in one.ranks)
    found = made.run(made.job(replace(one, ranks=ranks)))
    document = json.loads(encode(run_document(found, plus=True)))
    first, second, everyone = document["client_stats"]
    assert (first["hostname"], first["port"], second["hostname"]) == ("h0", 9, "h1")
    assert everyone["jobname"] == "All clients"
    bins = everyone["write"]["lat_ns"]["bins"]
    parts = [host["write"]["lat_ns"]["bins"] for host in (first, second)]
    assert bins == parts[0] | parts[1]


def test_the_summary_tells_both_means_and_names_who_was_slow() -> None:
    found = summarize(made.job(made.save(0), made.save(1, slow_ms=90), bounds=made.BOUNDS))
    (phase,) = found.phases
    assert phase.gb_per_s == pytest.approx((0.2 / 0.09, 0.2 / 0.18))
    assert phase.mean_of_rates.mean == pytest.approx((0.2 / 0.09 + 0.2 / 0.18) / 2)
    assert phase.bytes_by_time == pytest.approx(0.4 / 0.27)
    assert phase.slowest_rank is not None
    assert phase.slowest_rank.name == "rank 1"
    assert phase.slowest_target is not None
    assert phase.slowest_target.name == "t2"
    assert phase.lost_rank_s == pytest.approx(0.05)
    assert (phase.wire_by_payload, phase.device_by_payload) == (1.5, 1.505)
    assert phase.stall is not None
    assert (phase.stall.first, phase.stall.last) == (0.02, 0.03)
    assert phase.cpu_s_per_gb["stager"] == pytest.approx(0.5)
    assert found.stall_ratio is not None
    assert found.stall_ratio.median == pytest.approx(0.03 / 0.025)
    # 2 cores / G* of 2+1 (0.62 s/GB) by the 1.3 s/GB of all stages, threads not counted twice.
    assert found.cpu_eta == pytest.approx(0.62 / 1.3)


def test_bars_show_the_stall_and_the_seals() -> None:
    lines = bars(made.job(made.save())).splitlines()
    assert lines[0].startswith("save, save of step 1, 110 ms wide")
    assert lines[2].count("#") == round(30 / 110 * 48)
    assert lines[2].rstrip().endswith("110 ms")
    assert lines[3].partition("* a column")[0].count("*") == 1


def test_the_log_is_fios_csv_and_can_be_averaged(tmp_path: Path) -> None:
    job = made.job(made.save(0), made.save(1))
    assert log_lines(job, 0) == [
        "100, 976562, 1, 100000000, 0, 0",
        "1100, 976562, 1, 100000000, 0, 0",
    ]
    averaged = made.job(made.save(0), made.save(1), log_avg_msec=2000)
    assert log_lines(averaged, 0) == ["2000, 976562, 1, 100000000, 0, 0"]
    write_logs(made.run(job), {"save": str(tmp_path / "x")})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x_bw.1.log", "x_bw.2.log"]


def test_a_drawing_is_the_slowest_checkpoint_and_its_svg_is_well_formed() -> None:
    job = made.job(made.save(0), made.save(1, slow_ms=90))
    (drawing,) = draw(job)
    assert drawing.title == "Save of 0.20 GB by 2 ranks: 30 ms of stall, durable in 0.18 s"
    assert drawing.notes[0].startswith("save, step 2: ckpt, 3 columns of 2+1")
    assert [row.name for row in drawing.rows] == ["rank 0", "rank 1"]
    assert [lane.name for lane in drawing.lanes] == ["t0", "t1", "t2"]
    assert drawing.lanes[0].points == ((40.0, 1500.0), (80.0, 1000.0))
    assert drawing.width_ms == 200.0
    root = ET.fromstring(svg(drawing))
    kinds = Counter(one.get("class", "") for one in root.iter())
    legend, columns = 1, 3
    assert kinds["stall"] == kinds["durable"] == legend + len(drawing.rows)
    assert kinds["seal"] == legend + columns
    assert kinds["strike"] == 0
    assert "each fsynced" in page([drawing])
    assert rates([Sample("t0", 0, 5)]) == ()
    assert [tick_ms(width) for width in (9.0, 80.0, 1400.0)] == [2.0, 10.0, 200.0]


def test_a_lane_has_the_mean_of_each_stretch_and_all_bytes() -> None:
    samples = [Sample("t0", at * made.MS, at * made.MB) for at in range(1, 8)]
    assert rates(samples, 2 * made.MS) == ((3.0, 1000.0), (6.0, 1000.0), (7.0, 1000.0))


def test_a_picture_that_takes_long_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = threading.Event()

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if "ckptbench: drawing" in text and "1 checkpoints" in text:
                said.set()
            return len(text)

    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setattr(plot, "SLOW_S", 0.01)
    monkeypatch.setattr(plot, "svg_file", lambda drawings: str(said.wait(30)))
    write_plot(made.run(made.job(made.save(0))), tmp_path / "burst.svg")
    assert (tmp_path / "burst.svg").read_text() == "True"


@pytest.mark.parametrize("kind", FaultKind)
def test_each_fault_is_drawn_in_words(tmp_path: Path, kind: FaultKind) -> None:
    struck = replace(made.save(0), strikes=(Strike("t1", kind.value, 50 * made.MS),))
    picture = tmp_path / "burst.svg"
    write_plot(made.run(made.job(struck)), picture)
    assert "ed at 50 ms" in picture.read_text()


def test_a_file_shows_all_jobs_and_which_target_was_struck(tmp_path: Path) -> None:
    struck = replace(made.save(0), strikes=(Strike("t1", "kill", 50 * made.MS),))
    picture = tmp_path / "burst.svg"
    write_plot(made.run(made.job(made.save(0)), made.job(struck, name="<killed>")), picture)
    root = ET.parse(picture).getroot()
    texts = [one.text or "" for one in root.iter() if one.tag.endswith("text")]
    assert texts.count("killed at 50 ms") == 1
    assert [text.partition(",")[0] for text in texts if ", step " in text] == ["save", "<killed>"]
    tops = [
        float(one.get("transform", "").split()[1].rstrip(")"))
        for one in root if one.tag.endswith("g")
    ]  # fmt: skip
    assert tops == [0.0, float(root.get("height", "")) / 2]
    assert "prefers-color-scheme:dark" in picture.read_text()


def test_the_picture_of_the_readme_is_as_the_tool_draws_it_now() -> None:
    root = ET.parse(PICTURE).getroot()
    assert [one.text for one in root.iter() if one.tag.endswith("style")] == [STYLE]
    texts = [one.text or "" for one in root.iter() if one.tag.endswith("text")]
    assert [text for text in texts if re.fullmatch(r"rank \d|t\d", text)] == [
        *(f"rank {rank}" for rank in range(4)),
        *(f"t{target}" for target in range(7)),
    ]
    assert [text.partition(" at ")[0] for text in texts if " at " in text] == ["killed"]


@pytest.mark.parametrize("name", ["plot.gif", "no/such/plot.html"])
def test_a_plot_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused):
        check_plot(tmp_path / name)


def test_two_reports_are_compared_checkpoint_by_checkpoint() -> None:
    def report(*slow_ms: int) -> bytes:
        saves = [made.save(n, slow_ms=ms) for n, ms in enumerate(slow_ms)]
        document = run_document(made.run(made.job(*saves)), plus=False)
        return b'{"message_type": "status"}\n' + encode(document).encode()

    before, after = read_report(report(0, 1, 2), "a"), read_report(report(100, 101, 99), "b")
    changes = {one.unit: one for one in compare(before, after)}
    assert changes["seconds"].verdict == changes["GB/s"].verdict == "worse"
    assert changes["seconds"].change.mean == pytest.approx(190 / 91 - 1)
    same = compare(before, read_report(report(1, 2, 0), "b"))
    assert {one.verdict for one in same} == {"no difference shown"}
    assert "no difference shown" in compare_text(same)
    with pytest.raises(Refused, match="no JSON report"):
        read_report(b"hello", "x")
    with pytest.raises(Refused, match=r"in common; A has save save; B has none"):
        compare(before, read_report(b'{\n"jobs": []}', "b"))


def test_a_comparison_says_which_jobs_are_not_the_same_work() -> None:
    document = run_document(made.run(made.job(made.save(0))), plus=False)
    text = encode(document).encode()
    before = read_report(text, "a")
    assert unlike(before, read_report(text, "b")) == {}
    assert {one.unlike for one in compare(before, read_report(text, "b"))} == {()}
    bytes_of = before.jobs[0].checkpoint.bytes
    other = text.replace(b'"bytes": %d' % bytes_of, b'"bytes": 7')
    differ = (f"bytes {bytes_of} -> 7",)
    assert unlike(before, read_report(other, "b")) == {"save": differ}
    assert {one.unlike for one in compare(before, read_report(other, "b"))} == {differ}


def test_a_comparison_as_json_says_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = encode(run_document(made.run(made.job(made.save(0))), plus=False))
    (tmp_path / "a.json").write_text(text)
    engine = '"engine": "ckpt"'
    assert engine in text
    (tmp_path / "b.json").write_text(text.replace(engine, '"engine": "posix"'))
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json"]) == 0
    told = capsys.readouterr()
    assert "save is not the same work in both: engine ckpt -> posix" in told.err
    assert [row["unlike"] for row in json.loads(told.out)] == [["engine ckpt -> posix"]] * 2


@pytest.mark.parametrize(
    ("value", "shown"),
    [(8388608, "8192KiB"), (254000000, "242MiB"), (21495808, "20.5MiB"), (0, "0B"),
     (1024**3 * 126.4, "126GiB"), (1536, "1536B"), (1024**2 * 256, "256MiB")],
)  # fmt: skip
def test_sizes_are_written_as_fio_writes_them(value: float, shown: str) -> None:
    assert numbers.size(value) == shown


def test_what_a_training_lost_is_a_line_of_its_own() -> None:
    found = made.run(made.job(replace(made.save(), pace=0.8, slower_s=0.3), made.save(1)))
    assert "| slower   : 0.3 s, the loop's loss: by so much its steps were longer than" in run_text(
        found
    )
