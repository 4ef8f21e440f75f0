"""The pages of commands, options and errors are those of the code."""

from __future__ import annotations

from tests.reference import COMMANDS, ERRORS, commands_page, errors_page

WRITE = "run `python -m tests.reference`"


def test_the_page_of_commands_says_what_their_help_says() -> None:
    assert COMMANDS.read_text() == commands_page(), WRITE


def test_the_page_of_errors_lists_those_there_are() -> None:
    assert ERRORS.read_text() == errors_page(), WRITE
