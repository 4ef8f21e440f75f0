"""What `ckptbench gpu` says while it measures."""

from __future__ import annotations

from ckptbench.commands.gpu import why_ended
from ckptbench.gpu.plan import CPU_WIDTH, GPU_WIDTH, GpuPlan, usual_width
from ckptbench.gpu.progress import RoundProgress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_rounds_are_told_with_what_is_left_of_them() -> None:
    said: list[str] = []
    clock = Clock()
    for number in RoundProgress(said.append, clock).rounds("training", 3):
        clock.now_s += 90.0 if number else 30.0
    assert said == [
        "training: round 0 of 3, which does not count",
        "training: round 1 of 3, about 90 s left",
        "training: round 2 of 3, about 2 min left",
        "training: round 3 of 3, about 70 s left",
    ]


def test_a_cpu_trains_a_model_that_it_can_train() -> None:
    """A step of the accelerators' model takes a core minutes, and there are 240 of them."""
    assert usual_width("cpu") == CPU_WIDTH < usual_width("cuda:0") == GPU_WIDTH
    assert GpuPlan("cpu", "", width=usual_width("cpu")).training_steps == 240


def test_a_measurement_that_a_signal_ended_says_which_one_and_what_helps() -> None:
    killed = why_ended(-9)
    assert (killed.message, "smaller --size" in killed.hint) == (
        "the measurement was ended by SIGKILL",
        True,
    )
    assert (why_ended(-11).message, why_ended(-11).hint) == (
        "the measurement was ended by SIGSEGV",
        "",
    )
    assert "stands above" in why_ended(1).message
