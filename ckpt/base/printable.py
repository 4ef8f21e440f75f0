"""Names as people may be shown them: what would turn, hide or end a line is written out.

A name that holds U+202E shows what follows backwards, one with a line's end forges the next line,
one with an escape drives the terminal. Whoever prints for people asks here; names themselves, and
what programs read, stay as they are.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Final

UTF_8_HINT: Final = "say it in UTF-8; if it was, set LC_ALL=C.UTF-8"
"""For a name that this process cannot take for text, or give to the system: in the locale C."""
_SHOWN_NOWHERE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Control and format characters, halves of surrogate pairs, ends of lines and paragraphs."""


def printable(text: str, keep: str = "") -> str:
    r"""The text with such characters as `\n`, `\x1b`, `\u202e` or `\U000e0001`.

    keep: which of them mean what they do, as the ends of lines of a text of several.
    """
    if text.isprintable():
        return text
    return "".join([char if char in keep else _escaped(char) for char in text])


def printable_json(document: str) -> str:
    r"""The same JSON, with such characters of its texts as `\u202e`: equal to who parses it."""
    if document.isascii() and "\x7f" not in document:
        return document
    # What is below U+0080 is the document's own, or escaped already, but for U+007F.
    return "".join(
        [json.dumps(char)[1:-1] if char > "~" and _is_hidden(char) else char for char in document]
    )


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode() if _is_hidden(char) else char


def _is_hidden(char: str) -> bool:
    return not char.isprintable() and unicodedata.category(char) in _SHOWN_NOWHERE
