"""Where a daemon's options come from: one frozen dataclass, TOML < environment < flags.

The class is the only place where an option is spelled: its fields give the TOML keys, the variables
(`CKPT_TARGET__READ_POOL_BYTES`) and the flags (`--read-pool-bytes`); the docstring under a field is
its help. Fields are str, int, float, bool, Path or `int | None`; those named `…_bytes` take sizes
such as `64MiB`. Help names a value by the field's unit, or as `Annotated[str, "HOST:PORT"]` says;
texts must say it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Final, Generic, NoReturn, TypeVar, get_type_hints

from ckpt.aio.secret import find_secret_file
from ckpt.base.errors import Refused
from ckpt.base.near import did_you_mean, hint_of
from ckpt.base.units import SECONDS_MAX, parse_bytes
from ckptd.option_words import docstrings, options_of, shown_default, unit_of

HELP_FLAGS: Final = frozenset({"-h", "--help"})

_Config = TypeVar("_Config")
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[_Config]):
    """The options, and where the secret lies."""

    config: _Config
    secret_file: Path
    secret_named: Path | None = None
    """What --secret-file says, which a local cluster joins with what DIR knows."""


def load(
    kind: type[_Config],
    *,
    program: str,
    description: str,
    example: str,
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> Loaded[_Config]:
    """Options of `ckptd PROGRAM`. Raises Refused; exits for --help and --print-…."""
    # Who does not ask for help need not have it read from the source.
    helps = docstrings(kind) if HELP_FLAGS.intersection(argv) else {}
    flags = _parser(kind, program, description, example, helps).parse_args(argv)
    if flags.print_toml:
        _print_toml_and_exit(kind, example)
    prefix = _prefix(program)
    texts: dict[str, object] = {}
    if flags.config is not None:
        texts |= _read_toml(kind, flags.config)
    given = {name: text for name, text in environ.items() if name.startswith(prefix)}
    variables = {name.removeprefix(prefix).lower(): text for name, text in given.items()}
    _check_known(kind, variables, f"the environment, {prefix}…,")
    texts |= variables
    names = {field.name for field in options_of(kind)}
    texts |= {name: value for name in names if (value := getattr(flags, name)) is not None}
    config = _build(kind, texts, program)
    if flags.print_config:
        _print_and_exit(config)
    named = flags.secret_file
    return Loaded(config, find_secret_file(None, environ, named=named), named)


class Parser(argparse.ArgumentParser):
    """argparse, with errors that look like all others: JSON when that is asked for."""

    def error(self, message: str) -> NoReturn:
        raise Refused(message, hint=hint_of(message, self))


def host_and_port(address: str) -> tuple[str, int]:
    """`HOST:PORT` or `[HOST]:PORT`; raises Refused."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise Refused(f"address {address!r} is not of the form HOST:PORT")
    return host.strip("[]"), int(port)


def as_text(config: object) -> dict[str, str | int | float | bool | None]:
    """Every option with its value, for the log at start."""
    values = {field.name: getattr(config, field.name) for field in options_of(type(config))}
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in values.items()
    }


# --------------------------------------------------------------------------- inside


def _prefix(program: str) -> str:
    """What an option's environment variable begins with; a shell takes no dash in its name."""
    return f"CKPT_{program.upper().replace('-', '_')}__"


def _parser(
    kind: type[object], program: str, description: str, example: str, helps: Mapping[str, str]
) -> argparse.ArgumentParser:
    sized = any(option.name.endswith("_bytes") for option in options_of(kind))
    parser = Parser(
        prog=f"ckptd {program}",
        description=description,
        epilog=f"example:\n  {example}\n\n"
        + "BYTES: 64MiB and 64M are binary, 64MB is decimal\n\n" * sized
        + f"environment: {_prefix(program)}OPTION, CKPT_SECRET_FILE, CKPT_WIRE",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    hints = get_type_hints(kind, include_extras=True)
    for option in options_of(kind):
        flag = "--" + option.name.replace("_", "-")
        text = helps.get(option.name, "").replace("%", "%%")
        if shown := shown_default(option, flag):
            text = f"{text} [{shown}]".strip()
        if hints[option.name] is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, default=None, action=action, help=text)
        else:
            metavar = unit_of(option.name, hints[option.name])
            parser.add_argument(flag, default=None, metavar=metavar, help=text)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML with these options")
    parser.add_argument("--secret-file", type=Path, metavar="FILE", help="the cluster's secret")
    parser.add_argument(
        "--json",
        action="store_true",
        help="say why it cannot start in one line of JSON, as all else that it writes is",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the options in force as JSON and exit"
    )
    parser.add_argument(
        "--print-toml", action="store_true", help="print a file for --config to start from and exit"
    )
    return parser


def _read_toml(kind: type[object], path: Path) -> dict[str, object]:
    try:
        values: dict[str, object] = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{path} is not TOML: {error}") from None
    _check_known(kind, values, str(path))
    return values


def _check_known(kind: type[object], names: Iterable[str], where: str) -> None:
    """Raises Refused for names of options that the program has not."""
    known = [field.name for field in options_of(kind)]
    if unknown := sorted(set(names) - set(known)):
        raise Refused(
            f"{where} has options that nobody knows: {', '.join(unknown)}",
            hint=did_you_mean(unknown[0], known, f"known are {', '.join(known)}"),
        )


def _build(kind: type[_Config], texts: dict[str, object], program: str) -> _Config:
    hints = get_type_hints(kind)
    missing = [
        field.name
        for field in options_of(kind)
        if field.default is MISSING and field.default_factory is MISSING and field.name not in texts
    ]
    if missing:
        flags = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise Refused(f"needs {flags}", hint=f"see ckptd {program} --help")
    return kind(**{name: _value(name, hints[name], text) for name, text in texts.items()})


def _value(name: str, hint: object, given: object) -> object:
    """A TOML value or a text as the field's type."""
    if hint is bool:
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        found = words.get(str(given).lower())
        if found is None:
            raise Refused(f"{name} = {given!r}: true or false")
        return found
    if hint is Path:
        if not str(given):
            # It would be the directory that the daemon happens to start in.
            raise Refused(f"{name} is empty", hint="is a variable of the shell not set?")
        return Path(str(given))
    if hint in (int, int | None):
        if name.endswith("_bytes"):
            return parse_bytes(str(given))
        try:
            return _bounded(name, int(str(given)))
        except ValueError:
            raise Refused(f"{name} = {given!r} is not a whole number") from None
    if hint is float:
        try:
            number = float(str(given))
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise Refused(f"{name} = {given!r} is not a number")
        return _bounded(name, number)
    assert hint is str, f"option {name} of type {hint} is not supported"
    return str(given)


def _bounded(name: str, found: _Number) -> _Number:
    """A time has an end: no lock waits for longer, and its microseconds have to fit a message."""
    return min(found, type(found)(SECONDS_MAX)) if name.endswith("_s") else found


def _print_and_exit(config: object) -> NoReturn:
    sys.stdout.write(json.dumps(as_text(config), indent=2) + "\n")
    raise SystemExit(0)


def _print_toml_and_exit(kind: type[object], example: str) -> NoReturn:
    # Nothing that each of many targets should import at its start.
    from ckptd.toml_file import commented_toml

    sys.stdout.write(commented_toml(kind, example))
    raise SystemExit(0)
