"""What docs/filesystem.md shows is run, and prints what the page says."""

from __future__ import annotations

from tests.pages import ROOT, run_examples

PAGE = ROOT / "docs" / "filesystem.md"


def test_the_examples_of_the_page_do_what_it_says(url: str) -> None:
    run_examples(PAGE, "core", {"URL": url})
