"""The pages of reference say what the code says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from tests.pages import ROOT
from tests.reference import IN_PART, WHOLE, written
from tests.reference.blocks import filled
from tests.reference.metrics import metric_names
from tests.tree import pages, parsed


@pytest.fixture(scope="module", autouse=True)
def _parsed() -> Iterator[None]:
    with parsed():
        yield


@pytest.mark.parametrize("page", [*WHOLE, *IN_PART], ids=lambda page: str(page.name))
def test_the_page_says_what_the_code_says(page: Path) -> None:
    assert page.read_text() == written(page), "run `python -m tests.reference`"


def test_a_page_has_a_block_for_each_thing_of_the_code_and_no_other() -> None:
    page = "# A\n\n<!-- generated: A -->\nold\n<!-- end -->\n\nProse.\n"
    assert filled(page, {"A": "new\n"}) == page.replace("old", "new")
    for blocks in ({"A": "", "B": ""}, {}):
        with pytest.raises(AssertionError):
            filled(page, blocks)
    with pytest.raises(AssertionError):
        filled(page + page, {"A": ""})


def test_each_metric_that_a_page_names_is_there() -> None:
    """By its first word: a package of ours is no metric."""
    known = metric_names()
    first = {name.split("_")[1] for name in known}
    named = {
        name
        for page in pages()
        for name in re.findall(r"\bckpt_[a-z]+(?:_[a-z]+)*(?![a-z_])", page.text)
        if name.split("_")[1] in first
    }
    assert len(named) > 10
    assert named <= known


def test_the_glossary_goes_by_the_alphabet() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    words = [word.casefold() for word in re.findall(r"^\| \*\*(.+?)\*\* \|", page, re.MULTILINE)]
    assert len(words) > 40
    assert words == sorted(set(words))


def test_each_option_of_open_says_who_needs_it() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    table = page.partition("## `ckpt.open`")[2].partition("## ")[0]
    named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert named == list(inspect.signature(ckpt.open).parameters)
