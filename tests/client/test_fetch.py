"""What `ckpt fetch --lost` says of names that a killed fetch left with what was lost."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.cli.verbs.fetch import left_unnamed


def view(step: int, generation: str, *, readable: bool) -> StepView:
    state = "committed" if readable else "lost"
    return StepView(
        "r", step, generation, state, False, 1 << 20, 1, "4+2", 2, 0,
        "device", 0, readable, 0.01, 0.5, 0.0, 0.0, 0, "t0", False, "", 2, 0,
    )  # fmt: skip


LOST, AGAIN = view(2, "1.2", readable=False), view(2, "3.1", readable=True)


def reasons(*views: StepView) -> list[str]:
    return [reason for _, reason in left_unnamed(views)]


def test_what_was_lost_and_saved_again_is_named_with_the_commands_that_move_its_labels() -> None:
    (reason,) = reasons(replace(LOST, names=("best", "a b"), pinned=True), AGAIN)
    assert reason.startswith("#1.2 is lost and still has best, a b, a pin; ")
    assert "saved again as #3.1" in reason
    ends = "ckpt tag r@2 best 'a b' && ckpt unpin r@2 && ckpt pin r@2"
    assert reason.endswith(f": {ends}")
    (reason,) = reasons(replace(LOST, names=("best",)), AGAIN)
    assert reason.endswith(": ckpt tag r@2 best")
    (reason,) = reasons(replace(LOST, pinned=True), AGAIN)
    assert reason.endswith(": ckpt unpin r@2 && ckpt pin r@2")


def test_what_has_no_label_or_was_not_saved_again_is_not_named() -> None:
    named = replace(LOST, names=("best",))
    assert not reasons(LOST, AGAIN)
    assert not reasons(named)
    assert not reasons(named, replace(AGAIN, step=3))
    assert not reasons(replace(named, aside=True), AGAIN)
    assert not reasons(replace(AGAIN, names=("best",)))
