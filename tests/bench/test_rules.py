"""Which jobs the rules are judged by, what they say of results, and what --strict makes of that."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest

from ckpt.base.units import KiB, MiB
from ckptbench.cli import main
from ckptbench.commands.goals import settings_of
from ckptbench.commands.run import exit_code
from ckptbench.figures import JudgedRule, Spread
from ckptbench.job.grammar import Section
from ckptbench.job.jobs import Job, build_jobs
from ckptbench.report.document import encode, run_document
from ckptbench.report.rules_text import rule_lines
from ckptbench.report.text import run_text
from ckptbench.results import JobResult, RankTimes, Spent
from ckptbench.rules.judge import RULES, SpeedRule, judge, rules_of, time_ratio
from ckptbench.rules.sections import RANKS, SIZE, section_texts
from tests.bench import made

NOT_SKIPPED: Mapping[str, str] = {}


def jobs_of(ranks: int, size: int) -> dict[str, Job]:
    sections = [
        Section(name, settings_of(text, "rules"), "rules")
        for name, text in section_texts(ranks, size)
    ]
    return {job.name: job for job in build_jobs([sections], []).jobs}


def verdicts(*jobs: JobResult, skipped: Mapping[str, str] = NOT_SKIPPED) -> dict[str, JudgedRule]:
    """By name, of the rules that these jobs and the skipped ones are about."""
    rules = rules_of([*(job.name for job in jobs), *skipped])
    return {one.name: one for one in judge(rules, jobs, skipped)}


def a_file(name: str, *milliseconds: int) -> JobResult:
    """Saves of one rank that were done after so long."""
    saves = tuple(
        replace(made.save(number), seals=(), ranks=(RankTimes(0, 1, 0, 1, after * made.MS),))
        for number, after in enumerate(milliseconds)
    )
    return made.job(*saves, name=name, engine="posix", code="")


# --------------------------------------------------------------------------- jobs


def test_the_jobs_are_those_that_the_rules_are_stated_for() -> None:
    jobs = jobs_of(RANKS, SIZE)
    shapes = {name: (job.options.numjobs, job.options.size) for name, job in jobs.items()}
    assert shapes.pop("null-many") == (16, 128 * MiB)
    assert shapes.pop("tensors") == (1, 160 * MiB)
    assert set(shapes.values()) == {(4, 512 * MiB)}
    assert {job.options.loops for job in jobs.values()} == {7}
    assert jobs["tensors"].options.tensor_size == (KiB, 64 * KiB)
    lent = {name for name, job in jobs.items() if not job.options.tcp}
    assert lent == {"null-lent", "save-lent", "load-lent"}


def test_what_is_compared_takes_turns_and_what_kills_targets_comes_last() -> None:
    jobs = jobs_of(RANKS, SIZE)
    for rule in RULES:
        if rule.name.startswith("a daemon"):
            continue  # It is the larger one of two.
        assert len({jobs[name].group for name in rule.sections}) == 1, rule.name
        assert all(jobs[name].options.interleave for name in rule.sections[1:]), rule.name
    assert [name for name, job in jobs.items() if job.options.rw == "degraded"] == [[*jobs][-1]]
    drifts = [job for job in jobs.values() if job.options.baseline and job.saves]
    assert not any(job.options.interleave for job in drifts)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_is_run_alone_by_the_sections_that_its_line_names(
    rule: SpeedRule, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rule in rules_of(rule.sections)
    words = [f"--section={name}" for name in rule.sections]
    assert main(["rules", *words, "--parse-only"]) == 0
    assert capsys.readouterr().err == ""


def test_fewer_ranks_and_bytes_keep_the_proportions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--size=16Mi", "--numjobs=2", "--loops=1", "--showcmd"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("ckptbench --loops=1 --name=null --numjobs=2 --size=16MiB ")
    assert "--name=null-many --numjobs=8 --size=4MiB " in shown
    assert "--name=tensors --numjobs=1 --size=5MiB " in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--code=2+1"], "the rules themselves say what --code is; it takes --numjobs, --size"),
        (["x.fio"], "takes flags only"),
        (["--section=savee"], "no section is called 'savee'"),
        (["--section=save"], "no rule is of --section=save alone; durable / torch.save"),
        (["--numjobs=2000"], "numjobs=8000"),
    ],
)
def test_what_would_measure_something_else_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", *words]) == 2
    assert told in capsys.readouterr().err


def test_without_torch_its_rules_are_skipped_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    assert main(["rules", "--showcmd"]) == 0
    found = capsys.readouterr()
    assert "torch" not in found.out
    assert "--name=save-direct" in found.out
    for name in ("durable / torch.save + fsync, lent", "cold load / torch.load, TCP"):
        assert f"torch is not installed: SKIPPED: {name}" in found.err or f"; {name}" in found.err
    # Whoever names such a job wants it.
    assert main(["rules", "--section=save", "--section=save-torch"]) != 0
    assert "which is not installed" in capsys.readouterr().err


# --------------------------------------------------------------------------- verdicts


def test_a_ratio_is_of_rounds_that_both_have() -> None:
    tier, other = a_file("save", 200, 330, 400), a_file("other", 100, 110)
    found = time_ratio(tier, other)
    assert found == Spread(2.5, 2.0, 3.0, 2)
    assert time_ratio(tier, replace(other, checkpoints=())) is None


def test_a_save_is_beside_a_plain_file_of_as_many_bytes_as_it_writes() -> None:
    tier = replace(a_file("save", 150), code="4+2")
    for milliseconds, met in ((81, True), (79, False)):
        found = verdicts(tier, a_file("save-direct", milliseconds))
        (one,) = found.values()
        assert one.name == "durable / O_DIRECT file x n/k, TCP"
        assert one.found is not None
        assert one.found.median == pytest.approx(150 / milliseconds / 1.5)
        assert one.met is met


def test_a_run_without_its_figure_does_not_pass() -> None:
    (one,) = verdicts(replace(a_file("load"), verb="load"), a_file("load-file")).values()
    assert (one.found, one.met, one.passes) == (None, False, False)


def test_memory_is_the_most_of_all_jobs_of_the_rule() -> None:
    large = replace(made.save(), spent=replace(made.save().spent, private_bytes=65 * MiB))
    disk = made.job(made.save(), large, name="disk", daemon_bytes=100 * MiB)
    found = verdicts(disk, made.job(name="restore", verb="degraded", daemon_bytes=193 * MiB))
    stager, daemon = (found[f"a {who} memory, MiB"] for who in ("stager's private", "daemon's"))
    assert stager.found == Spread(65, 65, 65, 1)
    assert daemon.found == Spread(193, 193, 193, 1)
    assert not stager.met
    assert not daemon.met


def test_every_rule_is_judged_by_results_of_its_jobs_and_can_be_missed() -> None:
    """Jobs a hundred times too slow, too large and too dear: every rule sees it."""
    bad_save = replace(
        made.save(), copy_s=0.001, raw_gb_per_s=(400.0, 400.0),
        spent=Spent({"stager": 30.0}, private_bytes=100 * MiB),
    )  # fmt: skip
    slow = (RankTimes(0, 1, 0, 1, 250 * made.MS),)
    jobs = []
    for name, job in jobs_of(RANKS, SIZE).items():
        match job.options.rw:
            case "degraded":
                pair = made.load(), replace(made.load(kind="degraded"), ranks=slow)
                bounds = replace(made.BOUNDS, restore_gb_per_s=300.0)
                of = {"verb": "degraded", "bounds": bounds, "daemon_bytes": 200 * MiB}
                jobs.append(made.job(*pair, name=name, **of))
            case "load" | "save" as verb if job.options.ioengine != "ckpt":
                kind = made.load() if verb == "load" else made.save()
                fast = replace(kind, ranks=(RankTimes(0, 1, 0, 1, made.MS),), seals=())
                jobs.append(made.job(fast, name=name, verb=verb))
            case "load":
                jobs.append(made.job(made.load(), name=name, verb="load"))
            case _:
                one = replace(bad_save, seals=(), ranks=slow) if name == "null-many" else bad_save
                null = job.options.sink == "null"
                bounds = replace(made.BOUNDS, save_gb_per_s=200.0) if null else None
                jobs.append(made.job(one, name=name, discards=null, bounds=bounds))
    found = judge(RULES, jobs, NOT_SKIPPED)
    assert [one.name for one in found] == [rule.name for rule in RULES]
    assert [one.name for one in found if one.found is None] == []
    assert [one.name for one in found if one.met] == []


# --------------------------------------------------------------------------- report


MET = JudgedRule("met one", Spread(1.0, 0.9, 1.2, 3), 1.05, at_least=False, sections=("a", "b"),
              state="4 x 512 MiB")  # fmt: skip
MISSED = JudgedRule("missed one", Spread(0.5, 0.5, 0.5, 1), 0.8, at_least=True, sections=("a",),
                 state="1 x 1 MiB")  # fmt: skip
NO_FIGURE = replace(MET, name="none", found=None, state="")
SKIPPED = replace(NO_FIGURE, name="torch's", skipped="torch is not installed")


@pytest.mark.parametrize(
    ("rules", "code"),
    [((MET, SKIPPED), 0), ((MET, MISSED), 1), ((MET, NO_FIGURE), 1), ((SKIPPED, MISSED), 1)],
)
def test_strict_fails_for_a_rule_that_is_missed_or_has_no_figure(
    rules: tuple[JudgedRule, ...], code: int
) -> None:
    # This job misses a goal of its own, which is another table's.
    job = made.job(replace(made.save(), copy_s=0.001), bounds=made.BOUNDS)
    found = replace(made.run(job), rules=rules)
    assert exit_code(found, strict=True) == code
    assert exit_code(found) == 0
    assert exit_code(made.run(job), strict=True) == 1
    broken = replace(found, jobs=(replace(job, exit_code=12),))
    assert exit_code(broken, strict=True) == 12


def test_a_line_says_the_rule_what_was_found_the_goal_and_how_it_is_run_alone() -> None:
    assert list(rule_lines([])) == []
    assert list(rule_lines([MET, MISSED, NO_FIGURE, SKIPPED])) == [
        "           rule        found                   goal     ranks x bytes  "
        "alone: ckptbench rules",
        "met        met one     1 [0.9 - 1.2, 3]        <= 1.05  4 x 512 MiB    "
        "--section=a --section=b",
        "MISSED     missed one  0.5                     >= 0.8   1 x 1 MiB      --section=a",
        "no figure  none                                <= 1.05                 "
        "--section=a --section=b",
        "skipped    torch's     torch is not installed  <= 1.05                 "
        "--section=a --section=b",
    ]


def test_the_json_has_each_rule_and_the_text_no_other_goals() -> None:
    found = replace(made.run(made.job(made.save(), bounds=made.BOUNDS)), rules=(MISSED, SKIPPED))
    document = json.loads(encode(run_document(found, plus=False)))
    missed, skipped = document["checkpoint"]["rules"]
    assert missed == {
        "name": "missed one", "found": {"median": 0.5, "low": 0.5, "high": 0.5, "count": 1},
        "limit": 0.8, "at_least": True, "sections": ["a"], "state": "1 x 1 MiB", "skipped": "",
        "met": False,
    }  # fmt: skip
    assert (skipped["found"], skipped["skipped"]) == (None, "torch is not installed")
    assert "eta_disk" not in run_text(found)
    assert "eta_disk" in run_text(replace(found, rules=()))
