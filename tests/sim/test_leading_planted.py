"""Bugs that several coordinators over one etcd must show, each by the seed that found it first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.landing import PLANTED, in_turn
from tests.sim.leading.history import run_seed
from tests.sim.leading.planted import PLANTS
from tests.sim.oracles import Violation
from tests.sim.planted import Plant


@dataclass(frozen=True, slots=True)
class Found:
    """By which seed, and what the history says."""

    seed: int
    text: str


FOUND: Mapping[str, Found] = {
    "records-without-fence": Found(52, "P10: c0/1 stores in term 1, 2 has the key"),
    "term-not-raised": Found(0, "P10: c1/1 leads in term 1, so did c0/1"),
    "no-answer-is-a-failure": Found(245, "P2: c1/1 acknowledges ticket 12 of term 2, not stored"),
    "newest-ticket-first": Found(0, "P2: ticket 6 of term 1 is stored after 7"),
    "a-standby-serves-readers": Found(3, "P3: reader7 ended with None"),
    "a-copy-as-it-is": Found(
        323, "P1: c0/1 begins term 2 with other labels, position than was stored"
    ),
    "sequence-not-compared": Found(76, "P1: etcd has other rows than was stored"),
    "a-watch-that-skips": Found(
        72, "P1: c1/1 begins term 3 with other rows, position than was stored"
    ),
    "lost-fence-is-no-failure": Found(51, "P2: c0/1 acknowledges ticket 15 of term 1, not stored"),
    "anybodys-key-is-mine": Found(0, "P10: c1/1 leads in term 1, so did c0/1"),
    "claimed-space-counts-twice": Found(
        61, "P6: sim run@40#3.3 rank 1 is given space of t0 that sim run@25#3.1 rank 1 has"
    ),
    "strays-dropped-by-a-stale-catalog": Found(
        0, "P1: sim run@10#2.1 rank 0 column 0 vanished from t0"
    ),
}
"""All within the first thousand seeds."""


def test_each_is_tried() -> None:
    assert set(FOUND) == {plant.name for plant in PLANTS}


@pytest.mark.parametrize("plant", in_turn(PLANTS, every=PLANTED), ids=lambda plant: str(plant.name))
def test_a_planted_bug_is_found_by_its_seed(plant: Plant) -> None:
    known = FOUND[plant.name]
    run_seed(known.seed)
    with plant.planted(), pytest.raises(Violation, match=known.text):
        run_seed(known.seed)
