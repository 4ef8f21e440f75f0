"""`ckpt VERB …`: which command this is, and what its end means to the shell.

Only the verb that was typed is imported. Any CkptError becomes a message and its exit code;
anything else is our mistake and keeps its traceback for `--debug`.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn, Protocol, TextIO, cast

from ckpt.aio.inherited import UNREAD, forget_output, write_any_letter
from ckpt.base.errors import CkptError, Refused
from ckpt.base.near import hint_of
from ckpt_client.cli.commands import VERBS
from ckpt_client.cli.exits import SIGNAL_BASE, ExitCode, exit_code_lines
from ckpt_client.cli.given import given_seconds
from ckpt_client.cli.meant import SEE_HELP, hint_of_verb
from ckpt_client.cli.named_store import name_store
from ckpt_client.cli.output import Output, show_error

TIMEOUT_S: Final = 30.0
AGAIN_S: Final = 0.01
_VALUED: Final = ("--store", "--timeout")
"""Common options whose value is a word of its own."""


class Verb(Protocol):
    """What each verb's module offers."""

    EXAMPLE: str
    """Shown under its help."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's own arguments."""

    def run(self, arguments: argparse.Namespace, output: Output) -> int:
        """The exit code. Raises CkptError."""


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end; everything that handles Ctrl-C also handles it."""


class CommandParser(argparse.ArgumentParser):
    """argparse, with errors in our format."""

    def error(self, message: str) -> NoReturn:
        raise Refused(message, hint=hint_of(message, self))


class ShowVersion(argparse.Action):
    """argparse's own action wants the version before anybody asks for it; looking it up is slow."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from ckpt.native.version import version_line

        sys.stdout.write(f"{version_line('ckpt')}\n")
        raise SystemExit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code; writes to stdout and stderr."""
    given = list(sys.argv[1:] if argv is None else argv)
    write_any_letter()
    output = Output(json="--json" in _options(given))
    code: int = ExitCode.OK
    with _signals() as received, _warnings_told(output):
        try:
            code = _run(given, output)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has enough (`ckpt ls | head`).
            forget_output()
            return UNREAD
        except OSError as error:
            forget_output()
            if code != ExitCode.FAILED:
                code = ExitCode.FAILED
                output.error(code, f"cannot write the answer: {error.strerror}")
        except KeyboardInterrupt as stop:
            code = SIGNAL_BASE + signal.SIGINT
            output.error(code, "interrupted", hint=str(stop))
    return SIGNAL_BASE + received[0] if received else code


def _options(given: Sequence[str]) -> Sequence[str]:
    """What may be an option: not what stands after `--`."""
    return given[: given.index("--")] if "--" in given else given


def _run(given: list[str], output: Output) -> int:
    is_debugging = "--debug" in _options(given)
    try:
        return _dispatch(given, output)
    except CkptError as error:
        if is_debugging:
            traceback.print_exc()
        return show_error(output, error)
    except BrokenPipeError:
        raise
    except Exception as error:
        if is_debugging:
            traceback.print_exc()
        hint = "the same command with --debug shows where"
        if isinstance(error, OSError):
            named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            output.error(ExitCode.FAILED, named, hint)
        else:
            output.error(ExitCode.FAILED, f"this is a bug: {type(error).__name__}: {error}", hint)
        return ExitCode.FAILED


def _dispatch(given: list[str], output: Output) -> int:
    try:
        return _run_verb(given, output)
    except SystemExit as end:  # --help and --version
        return end.code if isinstance(end.code, int) else ExitCode.OK


def _run_verb(given: list[str], output: Output) -> int:
    arguments = argparse.Namespace(json=False, debug=False, store=None, timeout=TIMEOUT_S)
    parser = _top_parser()
    head, rest = _split(_without_help_verb(given))
    arguments = parser.parse_args(head, arguments)
    if arguments.verb is None:
        if arguments.json:
            raise Refused("no command is named", hint=SEE_HELP)
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    if arguments.verb not in VERBS:
        raise Refused(
            f"there is no command {arguments.verb!r}",
            hint=hint_of_verb(arguments.verb),
        )
    module = importlib.import_module(VERBS[arguments.verb][0])
    # `entry` made it wait.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    verb = cast(Verb, module)
    own = CommandParser(
        prog=f"ckpt {arguments.verb}",
        description=module.__doc__,
        epilog=f"example:\n{_indented(verb.EXAMPLE)}\n\nexit codes:\n{exit_code_lines()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.configure(own)
    add_common(own)
    given_to_verb = own.parse_args(rest, arguments)
    name_store(given_to_verb)
    with _logged(output):
        return verb.run(given_to_verb, output)


def _without_help_verb(given: list[str]) -> list[str]:
    """`help` and `help VERB`, as many programs have it, are `--help` and `VERB --help`."""
    return [*given[1:2], "--help"] if given[:1] == ["help"] else given


def _split(given: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Up to the verb, and what stands after it: a `--` there is the verb's own."""
    end = 0
    while end < len(given) and given[end].startswith("-"):
        end += 2 if given[end] in _VALUED else 1
    return given[: end + 1], given[end + 1 :]


def _top_parser() -> CommandParser:
    lines = "\n".join(f"  {name:<12} {text}" for name, (_, text) in VERBS.items())
    parser = CommandParser(
        prog="ckpt",
        usage="ckpt COMMAND [options]",
        description="Inspect and operate a ckpt storage cluster.",
        epilog=f"commands:\n{lines}\n\n"
        "example:\n  ckpt ls --store ckpt+local:///scratch/burst\n\n"
        "environment:\n  CKPT_STORE, CKPT_SECRET_FILE, CKPT_WIRE, NO_COLOR\n\n"
        f"exit codes:\n{exit_code_lines()}\n\n"
        "RUN@STEP may also be a URL: ckpt+local:///DIR/RUN/STEP, ckpt://HOST:PORT/RUN/STEP.\n"
        "`ckpt COMMAND --help` says more. A name that begins with - goes after --.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("verb", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("--version", action=ShowVersion, help="print the version and exit")
    add_common(parser)
    return parser


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options that may stand before or after the verb; neither place overrides the other."""
    common = parser.add_argument_group("common options")
    suppress_default = argparse.SUPPRESS
    common.add_argument(
        "--store",
        metavar="URL",
        default=suppress_default,
        help="ckpt+local:///DIR or ckpt://HOST:PORT[,HOST:PORT...] [$CKPT_STORE]",
    )
    common.add_argument(
        "--json", action="store_true", default=suppress_default, help="answer in JSON"
    )
    common.add_argument(
        "--timeout",
        type=_seconds,
        metavar="TIME",
        default=suppress_default,
        help=f"how long to wait for an answer: 90, 2min [{TIMEOUT_S:g}s]",
    )
    common.add_argument(
        "--debug", action="store_true", default=suppress_default, help="tracebacks with errors"
    )


def _seconds(text: str) -> float:
    value = given_seconds(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds to wait for")
    return value


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does; the list says which one came."""
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            received.append(number)
        raise Stopped

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    try:
        before = {number: signal.signal(number, stop) for number in numbers}
    except ValueError:  # Not the main thread: its owner has the signals.
        yield received
        return
    show_dropped, sys.unraisablehook = sys.unraisablehook, _raise_again
    try:
        yield received
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = show_dropped
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """Python drops what a signal raises while it finalizes an object, as it often does in imports.
    What is raised here is dropped as well: an alarm comes once that is done.
    """
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(dropped)


@contextmanager
def _warnings_told(output: Output) -> Iterator[None]:
    """Warnings for users, as remarks without file and line."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        output.note(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def _logged(output: Output) -> Iterator[None]:
    """What the library logs for users, as remarks: nothing beside the answer with --json."""
    import logging  # The verb has imported it.

    class Remarks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            output.note(record.getMessage())

    log, remarks = logging.getLogger("ckpt"), Remarks(logging.WARNING)
    log.addHandler(remarks)
    try:
        yield
    finally:
        log.removeHandler(remarks)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


if __name__ == "__main__":
    sys.exit(main())
