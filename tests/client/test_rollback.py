"""Rollback, as people and programs say it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest

import ckpt
from ckpt_client.store import Store
from tests.client.clikit import run
from tests.waiting import WAIT_S, wait_until

RUN = "toy/run"
LABELS = "targets/*/documents/*labels*"
"""What targets have of names."""
ASIDE = {"aside-300": 300, "aside-400": 400}


def save(store: Store, step: int, value: int | None = None) -> ckpt.Save:
    saved = store.save(RUN, step, {"a": np.full(5, step if value is None else value)})
    saved.wait(WAIT_S)
    return saved


def value_of(store: Store, which: int | str | None = None) -> int:
    loaded = store.load(RUN, which)
    assert isinstance(loaded, dict)
    return int(loaded["a"][0])


def steps_of(store: Store) -> list[int]:
    return [commit.step for commit in store.steps(RUN)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "burst"


@pytest.fixture
def url(directory: Path) -> str:
    return f"ckpt+local://{directory}"


@pytest.fixture
def store(url: str, directory: Path) -> Iterator[Store]:
    """Steps 100 to 400."""
    with ckpt.open(f"{url}?targets=3&code=2+1") as opened:
        for step in (100, 200, 300, 400):
            save(opened, step)
        yield opened
    run("local", "stop", str(directory))


def test_the_newest_is_that_step_and_later_ones_are_loaded_by_their_names(store: Store) -> None:
    assert store.rollback(RUN, 200) == ASIDE
    assert (store.latest(RUN), value_of(store), steps_of(store)) == (200, 200, [100, 200])
    assert (value_of(store, "aside-300"), value_of(store, 300)) == (300, 300)
    assert store.names(RUN) == ASIDE
    assert store.names(RUN, aside=False) == {}
    assert store.rollback(RUN, 200) == ASIDE, "asked again"


def test_training_goes_on_and_what_it_saves_again_stands_beside_what_is_aside(
    store: Store,
) -> None:
    store.rollback(RUN, 200)
    save(store, 250)
    assert (store.latest(RUN), value_of(store)) == (250, 250)
    save(store, 300, 301)
    assert (value_of(store), value_of(store, 300), value_of(store, "aside-300")) == (301, 301, 300)
    assert store.rollback(RUN, 250) == {**ASIDE, "aside-300.2": 300}
    assert (value_of(store), value_of(store, "aside-300.2")) == (250, 301)


def test_rules_take_nothing_that_is_aside_and_count_none_of_it(store: Store) -> None:
    store.rollback(RUN, 200)
    store.keep(RUN, last=2)
    for step in (210, 220, 230):
        save(store, step)
    assert steps_of(store) == [220, 230]
    assert (value_of(store, "aside-300"), value_of(store, "aside-400")) == (300, 400)
    reasons = {one.step: one.reason for one in store.kept(RUN).steps}
    assert reasons[400] == "called 'aside-400'"


def test_commands_take_the_name_of_a_save_whose_step_was_saved_again(
    store: Store, url: str, tmp_path: Path
) -> None:
    store.rollback(RUN, 200)
    earlier, later = f"{RUN}@aside-300", f"{RUN}@300"
    save(store, 300, 301)

    def ask(*line: str) -> Any:
        return run(*line, "--json", "--store", url).document()

    seen = {name: ask("show", name)["generations"] for name in (earlier, later)}
    assert [one["generation"] for one in seen[earlier]] == [
        one["generation"] for one in reversed(seen[later])
    ]
    aside, newest = seen[earlier][-1], seen[later][-1]
    assert (aside["names"], newest["newest"]) == (["aside-300"], True)
    shown = run("show", earlier, "--store", url).out
    assert f"generation    {aside['generation']}" in shown
    assert f"later generation {newest['generation']}: committed" in shown
    for name, value, generation in ((earlier, 300, aside), (later, 301, newest)):
        assert ask("cat", f"{name}/a")["values"] == [value] * 5
        assert ask("show", name, "--tensors")["checkpoint"].endswith(generation["generation"])
        verified = json.loads(run("verify", name, "--json", "--store", url).out.splitlines()[-1])
        assert (verified["generation"], verified["state"]) == (generation["generation"], "healthy")
        file = tmp_path / f"{value}.npz"
        ask("export", name, str(file), "--format", "npz")
        assert np.load(file)["a"].tolist() == [value] * 5
    assert [one["name"] for one in ask("diff", earlier, later)["tensors"]] == ["a"]
    ask("pin", earlier)
    ask("tag", earlier, "spike")
    held = {one["generation"]: one for one in ask("show", later)["generations"]}
    assert held[aside["generation"]]["pinned"]
    assert not held[newest["generation"]]["pinned"]
    assert value_of(store, "spike") == 300
    ask("unpin", earlier)
    assert not any(one["pinned"] for one in ask("show", later)["generations"])
    refused = run("rollback", earlier, "--store", url)
    assert refused.code == 2
    assert "'aside-300' names an earlier save of step 300" in refused.err
    assert run("show", f"{RUN}@none", "--store", url).code == 10


def test_commands_set_aside_show_and_bring_back(store: Store, url: str) -> None:
    dry = run("rollback", f"{RUN}@200", "--dry-run", "--json", "--store", url).document()
    assert [one["name"] for one in dry["aside"]] == list(ASIDE)
    assert (dry["dry_run"], dry["saving"], store.latest(RUN)) == (True, [], 400)
    third, fourth = [str(commit.generation) for commit in store.steps(RUN)[2:]]
    told = run("rollback", f"{RUN}@200", "--store", url)
    assert told.out.splitlines() == [
        f"{RUN}@200 is the newest again; 2 later ones are set aside:",
        "step  generation  name",
        f" 300  {third}         aside-300",
        f" 400  {fourth}         aside-400",
        f"to bring one back: ckpt tag {RUN} aside-400 --remove",
    ]
    assert told.err == ""
    listed = run("ls", RUN, "--json", "--store", url).document()
    assert [one["step"] for one in listed["steps"] if one["aside"]] == [300, 400]
    assert [one["step"] for one in listed["steps"] if one["newest"]] == [200]
    assert listed["runs"][0]["latest"] == 200
    assert f"{RUN}@200 (newest)" in run("show", RUN, "--store", url).out
    assert f"{RUN}@300" in run("show", f"{RUN}@aside-300", "--store", url).out
    assert run("verify", f"{RUN}@aside-300", "--store", url).code == 0
    assert run("tag", RUN, "aside-300", "--remove", "--store", url).code == 0
    assert (store.latest(RUN), value_of(store)) == (300, 300)
    nothing = run("rollback", f"{RUN}@300", "--store", url).out.splitlines()
    assert nothing[0] == f"{RUN}@300 is the newest again; 1 later one is set aside:"
    assert run("rm", f"{RUN}@400", "--yes", "--store", url).code == 0
    alone = run("rollback", f"{RUN}@300", "--store", url)
    assert alone.out == f"{RUN}@300 is the newest: nothing comes after it\n"


def test_what_is_wrong_is_refused_before_anything_changes(store: Store, url: str) -> None:
    cases = {
        f"{RUN}@150": (10, "its steps: 100, 200, 300, 400"),
        "toy/ran@100": (10, f"did you mean {RUN}?"),
        RUN: (2, f"ckpt rollback {RUN}@STEP"),
        f"{RUN}@best": (10, f"its names: ckpt tag {RUN}"),
    }
    for which, (code, hint) in cases.items():
        ended = run("rollback", which, "--json", "--store", url)
        assert (ended.code, hint in ended.error()["hint"]) == (code, True), ended.err
    assert (store.latest(RUN), store.names(RUN)) == (400, {})
    store.rollback(RUN, 200)
    aside = run("rollback", f"{RUN}@300", "--json", "--store", url)
    assert (aside.code, aside.error()["hint"]) == (
        2, f"bring it back first: ckpt tag {RUN} aside-300 --remove",
    )  # fmt: skip
    with pytest.raises(ckpt.Refused, match="only a rollback") as caught:
        store.tag(RUN, 100, "aside-300")
    assert "ckpt rollback RUN@STEP" in caught.value.hint
    assert (store.latest(RUN), store.names(RUN)) == (200, ASIDE)


def test_the_last_step_in_line_is_deleted_with_force_alone(store: Store, url: str) -> None:
    store.rollback(RUN, 100)
    refused = run("rm", f"{RUN}@100", "--yes", "--store", url)
    assert (refused.code, "the only committed checkpoint" in refused.err) == (2, True)
    assert run("rm", f"{RUN}@100", "--yes", "--force", "--store", url).code == 0
    assert (store.latest(RUN), steps_of(store)) == (None, [])
    with pytest.raises(ckpt.NotFound, match="are set aside by a rollback"):
        store.load(RUN)
    assert value_of(store, "aside-200") == 200
    assert "-" in run("status", "--store", url).out


def test_a_save_under_way_is_warned_of_and_counts_by_the_usual_rule(store: Store, url: str) -> None:
    state = {"a": np.full(5, 500)}
    half = store.save("two", 500, state, rank=0, world_size=2)
    for step in (100, 200):
        for save in [store.save("of two", step, state, rank=r, world_size=2) for r in (0, 1)]:
            save.wait(WAIT_S)
    begun = store.save("of two", 300, state, rank=0, world_size=2)
    wait_until(lambda: "of two@300" in run("status", "--store", url).out, "it is under way")
    told = run("rollback", "of two@100", "--store", url)
    assert told.code == 0, told.err
    assert "of two is saving step 300 at this moment" in told.err
    assert "end it, then roll back" in told.err
    assert store.latest("of two") == 100
    store.save("of two", 300, state, rank=1, world_size=2).wait(WAIT_S)
    begun.wait(WAIT_S)
    assert store.latest("of two") == 300
    store.save("two", 500, state, rank=1, world_size=2).wait(WAIT_S)
    half.wait(WAIT_S)


def test_a_coordinator_that_is_killed_meanwhile_is_asked_again_and_all_of_it_is_aside(
    store: Store, directory: Path
) -> None:
    """Whether the first one was done, or any of it, is all the same."""
    for step in range(401, 409):
        save(store, step)
    before = set(directory.glob(LABELS))
    with ThreadPoolExecutor(1) as asking:
        first = asking.submit(store.rollback, RUN, 200)
        wait_until(lambda: set(directory.glob(LABELS)) > before or first.done(), "it is under way")
        os.kill(json.loads((directory / "ready.json").read_text())["coordinator_pid"], SIGKILL)
        wait([first])
    steps = [300, 400, *range(401, 409)]
    assert store.rollback(RUN, 200) == {f"aside-{step}": step for step in steps}
    assert (store.latest(RUN), value_of(store)) == (200, 200)
    error = first.exception()
    assert error is None or isinstance(error, ckpt.CkptError), error


def test_it_outlives_a_coordinator_that_is_killed_and_the_catalog(
    store: Store, url: str, directory: Path
) -> None:
    store.rollback(RUN, 200)
    ready = directory / "ready.json"
    pid = json.loads(ready.read_text())["coordinator_pid"]
    os.kill(pid, SIGKILL)
    assert store.rollback(RUN, 200) == ASIDE, "the one that comes after it answers the same"
    assert json.loads(ready.read_text())["coordinator_pid"] != pid
    assert value_of(store) == 200
    store.close()
    assert run("local", "stop", str(directory)).code == 0
    for path in directory.glob("catalog.sqlite*"):
        path.unlink()
    rebuilt = run("catalog", "rebuild", str(directory))
    assert rebuilt.code == 0, rebuilt.err
    with ckpt.open(url) as again:
        assert (again.latest(RUN), again.names(RUN)) == (200, ASIDE)
        again.untag(RUN, "aside-300")
        assert (again.latest(RUN), value_of(again)) == (300, 300)
