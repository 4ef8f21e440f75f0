"""What does a job file say? fio's ini grammar: sections of settings, nothing is judged yet.

    ; or # begins a comment line
    [global]          affects the sections below it; may occur again
    [name]            a job
    include FILE      settings of FILE here; it holds no sections; may include others
    key=value         ${VAR} from the environment (empty when unset), $ncpus, $mb_memory, $pagesize
    key               a switch that is on

I read no file: whoever calls gives me a reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import Refused

GLOBAL: Final = "global"
INCLUDE_DEPTH_MAX: Final = 16
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_INCLUDE = re.compile(r"include\s+(\S.*)")

Reader = Callable[[str], str]
"""Path -> text. Raises Refused."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One `key=value`; the value is None for a bare word."""

    key: str
    value: str | None
    where: str
    """For messages: file and line, or `command line`."""


@dataclass(frozen=True, slots=True)
class Section:
    """`[name]` and what stands below it."""

    name: str
    settings: tuple[Setting, ...]
    where: str

    @property
    def is_global(self) -> bool:
        return self.name == GLOBAL


@dataclass(frozen=True, slots=True)
class Words:
    """What `$`-words stand for."""

    environment: Mapping[str, str]
    reserved: Mapping[str, str]
    """`ncpus`, `mb_memory`, `pagesize`."""

    def expand(self, text: str) -> str:
        """The text with every word replaced."""
        expanded = _VARIABLE.sub(lambda match: self.environment.get(match[1], ""), text)
        for name, value in self.reserved.items():
            expanded = re.sub(rf"\${name}\b", value, expanded)
        return expanded


def parse_file(path: str, read: Reader, words: Words) -> list[Section]:
    """The sections in order. Raises Refused naming file, line and cause."""
    sections: list[Section] = []
    name, begun, settings = "", path, list[Setting]()
    for where, line in _lines(path, read(path)):
        if (found := _section_name(line, where)) is not None:
            if name:
                sections.append(Section(name, tuple(settings), begun))
            name, begun, settings = found, where, []
            continue
        if not name:
            raise Refused(
                f"{where}: {line!r} stands before any section", hint="begin with [global]"
            )
        settings += _settings(line, where, read, words, (path,))
    if name:
        sections.append(Section(name, tuple(settings), begun))
    return sections


def parse_setting(text: str, where: str, words: Words) -> Setting:
    """`key=value` or a bare word. Raises Refused."""
    key, mark, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z][\w-]*", key.strip()):
        raise Refused(f"{where}: {text!r} is neither a setting nor a section")
    return Setting(key.strip(), words.expand(value.strip()) if mark else None, where)


def _settings(
    line: str, where: str, read: Reader, words: Words, within: Sequence[str]
) -> Iterator[Setting]:
    """Of one line; those of the file that it includes."""
    match = _INCLUDE.fullmatch(line)
    if match is None:
        yield parse_setting(line, where, words)
        return
    path = words.expand(match[1])
    if len(within) > INCLUDE_DEPTH_MAX:
        raise Refused(f"{where}: more than {INCLUDE_DEPTH_MAX} files include one another")
    for place, inner in _lines(path, read(path)):
        if _section_name(inner, place) is not None:
            raise Refused(f"{place}: an included file may not hold sections")
        yield from _settings(inner, place, read, words, (*within, path))


def _lines(path: str, text: str) -> Iterator[tuple[str, str]]:
    """(place, line) of what is neither blank nor a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and stripped[0] not in ";#":
            yield f"{path}:{number}", stripped


def _section_name(line: str, where: str) -> str | None:
    if not line.startswith("["):
        return None
    name = line[1:-1].strip()
    if not line.endswith("]") or not name or "]" in name:
        raise Refused(f"{where}: {line!r} is no section", hint="write [name]")
    return name
