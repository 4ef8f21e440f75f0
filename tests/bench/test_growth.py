"""Costs of a few sizes become ratios, and a cliff is named."""

from __future__ import annotations

import json

import pytest

from ckptbench.cli import main
from ckptbench.commands.goals import settings_of
from ckptbench.commands.growth import COMMON
from ckptbench.growth import AXES, Growth, Point, growth_text
from ckptbench.job.grammar import Section
from ckptbench.job.jobs import build_jobs


def axis(*costs: tuple[int, float]) -> Growth:
    """(ranks, CPU seconds of a save), all of them the stagers'."""
    points = tuple(Point(size, size << 22, {"stager": cost}) for size, cost in costs)
    return Growth("ranks", points)


def test_what_is_linear_has_no_cliff_and_the_same_cost_for_each_one_more() -> None:
    found = axis((4, 1.4), (16, 2.6), (64, 7.4))
    assert found.cliffs == []
    assert found.growth == pytest.approx((2.6 / 1.4 / 4, 7.4 / 2.6 / 4))
    assert found.added_s == pytest.approx((0.1, 0.1))


def test_what_grows_faster_is_a_cliff_where_it_does() -> None:
    found = axis((4, 1.0), (16, 4.0), (64, 20.0))
    assert found.growth == pytest.approx((1.0, 1.25))
    assert found.cliffs == [64]
    lines = growth_text([found]).splitlines()
    assert lines[0].split()[:7] == ["ranks", "payload", "CPU", "s", "s/GB", "ms/rank", "stager"]
    assert lines[3].split() == [
        "64",
        "256",
        "MiB",
        "20.000",
        "74.51",
        "312.50",
        "20.000",
        "1.25",
        "333.333",
    ]
    assert lines[4] == "CLIFF    more than 1.15 x linear at 64"


@pytest.mark.parametrize("name", sorted(AXES))
def test_every_size_of_an_axis_is_a_sound_job_and_changes_one_thing(name: str) -> None:
    for size in AXES[name].sizes:
        text = f"{COMMON} {AXES[name].settings(size)}"
        (job,) = build_jobs([[Section(name, settings_of(text, "growth"), "growth")]], []).jobs
        options = job.options
        total = options.ranks * options.size
        grown = {
            "bytes": options.size >> 20,
            "ranks": total >> 22,
            "targets": options.targets,
            "tensors": total // options.tensor_size[0],
        }
        assert grown[name] == size
    assert list(AXES[name].sizes) == sorted(AXES[name].sizes)


@pytest.mark.parametrize(("sizes", "told"), [("4,x", "is not like"), ("8,4", "not ascend")])
def test_sizes_that_cannot_be_are_refused(
    sizes: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["growth", "--sizes", sizes])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("warm_daemons")
def test_the_command_measures_real_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--size=1Mi", "--numjobs=1", "--loops=1", "--warmups=1", "--sink=null"]
    assert main(["growth", "--axis", "targets", "--sizes", "3,4", "--json", *flags]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [one["size"] for one in found["points"]] == [3, 4]
    for one in found["points"]:
        assert one["bytes"] == 1 << 20
        assert set(one["cpu_s"]) == {"trainer", "stager", "targets", "coordinator"}
        assert all(cost > 0 for cost in one["cpu_s"].values())
