"""Every cell of docs/compare.md says where it comes from: ours names a test or a job that is there,
the others' a file of their source. What these files say: tests/frameworks/test_compare.py.
"""

from __future__ import annotations

import re

from tests.pages import ROOT

PAGE = ROOT / "docs" / "compare.md"
NOT_HERE = "no: "
"""Begins what ckpt does not do; no test shows that."""


def table(heading: str) -> list[list[str]]:
    """Of the part of the page that begins so: its rows, the first one the head."""
    part = PAGE.read_text().partition(heading)[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def test_each_cell_has_its_source() -> None:
    cells, sources = table("# Beside"), table("## Where each cell")
    assert len(cells) > 10
    assert cells[0] == sources[0]
    assert [row[0] for row in cells] == [row[0] for row in sources]
    bare = [
        (said[0], head)
        for said, named in zip(cells[1:], sources[1:], strict=True)
        for head, cell, source in zip(cells[0][1:], said[1:], named[1:], strict=True)
        if not (cell.startswith(NOT_HERE) or re.search(r"`\w+/|\]\(https://", source))
    ]
    assert bare == []


def test_each_test_and_job_that_it_names_is_there() -> None:
    named = re.findall(r"`((?:tests|benchmarks)/[\w./-]+)`", PAGE.read_text())
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_versions_are_those_of_the_links() -> None:
    page = PAGE.read_text()
    intro = page.partition("\n|")[0]
    tags = {tag.removeprefix("v") for tag in re.findall(r"/blob/([^/]+)/", page)}
    assert tags == set(re.findall(r"\b\d+\.\d+\.\d+\b", intro))
