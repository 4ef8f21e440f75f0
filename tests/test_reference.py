"""The pages of commands, options and errors are those of the code."""

from __future__ import annotations

import inspect

import ckpt
from tests.pages import ROOT
from tests.reference import COMMANDS, ERRORS, commands_page, errors_page

WRITE = "run `python -m tests.reference`"


def test_the_page_of_commands_says_what_their_help_says() -> None:
    assert COMMANDS.read_text() == commands_page(), WRITE


def test_the_page_of_errors_lists_those_there_are() -> None:
    assert ERRORS.read_text() == errors_page(), WRITE


def test_each_option_of_open_says_who_needs_it() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    table = page.partition("## `ckpt.open`")[2].partition("## ")[0]
    named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert named == list(inspect.signature(ckpt.open).parameters)
