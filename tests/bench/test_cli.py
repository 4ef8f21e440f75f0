"""Options become plans; what cannot be is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckptbench.burst import BurstPlan
from ckptbench.cli import burst_plan, main, parser, restore_plan
from ckptbench.restore import RestorePlan


def test_without_options_a_burst_is_the_one_that_the_goals_are_stated_for() -> None:
    plan = burst_plan(parser().parse_args(["burst"]), isolated=True)
    assert plan == BurstPlan(
        ranks=4,
        bytes=256 * MiB,
        code=Code(4, 2),
        targets=6,
        repetitions=5,
        sinks=("null", "disk"),
        tcp=True,
        isolated=True,
    )


def test_every_option_reaches_the_plan(tmp_path: Path) -> None:
    words = ["--ranks", "2", "--bytes", "8MiB", "--code", "2+1", "--targets", "3", "--cell", "1MiB"]
    words += ["--repetitions", "1", "--no-tcp", "--directory", str(tmp_path), "--quick"]
    expected = {"ranks": 2, "bytes": 8 * MiB, "code": Code(2, 1), "targets": 3, "repetitions": 1}
    for plan in (
        burst_plan(parser().parse_args(["burst", "--sink", "disk", *words]), isolated=False),
        restore_plan(parser().parse_args(["restore", *words])),
    ):
        assert {name: getattr(plan, name) for name in expected} == expected
        assert (plan.tcp, plan.directory, plan.quick) == (False, tmp_path, True)
        assert plan.cell_bytes == MiB
    assert burst_plan(parser().parse_args(["burst", "--sink", "disk"]), isolated=False).sinks == (
        "disk",
    )


@pytest.mark.parametrize("kind", [BurstPlan, RestorePlan])
def test_a_plan_that_cannot_be_is_refused(kind: type[BurstPlan] | type[RestorePlan]) -> None:
    for options in ({"targets": 5}, {"ranks": 0}, {"repetitions": 0}, {"bytes": 4097}):
        with pytest.raises(Refused):
            kind(**options)  # type: ignore[arg-type]


def test_a_refused_plan_is_an_exit_code_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", "--targets", "5"]) == 2
    assert "needs 6 targets" in capsys.readouterr().err
