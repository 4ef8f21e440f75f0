"""Names and pins, as people and programs give them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt_client.store import Store
from tests.client.clikit import on_terminal, run

RUN = "toy/run"
PATH = "lightning_logs/epoch=0-val=0.25.ckpt"


def save(store: Store, step: int, value: int, run_name: str = RUN) -> None:
    store.save(run_name, step, {"a": np.full(5, value)}).wait(60.0)


def value_of(store: Store, which: int | str, run_name: str = RUN) -> int:
    loaded = store.load(run_name, which)
    assert isinstance(loaded, dict)
    return int(loaded["a"][0])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Steps 1 and 2; of a run the newest 2 are kept."""
    url = f"ckpt+local://{tmp_path}/burst?targets=3&code=2+1&keep=2"
    with ckpt.open(url) as opened:
        save(opened, 1, 1)
        save(opened, 2, 2)
        yield opened
    run("local", "stop", f"{tmp_path}/burst")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"ckpt+local://{tmp_path}/burst"


def test_what_has_a_name_is_loaded_by_it_and_stays(store: Store) -> None:
    store.tag(RUN, 1, "best", PATH)
    assert store.names(RUN) == {"best": 1, PATH: 1}
    assert value_of(store, PATH) == 1
    for step in (3, 4):
        save(store, step, step)
    assert [commit.step for commit in store.steps(RUN)] == [1, 3, 4]
    store.tag(RUN, 4, "best")
    assert store.names(RUN) == {"best": 4, PATH: 1}
    assert (value_of(store, "best"), value_of(store, PATH)) == (4, 1)
    store.untag(RUN, PATH, "never given")
    save(store, 5, 5)
    assert [commit.step for commit in store.steps(RUN)] == [4, 5]


def test_a_name_goes_on_meaning_what_it_was_given_to(store: Store) -> None:
    """Its step is saved again: by its number the later save is loaded, by the name the first."""
    store.tag(RUN, 1, "best")
    save(store, 1, 10)
    assert (value_of(store, 1), value_of(store, "best")) == (10, 1)


def test_a_pinned_step_is_kept_from_everything_until_it_is_unpinned(store: Store) -> None:
    store.pin(RUN, 1)
    for step in (3, 4):
        save(store, step, step)
    with pytest.raises(ckpt.Refused, match="is pinned"):
        store.delete(RUN, 1)
    assert value_of(store, 1) == 1
    store.unpin(RUN, 1)
    assert [commit.step for commit in store.steps(RUN)] == [3, 4]


def test_a_name_that_nobody_gave_is_not_found_and_a_number_is_no_name(store: Store) -> None:
    store.tag(RUN, 1, "best")
    for asked, hint in (
        ("bets", "did you mean best?"),
        ("latest", "the newest one needs no name: leave the step out"),
        ("1", "a step is a number: write int('1')"),
        ("other", f"its names: ckpt tag {RUN}"),
    ):
        with pytest.raises(ckpt.NotFound, match=f"is called {asked!r}") as caught:
            store.load(RUN, asked)
        assert caught.value.hint == hint
    for bad in ("12", "", "a\nb", "x" * 1025):
        with pytest.raises(ckpt.Refused):
            store.tag(RUN, 1, bad)
    with pytest.raises(ckpt.NotFound, match="toy/run@9"):
        store.tag(RUN, 9, "best")
    assert store.names(RUN) == {"best": 1}
    assert store.names("no such run") == {}


def test_commands_give_list_move_and_remove_names(store: Store, url: str) -> None:
    told = run("tag", f"{RUN}@1", "best", PATH, "--store", url)
    assert told.out.splitlines() == [f"{'name':<36}  step", f"{'best':<36}     1", f"{PATH}     1"]
    moved = run("tag", f"{RUN}@2", "best", "--store", url, "--json").document()
    assert {each["name"]: each["step"] for each in moved["names"]} == {"best": 2, PATH: 1}
    other = run("tag", f"{RUN}@1", "best", "--remove", "--store", url)
    assert (other.code, "'best' names step 2, not 1" in other.err) == (2, True)
    assert run("tag", f"{RUN}@1", "--store", url).out.count("ckpt") == 1
    assert "best" in run("ls", RUN, "--store", url).out
    shown = run("show", f"{RUN}@best", "--store", url)
    assert "toy/run@2 (newest)" in shown.out
    assert "best" in shown.out
    assert run("cat", f"{RUN}@2/a", "--store", url).out.count("2") >= 5
    assert run("verify", f"{RUN}@best", "--store", url).code == 0
    left = run("tag", RUN, "best", "--remove", "--store", url, "--json").document()
    assert [each["name"] for each in left["names"]] == [PATH]
    missing = run("show", f"{RUN}@best", "--store", url)
    assert (missing.code, "is called 'best'" in missing.err) == (10, True)
    unknown = run("tag", "toy/rum", "--store", url)
    assert (unknown.code, "there is no run 'toy/rum'" in unknown.err) == (10, True)
    assert f"did you mean {RUN}?" in unknown.err
    assert run("tag", RUN, "best", "--store", url).code == 2
    assert run("tag", RUN, "--remove", "--store", url).code == 2


def test_commands_pin_and_unpin(store: Store, url: str) -> None:
    assert run("pin", f"{RUN}@1", "--store", url).out == f"{RUN}@1 stays until it is unpinned\n"
    assert "(pinned)" in run("ls", RUN, "--store", url).out
    assert "pinned" in run("show", f"{RUN}@1", "--store", url).out
    refused = run("rm", f"{RUN}@1", "--yes", "--store", url)
    assert (refused.code, f"ckpt unpin {RUN}@1" in refused.err) == (2, True)
    foretold = run("rm", f"{RUN}@1", "--dry-run", "--store", url)
    assert (foretold.code, f"against it: {RUN}@1 is pinned" in foretold.out) == (3, True)
    document = run("unpin", f"{RUN}@1", "--store", url, "--json").document()
    assert document == {"run": RUN, "step": 1, "pinned": False}
    assert run("rm", f"{RUN}@1", "--yes", "--store", url).code == 0
    assert run("pin", f"{RUN}@9", "--store", url).code == 10


def test_a_deletion_names_the_names_that_go_with_it(store: Store, url: str) -> None:
    store.tag(RUN, 1, "best", "demo")
    foretold = run("rm", f"{RUN}@1", "--dry-run", "--store", url)
    assert (foretold.code, "best, demo" in foretold.out) == (0, True)
    _, shown = on_terminal("rm", f"{RUN}@1", "--store", url, answer="n\n")
    assert "1 generation, called best and demo)?" in shown


def test_names_and_pins_outlive_the_catalog(store: Store, url: str, tmp_path: Path) -> None:
    store.tag(RUN, 1, "best")
    store.pin(RUN, 2)
    store.close()
    directory = tmp_path / "burst"
    assert run("local", "stop", str(directory)).code == 0
    for path in directory.glob("catalog.sqlite*"):
        path.unlink()
    rebuilt = run("catalog", "rebuild", str(directory))
    assert rebuilt.code == 0, rebuilt.err
    with ckpt.open(url) as again:
        assert again.names(RUN) == {"best": 1}
        assert value_of(again, "best") == 1
        with pytest.raises(ckpt.Refused, match="is pinned"):
            again.delete(RUN, 2)
