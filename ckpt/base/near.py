"""Did you mean …? The known word that is nearest to one that nobody knows."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Final

_UNKNOWN: Final = re.compile(r"unrecognized arguments: (-[^\s=]+)|invalid choice: '([^']*)'")
"""How argparse reports a word that it does not know."""


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint that names the nearest of the known words; `otherwise` where none is near. Capitals
    count as small letters.
    """
    by_letters = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(word.casefold(), by_letters, n=1)
    return f"did you mean {by_letters[near[0]]}?" if near else otherwise


def hint_of(complaint: str, parser: argparse.ArgumentParser) -> str:
    """The next step after a complaint of argparse: the nearest option or choice, else --help."""
    see = f"see {parser.prog} --help"
    found = _UNKNOWN.search(complaint)
    return did_you_mean(found[1] or found[2], _words(parser), see) if found else see


def _words(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What the parser would have taken."""
    for action in parser._actions:
        yield from action.option_strings
        yield from map(str, action.choices or ())
