"""What is in a checkpoint, what its values are like, and how two of them differ: as commands say it
(`ckpt show --tensors`, `ckpt cat`, `ckpt diff`) and as programs ask for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import ckpt
from ckpt_client.cli.tensors_tree import ranges_text
from ckpt_client.inspect.statistics import Statistics, ValueHistogram, as_reals
from tests.client.clikit import run

RUN = "toy/run"
ROWS, COLUMNS = 64, 48


def state_of(rank: int, step: int) -> dict[str, object]:
    rng = np.random.default_rng(7)
    weight = rng.normal(size=(ROWS, COLUMNS)).astype("f4")
    if step == 2:
        weight[:4] += np.float32(0.5)
    half = ROWS // 2
    state: dict[str, object] = {
        "model": {
            "weight": ckpt.Shard(weight[half * rank :][:half], (ROWS, COLUMNS), (half * rank, 0)),
            "bias": ckpt.Replicated(np.zeros(10, ml_dtypes.bfloat16)),
        },
        "own": np.full(3, rank + 0.5),
        "name": ckpt.Replicated("plain"),
        "text": np.array(["a", "bc"]),
        "phase": np.array([3 + 4j, 0]) * step,
    }
    if step == 1:
        state["old"] = np.arange(4)
    else:
        state["new"] = np.array([np.nan, 1.0, np.inf, 0.0])
        state["text"] = np.array(["a", "bcd"])
    return state


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Steps 1 and 2 of two ranks."""
    directory = tmp_path_factory.mktemp("inspect") / "burst"
    url = f"ckpt+local://{directory}?targets=4&code=2+1"
    with ckpt.open(url) as store:
        for step in (1, 2):
            saves = [
                store.save(RUN, step, state_of(rank, step), rank=rank, world_size=2)
                for rank in range(2)
            ]
            for save in saves:
                save.wait(60.0)
    yield f"ckpt+local://{directory}"
    run("local", "stop", str(directory))


# --------------------------------------------------------------------------- what is in it


def test_tensors_are_listed_with_dtype_shape_and_whose_they_are(url: str) -> None:
    with ckpt.open(url) as store, store.resolve(RUN, 1) as checkpoint:
        found = {info.name: info for info in checkpoint.tensors()}
    assert list(found) == sorted(found)
    assert found.keys() == {"model/bias", "model/weight", "old", "own", "phase", "text"}
    weight, own = found["model/weight"], found["own"]
    assert (weight.dtype, weight.shape, weight.shards, weight.ranks, weight.per_rank) == (
        np.dtype("f4"), (ROWS, COLUMNS), 2, (0, 1), False
    )  # fmt: skip
    assert weight.bytes == ROWS * COLUMNS * 4
    assert (own.ranks, own.per_rank, own.bytes) == ((0, 1), True, 2 * 3 * 8)
    assert str(found["model/bias"].dtype) == "bfloat16"


def test_the_command_shows_them_as_a_tree_with_sums(url: str) -> None:
    shown = run("show", RUN, "--tensors", "--store", url)
    assert shown.code == 0
    head, _, titles, *rows = shown.out.splitlines()
    assert head.startswith(f"{RUN}@2#"), "a run alone is its newest step"
    assert titles.split() == ["name", "dtype", "shape", "size", "from"]
    assert [row.split()[0] for row in rows] == [
        "model/", "bias", "weight", "new", "own", "phase", "text"
    ]  # fmt: skip
    assert "12 KiB" in rows[0]
    assert rows[2].startswith("  weight")
    assert rows[2].endswith("2 shards of ranks 0-1")
    assert rows[4].endswith("each of ranks 0-1")


def test_a_pattern_picks_some_and_json_says_all_of_them(url: str) -> None:
    document = run("show", f"{RUN}@1", "--tensors", "model/*", "--json", "--store", url).document()
    assert [tensor["name"] for tensor in document["tensors"]] == ["model/bias", "model/weight"]
    assert document["bytes"] == sum(tensor["bytes"] for tensor in document["tensors"])
    nothing = run("show", f"{RUN}@1", "--tensors", "x*", "--store", url)
    assert nothing.code == 10
    assert "has no tensor like 'x*'" in nothing.err


def test_a_run_alone_is_its_newest_step(url: str) -> None:
    assert run("show", RUN, "--json", "--store", url).document()["generations"][-1]["step"] == 2
    missing = run("show", "no/such", "--store", url)
    assert (missing.code, missing.err.splitlines()[0]) == (
        10, "ckpt: there is no run 'no/such'"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "text"), [([0], "0"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8"), ([], "")]
)
def test_ranks_are_told_as_ranges(ranks: list[int], text: str) -> None:
    assert ranges_text(ranks) == text


# --------------------------------------------------------------------------- values


def test_values_are_shown_and_one_rank_of_several_is_named(url: str) -> None:
    shown = run("cat", f"{RUN}@2/own@rank-1", "--store", url)
    assert (shown.code, shown.out.splitlines()[-1]) == (0, "[1.5, 1.5, 1.5]")
    document = run("cat", f"{RUN}@1/old@rank-0", "--json", "--store", url).document()
    assert document["values"] == [0, 1, 2, 3]
    unsaid = run("cat", f"{RUN}@2/own", "--store", url)
    assert unsaid.code == 10
    assert "own@rank-0" in unsaid.err
    assert "own@rank-1" in unsaid.err


def test_statistics_tell_what_is_not_finite(url: str) -> None:
    arguments = ("cat", f"{RUN}@2/new@rank-0", "--stats", "--store", url)
    document = run(*arguments, "--json").document()
    assert document["statistics"] == {
        "count": 4, "nan": 1, "infinite": 1, "zero": 1, "min": 0.0, "max": 1.0, "mean": 0.5,
        "std": 0.5, "norm": 1.0,
    }  # fmt: skip
    assert sum(document["histogram"]["counts"]) == 2
    assert "NaN, inf    1, 1" in run(*arguments).out.splitlines()


def test_a_histogram_has_as_many_bins_as_asked_for_and_every_value(url: str) -> None:
    arguments = ("cat", f"{RUN}@1/model/weight", "--stats", "--bins", "7", "--store", url)
    counted = run(*arguments, "--json").document()["histogram"]
    assert len(counted["counts"]) == 7
    assert sum(counted["counts"]) == ROWS * COLUMNS
    bars = [line for line in run(*arguments).out.splitlines() if line.endswith("#")]
    assert len(bars) == 7
    assert max(line.count("#") for line in bars) == 40


def test_what_cannot_be_told_is_refused(url: str) -> None:
    for arguments, text in [
        ((f"{RUN}@1",), "is not of the form RUN@STEP/NAME"),
        ((f"{RUN}@1/text@rank-0", "--stats"), "are no numbers"),
        ((f"{RUN}@1/own@rank-0", "--stats", "--bins", "0"), "--bins 0: 1 to 1000 are possible"),
    ]:
        refused = run("cat", *arguments, "--store", url)
        assert (refused.code, text in refused.err) == (2, True), refused.err


KINDS = ("f2", "f4", "f8", "i1", "i8", "u4", "?", "c8")


@given(st.sampled_from(KINDS).flatmap(lambda k: st_numpy.arrays(k, st.integers(0, 40))), st.data())
def test_statistics_of_parts_are_those_of_the_whole(
    values: np.ndarray, data: st.DataObject
) -> None:
    found = Statistics()
    cut = data.draw(st.integers(0, values.size))
    with np.errstate(all="ignore"):
        for part in (values[:cut], values[cut:]):
            found.add(part)
        reals = as_reals(values).astype(np.float64)
        finite = reals[np.isfinite(reals)]
        # Squares of larger ones leave float64: they are infinite, as numpy's are.
        if finite.size and np.abs(finite).max() < 1e150:
            assert math.isclose(found.mean, finite.mean(), rel_tol=1e-6, abs_tol=1e-300)
            scale = max(1e-300, float(np.abs(finite).max()))
            assert abs(found.deviation - finite.std()) <= 1e-6 * scale
    assert (found.count, found.finite_count) == (values.size, finite.size)
    if finite.size:
        assert (found.minimum, found.maximum) == (finite.min(), finite.max())
        assert found.zero_count == np.count_nonzero(finite == 0)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
def test_extension_types_are_numbers_too(name: str) -> None:
    found = Statistics()
    values = np.array([0, 1, 3, 2]).astype(getattr(ml_dtypes, name))
    found.add(values)
    assert (found.minimum, found.maximum, found.mean, found.zero_count) == (0.0, 3.0, 1.5, 1)


def test_equal_values_share_one_bin() -> None:
    histogram = ValueHistogram.between(2.0, 2.0, 20)
    histogram.add(np.full(5, 2.0))
    assert histogram.counts.tolist() == [5]


# --------------------------------------------------------------------------- two checkpoints


def test_a_diff_tells_what_moved_and_what_came_and_went(url: str) -> None:
    document = run("diff", f"{RUN}@1", f"{RUN}@2", "--json", "--store", url).document()
    found = {one["name"]: one for one in document["tensors"]}
    assert document["counts"] == {
        "same": 3, "changed": 3, "reshaped": 2, "added": 2, "removed": 2
    }  # fmt: skip
    weight = found["model/weight"]
    assert (weight["change"], weight["changed_elements"]) == ("changed", 4 * COLUMNS)
    before = np.random.default_rng(7).normal(size=(ROWS, COLUMNS)).astype("f4")
    after = before.copy()
    after[:4] += np.float32(0.5)
    moved = np.linalg.norm(after.astype("f8") - before)
    assert math.isclose(weight["distance"], moved, rel_tol=1e-9)
    assert math.isclose(weight["relative"], moved / np.linalg.norm(before.astype("f8")))
    phase = found["phase@rank-0"]
    assert (phase["distance"], phase["relative"]) == (5.0, 1.0), "of complex numbers both parts"
    assert found["text@rank-0"]["change"] == "reshaped"
    assert "after" not in found["old@rank-1"]
    assert "before" not in found["new@rank-1"]


def test_people_see_first_what_came_and_went_then_what_moved_most(url: str) -> None:
    shown = run("diff", f"{RUN}@1", f"{RUN}@2", "--top", "8", "--store", url)
    assert shown.code == 0
    _, *rows, more, _, last = shown.out.splitlines()
    assert [row.split()[0] for row in rows[:6]] == ["added"] * 2 + ["removed"] * 2 + [
        "reshaped"
    ] * 2
    assert [row.split()[:2] for row in rows[6:]] == [
        ["changed", "phase@rank-0"], ["changed", "phase@rank-1"]
    ]  # fmt: skip
    assert more == "and 1 more: --top 0 shows all"
    assert last == "12 tensors: 3 changed, 3 same, 2 reshaped, 2 added, 2 removed"


def test_names_alone_read_no_value(url: str) -> None:
    shown = run("diff", f"{RUN}@1", f"{RUN}@2", "--names", "--prefix", "model", "--store", url)
    assert (shown.code, shown.out.splitlines()) == (0, ["2 tensors: 2 alike"])


def test_a_checkpoint_is_compared_with_its_copy_in_a_store(url: str, tmp_path: Path) -> None:
    copied = run("export", f"{RUN}@2", f"file://{tmp_path}", "--format", "zarr", "--store", url)
    assert copied.code == 0
    stored = f"file://{tmp_path}//{RUN}@2"
    shown = run("diff", f"{RUN}@2", stored, "--store", url)
    assert (shown.code, shown.out.splitlines()) == (0, ["10 tensors: 10 same"])
    assert run("cat", f"{stored}/own@rank-0").out.splitlines()[-1] == "[0.5, 0.5, 0.5]"
    assert run("show", stored, "--tensors", "own").code == 0


def test_text_that_changed_has_no_distance(tmp_path: Path) -> None:
    directory = tmp_path / "burst"
    with ckpt.open(f"ckpt+local://{directory}?targets=2&code=1+1") as store:
        for step, word in enumerate(("ab", "cd"), start=1):
            store.save("words", step, {"w": np.array([word])}).wait(60.0)
    try:
        shown = run("diff", "words@1", "words@2", "--json", "--store", f"ckpt+local://{directory}")
        (one,) = shown.document()["tensors"]
        assert (one["change"], one["changed_elements"], one["distance"]) == ("changed", 1, 0.0)
    finally:
        run("local", "stop", str(directory))
