"""What stays of a run, as people and programs say it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt_client.save.metrics import given_metrics
from ckpt_client.store import Store
from tests.client.clikit import run
from tests.waiting import wait_until
from tests.warm_child import run_script

RUN = "toy/run"


def save(store: Store, *steps: int) -> None:
    for step in steps:
        store.save(RUN, step, {"a": np.full(5, step)}).wait(60.0)


def steps_of(store: Store) -> list[int]:
    return [commit.step for commit in store.steps(RUN)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"ckpt+local://{tmp_path}/burst"


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    """A cluster that keeps the newest 4 steps."""
    with ckpt.open(f"{url}?targets=3&code=2+1&keep=4") as opened:
        yield opened
    run("local", "stop", f"{tmp_path}/burst")


def test_what_is_said_of_a_run_stays_and_the_rest_goes(store: Store) -> None:
    store.keep(RUN, last=2, every=100)
    save(store, 50, 100, 150, 200, 250, 260, 270)
    assert steps_of(store) == [100, 200, 260, 270]
    store.tag(RUN, 260, "good")
    save(store, 280, 290)
    assert steps_of(store) == [100, 200, 260, 280, 290]
    reasons = {one.step: one.reason for one in store.kept(RUN).steps}
    assert reasons[260] == "called 'good'"
    assert reasons[290] == "the newest step; the last 2"
    store.keep(RUN)
    assert (store.kept(RUN).source, store.kept(RUN).text) == ("cluster", "the last 4")
    assert steps_of(store) == [200, 260, 280, 290]


def test_what_is_young_stays(store: Store) -> None:
    store.keep(RUN, age=timedelta(hours=1))
    save(store, *range(1, 7))
    assert steps_of(store) == [1, 2, 3, 4, 5, 6]
    store.keep(RUN, age="12h", last=1)
    assert store.kept(RUN).text == "the last 1; younger than 12h"
    assert steps_of(store) == [1, 2, 3, 4, 5, 6]


def test_what_is_no_rule_is_refused_before_anything_changes(store: Store) -> None:
    store.keep(RUN, last=3)
    bad = [
        {"last": 0}, {"last": 2.5}, {"last": True}, {"every": -1}, {"age": "soon"}, {"age": 0},
        {"best": ("loss", 3)}, {"best": ("loss", 0), "mode": "min"}, {"best": "loss", "mode": "min"},
        {"best": ("loss", 3), "mode": "lowest"}, {"mode": "min"},
    ]  # fmt: skip
    for rules in bad:
        with pytest.raises(ckpt.Refused):
            store.keep(RUN, **rules)  # type: ignore[arg-type]
    assert store.kept(RUN).text == "the last 3"


def test_commands_say_show_and_take_back_what_stays(store: Store, url: str) -> None:
    early = run("keep", RUN, "--store", url)
    assert early.out.splitlines() == [
        f"{RUN} keeps the last 4 (the cluster's rule)", "0 stay, 0 checkpoints go",
        f"{RUN} has no checkpoints yet; ckpt ls shows which runs have",
    ]  # fmt: skip
    save(store, 10, 20, 30, 40)
    shown = run("keep", RUN, "--store", url)
    assert shown.out.splitlines() == [
        f"{RUN} keeps the last 4 (the cluster's rule)", "4 stay, 0 checkpoints go",
    ]  # fmt: skip
    rules = ("--last", "1", "--every", "20", "--best", "loss:min:3", "--age", "7d")
    tried = run("keep", RUN, *rules, "--dry-run", "--store", url)
    text = "the last 1; every 20; the best 3 by loss (min); younger than 7d"
    assert tried.out.splitlines()[0] == f"{RUN} would keep {text} (its own rules)"
    assert "ckpt gc" not in tried.out, "that tells of the rules in force, and the reasons follow"
    dry = run("keep", RUN, "--last", "1", "--every", "20", "--dry-run", "--json", "--store", url)
    going = [(one["step"], one["reason"]) for one in dry.document()["steps"] if not one["stays"]]
    why = "not among the last 1; every 20"
    assert going == [(10, why), (30, why)]
    assert steps_of(store) == [10, 20, 30, 40]
    said = run("keep", RUN, "--last", "1", "--every", "20", "--store", url)
    assert said.out.splitlines() == [
        f"{RUN} keeps the last 1; every 20 (its own rules)", "2 stay, 2 checkpoints go",
    ]  # fmt: skip
    assert steps_of(store) == [20, 40]
    document = run("keep", RUN, "--json", "--store", url).document()
    assert (document["source"], document["rules"]["every"]) == ("run", 20)
    assert run("keep", RUN, "--none", "--store", url).code == 0
    assert store.kept(RUN).source == "cluster"


def test_gc_says_why_each_step_stays_or_goes_and_removes_nothing(store: Store, url: str) -> None:
    save(store, 10, 20, 30)
    store.pin(RUN, 10)
    with store.resolve(RUN, 20):
        store.keep(RUN, last=1)
        shown = run("gc", RUN, "--dry-run", "--store", url)
        rows = [
            " ".join(line.split()[1:3] + line.split()[5:]) for line in shown.out.splitlines()[1:4]
        ]
        assert rows == [
            "10 stays pinned", "20 stays somebody reads it", "30 stays the newest step; the last 1",
        ]  # fmt: skip
        assert shown.out.splitlines()[-1] == "0 checkpoints to go, 0 B"
    everything = run("gc", "--dry-run", "--json", "--store", url).document()
    assert [view["run"] for view in everything["runs"]] == [RUN]
    missing = run("gc", "no/such", "--dry-run", "--store", url)
    assert (missing.code, "there is no run 'no/such'" in missing.err) == (10, True)


def test_commands_that_say_nothing_or_two_things_are_refused(store: Store, url: str) -> None:
    for words in (
        ("keep", RUN, "--none", "--last", "1"),
        ("keep", RUN, "--last", "0"),
        ("keep", RUN, "--best", "loss:3"),
        ("keep", RUN, "--age", "soon"),
        ("gc",),
        ("gc", RUN),
        ("gc", "--multipart"),
        ("gc", RUN, "--dry-run", "--yes"),
    ):
        ended = run(*words, "--store", url)
        assert ended.code == 2, (words, ended)
        assert "hint" in run(*words, "--json", "--store", url).error(), words


def test_rules_outlive_a_restart_and_a_rebuilt_catalog_takes_nothing_away(
    store: Store, url: str, tmp_path: Path
) -> None:
    store.keep(RUN, last=6)
    save(store, 1, 2, 3, 4, 5)
    store.close()
    directory = tmp_path / "burst"
    assert run("local", "stop", str(directory)).code == 0
    with ckpt.open(url) as again:
        save(again, 6, 7)
        assert steps_of(again) == [2, 3, 4, 5, 6, 7]
    assert run("local", "stop", str(directory)).code == 0
    for path in directory.glob("catalog.sqlite*"):
        path.unlink()
    rebuilt = run("catalog", "rebuild", str(directory), "--json").document()
    assert rebuilt["catalogs"][0]["retention_unsaid"] == [RUN]
    with ckpt.open(url) as again:
        save(again, 8)
        # What the lost catalog alone knew to be deleted, and no target yet, is there again.
        assert steps_of(again)[-7:] == [2, 3, 4, 5, 6, 7, 8]
        assert again.kept(RUN).source == "lost"
        assert "lost with an earlier catalog" in run("keep", RUN, "--store", url).out
        again.keep(RUN, last=6)
        assert steps_of(again) == [3, 4, 5, 6, 7, 8]


def test_what_a_save_is_told_is_listed_and_the_best_stay(store: Store, url: str) -> None:
    store.keep(RUN, last=1, best=("loss", 2), mode="min")
    for step, loss in ((1, 0.5), (2, 0.1), (3, 0.9), (4, 0.4)):
        metrics = {"loss": np.float32(loss), "tokens": step * 10}
        commit = store.save(RUN, step, {"a": np.full(5, step)}, metrics=metrics).wait(60.0)
    assert commit.metrics == {"loss": pytest.approx(0.4), "tokens": 40.0}
    assert [step.metrics["tokens"] for step in store.steps(RUN)] == [20.0, 40.0]
    listed = run("ls", RUN, "--json", "--store", url).document()["steps"]
    assert [each["metrics"]["tokens"] for each in listed] == [20.0, 40.0]
    assert "loss 0.4, tokens 40" in run("show", f"{RUN}@4", "--store", url).out
    save(store, 5)
    reasons = {one.step: one.reason for one in store.kept(RUN).steps}
    assert reasons == {
        2: "the best 2 by loss (min)", 4: "the best 2 by loss (min)",
        5: "the newest step; the last 1",
    }  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        {"loss": float("nan")}, {"loss": float("inf")}, {"loss": "0.3"}, {"loss": None},
        {"loss": np.zeros(2)}, {"": 1.0}, {7: 1.0}, ["loss"], {str(n): 0 for n in range(65)},
    ],
    ids=str,
)  # fmt: skip
def test_metrics_that_are_no_finite_numbers_are_refused(bad: object) -> None:
    with pytest.raises(ckpt.Refused):
        given_metrics(bad)  # type: ignore[arg-type]


def test_a_refused_metric_saves_nothing_and_the_next_save_goes_on(store: Store) -> None:
    with pytest.raises(ckpt.Refused, match="'loss' is nan"):
        store.save(RUN, 1, {"a": np.zeros(5)}, metrics={"loss": float("nan")})
    assert store.steps(RUN) == []
    store.save(RUN, 1, {"a": np.zeros(5)}, metrics={"loss": 0.5}).wait(60.0)
    assert [step.metrics for step in store.steps(RUN)] == [{"loss": 0.5}]


DYING = """
import os, signal, sys
import numpy as np
import ckpt
store = ckpt.open(sys.argv[1])
store.save("toy/run", 1, {"a": np.zeros(1 << 20)}, metrics={"loss": 0.25})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_metrics_outlive_the_trainer_and_the_catalog(
    store: Store, url: str, tmp_path: Path
) -> None:
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    assert run_script(script, url, environment=os.environ) == -signal.SIGKILL
    wait_until(lambda: bool(store.steps(RUN)), "its stager has committed it")
    store.close()
    directory = tmp_path / "burst"
    assert run("local", "stop", str(directory)).code == 0
    for path in directory.glob("catalog.sqlite*"):
        path.unlink()
    assert run("catalog", "rebuild", str(directory)).code == 0
    with ckpt.open(url) as again:
        assert [step.metrics for step in again.steps(RUN)] == [{"loss": 0.25}]
