"""The matrix of faults is true: its tests exist, the campaign strikes there, the page shows the
rest.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from tests.fault_matrix import MATRIX, PHASES, Fault, open_cells, open_table
from tests.sim.campaign import UNREACHABLE
from tests.sim.faults import FAULTS
from tests.sim.move_rounds import MOVE_FAULTS
from tests.sim.rebuilds import OWN_FAULTS
from tests.sim.scenario import PHASES as CAMPAIGN_PHASES

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "failure_model.md"


def number(name: str) -> str:
    """`F8` of `F8 misplaced`."""
    return name.split()[0]


@lru_cache
def functions_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_test_that_it_names_exists() -> None:
    for fault in MATRIX:
        for named in (each for tests in fault.tests.values() for each in tests):
            file, _, test = named.partition("::")
            assert (ROOT / file).is_file(), f"{fault.name}: {named}"
            assert not test or test in functions_in(ROOT / file), f"{fault.name}: {named}"


def test_the_campaign_strikes_where_it_says() -> None:
    struck = {number(name) for name in (*FAULTS, *OWN_FAULTS, *MOVE_FAULTS)}
    rows = {number(fault.name): fault for fault in MATRIX}
    assert struck <= rows.keys(), "each fault of the simulator has a row"
    for name, fault in rows.items():
        assert set(fault.in_campaign) <= CAMPAIGN_PHASES.keys() & set(fault.phases), fault.name
        assert bool(fault.in_campaign) == (name in struck), fault.name
    assert all(phase not in rows[number(name)].in_campaign for name, phase in UNREACHABLE)


def test_no_phase_is_unknown_and_no_fault_stands_twice() -> None:
    assert all(set(fault.phases) <= PHASES.keys() for fault in MATRIX)
    assert all(set("".join(fault.proofs)) <= set(fault.phases) for fault in MATRIX)
    numbers = [int(number(fault.name)[1:]) for fault in MATRIX]
    assert numbers == sorted(set(numbers))


def test_an_open_cell_is_one_without_a_test() -> None:
    fault = Fault("F99 example", "RSX", "R", {"S": ("a test",)})
    assert [phase for phase, tests in fault.tests.items() if not tests] == ["X"]
    assert all(phases for _, phases in open_cells())


def test_the_page_shows_what_is_open() -> None:
    shown = re.search(
        r"<!-- open cells -->\n(.*)<!-- end of open cells -->", PAGE.read_text(), re.DOTALL
    )
    assert shown is not None
    assert shown[1] == open_table(), "write open_table() of tests/fault_matrix.py there"
