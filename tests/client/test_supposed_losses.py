"""Which targets a drill does without: named, of a domain, of the worst one, drawn."""

from __future__ import annotations

import pytest

from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import Domain, TargetId
from ckpt_client.drill.losses import at_random, of_domain, of_names, together, worst_domain

DOMAINS = {
    TargetId(f"t{number}"): Domain.parse(text)
    for number, text in enumerate((
        "w0/r1/h1/d0", "w0/r1/h1/d1", "w0/r1/h2/d0", "w0/r2/h3/d0", "w1/r1/h4/d0", "w1/r3/h5/d0",
    ))
}  # fmt: skip


def targets(*numbers: int) -> frozenset[TargetId]:
    return frozenset(TargetId(f"t{number}") for number in numbers)


def columns(*numbers: int | None) -> tuple[TargetId | None, ...]:
    return tuple(None if number is None else TargetId(f"t{number}") for number in numbers)


def test_names_are_targets() -> None:
    loss = of_names(" t3,t1 ,", DOMAINS)
    assert (loss.what, loss.targets) == ("t1, t3", targets(1, 3))
    with pytest.raises(NotFound, match="no target 't33'") as caught:
        of_names("t1,t33", DOMAINS)
    assert "t3" in caught.value.hint


def test_a_domain_is_named_by_itself_or_with_what_it_stands_in() -> None:
    assert of_domain("rack=r2", DOMAINS).targets == targets(3)
    assert of_domain("host=h1", DOMAINS).targets == targets(0, 1)
    assert of_domain("power=w1", DOMAINS).targets == targets(4, 5)
    assert of_domain("target=t5", DOMAINS).targets == targets(5)
    one = of_domain("rack=w1/r1", DOMAINS)
    assert (one.what, one.targets) == ("rack w1/r1", targets(4))


def test_a_name_of_several_domains_is_refused_with_all_of_them() -> None:
    with pytest.raises(Refused, match="2 domains rack=r1: w0/r1 and w1/r1") as caught:
        of_domain("rack=r1", DOMAINS)
    assert caught.value.hint == "say which: --lose-domain rack=w0/r1"
    with pytest.raises(NotFound, match="no host 'h9'") as missing:
        of_domain("host=h9", DOMAINS)
    assert missing.value.hint


def test_losses_add_up() -> None:
    loss = together([of_names("t5", DOMAINS), of_domain("host=h1", DOMAINS)])
    assert (loss.what, loss.targets) == ("t5, host w0/r1/h1", targets(0, 1, 5))


def test_the_worst_domain_has_most_of_one_payload_then_most_of_all() -> None:
    spread = [columns(0, 2, 3, 4), columns(3, None, 5, 4)]
    assert worst_domain(spread, DOMAINS, "rack").targets == targets(0, 1, 2), "two of one payload"
    assert worst_domain(spread, DOMAINS, "host").targets == targets(3), "one of each, h3 and h4"
    assert worst_domain(spread, DOMAINS, "power").what == "the worst power, w0"
    assert worst_domain([columns(5)], DOMAINS, "host").targets == targets(5)
    assert worst_domain([columns(5, 5), columns(0, 2, 3)], DOMAINS, "power").targets == targets(
        0, 1, 2, 3
    )


def test_the_draw_is_the_seeds_and_of_those_that_hold_something() -> None:
    held = [TargetId("t4"), TargetId("t1"), TargetId("t4"), TargetId("t0")]
    drawn = [at_random(held, 2, seed).targets for seed in range(20)]
    assert drawn == [at_random(reversed(held), 2, seed).targets for seed in range(20)]
    assert set(drawn) == {targets(0, 1), targets(0, 4), targets(1, 4)}
    assert at_random(held, 9, 1).targets == targets(0, 1, 4)
    assert at_random(held, 1, 5).what == "1 target at random, seed 5"
    assert at_random(held, 0, 5).targets == frozenset()
