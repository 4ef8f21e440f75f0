"""Every option of every command line says what its value is, and shows its default in that unit."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Refused
from ckpt.base.units import (
    GiB,
    KiB,
    MiB,
    TiB,
    exact_bytes,
    format_bytes,
    format_number,
    format_seconds,
    parse_bytes,
)
from ckpt_client.cli.commands import VERBS
from ckpt_client.cli.main import main as ckpt
from ckptbench.cli import COMMANDS
from ckptbench.job.flags import TOOL_FLAGS
from ckptbench.job.guide import command_help, help_text
from ckptbench.job.options import TABLE
from ckptd.cli import PROGRAMS, load

RAW_BYTES_MAX = 4096
"""A larger number of bytes is written with its unit."""
GOALS = ("burst", "restore", "rules")
"""Commands of ckptbench whose flags are those of jobs; the rest have a parser of their own."""

Main = Callable[[Sequence[str]], int | None]


def _of_verb(verb: str) -> Main:
    return lambda words: ckpt([verb, *words])


COMMAND_LINES: dict[str, Main] = {
    "ckpt": ckpt,
    **{f"ckpt {verb}": _of_verb(verb) for verb in VERBS},
    **{f"ckptd {program}": load(program) for program in PROGRAMS},
    **{f"ckptbench {name}": main for name, main in COMMANDS.items() if name not in GOALS},
}


def _is_one_letter(metavar: str) -> bool:
    """Also `N,N,…`; not `K+M`, which is how a code is written."""
    return len(set(re.findall("[A-Za-z]", metavar))) < 2


def _is_raw_bytes(default: str) -> bool:
    return default.isdigit() and int(default) > RAW_BYTES_MAX


def offences(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Options whose value has no name, whose default is not shown or is a bare number of bytes."""
    for action in parser._actions:
        name = "/".join(action.option_strings) or action.dest
        if action.nargs == 0 or action.help == argparse.SUPPRESS:
            continue
        shown = re.findall(r"\[([^]]*)\]", action.help or "")
        if action.default not in (None, argparse.SUPPRESS, [], "") and not shown:
            yield f"{parser.prog} {name}: its default {action.default!r} is not in its help"
        if action.choices:
            continue
        if not isinstance(action.metavar, str) or _is_one_letter(action.metavar):
            yield f"{parser.prog} {name}: metavar {action.metavar!r} does not say what it is"
        elif action.metavar.startswith("BYTES") and any(map(_is_raw_bytes, shown)):
            yield f"{parser.prog} {name}: default {shown} is not shown as bytes are given"


def parser_of(main: Main, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """The one that answers `--help`."""
    asked: list[argparse.ArgumentParser] = []
    monkeypatch.setattr(
        argparse.ArgumentParser, "print_help", lambda parser, file=None: asked.append(parser)
    )
    with suppress(SystemExit):
        main(["--help"])
    assert len(asked) == 1
    return asked[0]


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_every_option_says_what_its_value_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = parser_of(COMMAND_LINES[name], monkeypatch)
    assert parser.prog == name
    assert list(offences(parser)) == []


def test_a_letter_a_missing_name_and_a_raw_number_of_bytes_are_found() -> None:
    parser = argparse.ArgumentParser(prog="bad")
    parser.add_argument("--code", metavar="K+M")
    parser.add_argument("--pool", metavar="X")
    parser.add_argument("--sizes", metavar="N,N,…")
    parser.add_argument("--name")
    parser.add_argument("--room", metavar="BYTES", help="of the pool [33554432]")
    parser.add_argument("--cell", metavar="BYTES", default=MiB, help="of a fragment")
    parser.add_argument("--rest", metavar="SECONDS", default=3.0, help="between two tries")
    parser.add_argument("--form", choices=("npz", "zarr"), default="npz", help="what is written")
    found = [line.split(":")[0] for line in offences(parser)]
    assert found == [
        f"bad --{name}" for name in ("pool", "sizes", "name", "room", "cell", "rest", "form")
    ]


def test_what_a_benchmark_is_told_is_named_and_sizes_are_shown_as_they_are_given() -> None:
    text = help_text()
    for name, (metavar, _) in TOOL_FLAGS.items():
        assert f"--{name}={metavar} " in text
        assert not _is_one_letter(metavar)
    sized = [name for name, one in TABLE.items() if one.kind.is_bytes]
    assert {"size", "tensor_size", "bs", "cell"} <= set(sized)
    for name in sized:
        (default,) = re.findall(r"default: (.*)", command_help(name))
        assert not any(map(_is_raw_bytes, default.split("-"))), (name, default)


@given(st.integers(0, (1 << 63) - 1))
def test_a_size_that_is_shown_is_read_back(count: int) -> None:
    assert parse_bytes(exact_bytes(count)) == count


@pytest.mark.parametrize("text", ["9223372036854775808", "8388608TiB", "9" * 30 + "GB"])
def test_a_size_that_no_file_has_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="8 EiB or more"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (1000, "1000"), (4 * KiB, "4KiB"), (1536 * KiB, "1536KiB"), (3 * GiB, "3GiB")],
)
def test_a_size_has_the_largest_unit_that_divides_it(count: int, text: str) -> None:
    assert exact_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (KiB, "1 KiB"), (int(1.25 * GiB), "1.25 GiB"),
        (int(999.4 * MiB), "999 MiB"), (int(999.7 * MiB), "1000 MiB"), (GiB - 1, "1024 MiB"),
        (16 * KiB * TiB, "16384 TiB"),
    ],
)  # fmt: skip
def test_a_size_has_three_digits_or_all_before_its_point(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"), (850e-6, "850 us"), (999.7e-6, "1 ms"), (0.0123, "12.3 ms"),
        (0.9994, "999 ms"), (0.9997, "1 s"), (4.56, "4.56 s"), (119, "119 s"), (119.7, "2 min"), (120, "2 min"),
        (200, "3 min 20 s"), (3600, "60 min"), (7200, "2 h"), (7500, "2 h 5 min"),
        (48 * 3600 - 1, "47 h 59 min"), (48 * 3600, "2 d"), (30 * 86400 + 7200.5, "30 d 2 h"),
        (1e9, "11574 d 1 h"),
    ],
)  # fmt: skip
def test_a_time_has_the_units_that_people_count_in(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.006301, "0.0063"), (4.5678, "4.57"), (999.6, "1,000"), (81920.4, "81,920")],
)
def test_a_large_number_has_no_exponent(value: float, text: str) -> None:
    assert format_number(value) == text
