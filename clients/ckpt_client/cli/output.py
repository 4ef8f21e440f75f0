"""How does a command speak? Results on stdout, everything else on stderr, JSON when asked.

With `--json` stdout is one document; a command that takes long writes JSON lines instead, of which
the last has `"message_type": "summary"`. An error is one line of JSON on stderr. Colours and live
progress need a terminal, colours also no NO_COLOR; rich is imported only there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TextIO

import msgspec

from ckpt.base.errors import CkptError
from ckpt.base.printable import printable, printable_json
from ckpt.base.units import format_bytes, format_seconds
from ckpt_client.cli.tables import Narrowed, Row, Tone, columns_of, narrowed, parted, table_lines

SLOW_S = 2.0
"""A longer wait is announced."""
REPEAT_S = 10.0
"""Pause between two lines of progress where there is no terminal."""

RATE_BYTES_LEAST = 1 << 20
PROSE_LEAST: Final = 30
"""Columns; text is not wrapped into fewer."""
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
AHEAD_S: Final = 60.0
"""The clocks of one cluster differ by no more; a time further ahead is shown as such."""
_TONE: Final = re.compile(rf"(\x1b\[(?:0|{'|'.join(tone.value for tone in Tone)})m)")


class Output:
    """I write the output of one command, for people or, with `json`, for programs."""

    def __init__(
        self,
        *,
        json: bool,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.json = json
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._colored = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"

    # ----------------------------------------------------------------------- results

    def line(self, text: str = "") -> None:
        """A line for people; nothing with --json."""
        if not self.json:
            self._put(_shown(text))

    def prose(self, head: str, text: str) -> None:
        """A line for people; on a terminal wrapped between words, below where its text begins."""
        width = self._width()
        indent = columns_of(_TONE.sub("", head))
        if width - indent < PROSE_LEAST:
            self.line(f"{head}{text}")
            return
        lines = textwrap.wrap(
            printable(text), width - indent, break_long_words=False, break_on_hyphens=False
        )
        for number, line in enumerate(lines or [""]):
            self.line(f"{' ' * indent if number else head}{line}")

    def document(self, value: object) -> None:
        """The answer as JSON; nothing without --json. Indented, since people read it as well."""
        if self.json:
            text = msgspec.json.format(msgspec.json.encode(value), indent=2)
            self._put(printable_json(text.decode()))

    def record(self, message_type: str, value: Mapping[str, object]) -> None:
        """One JSON line of a command that takes long; flushed, so that a pipe sees it now."""
        if self.json:
            encoded = msgspec.json.encode({"message_type": message_type, **value})
            self._put(printable_json(encoded.decode()), now=True)

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[Row],
        indent: str = "",
        *,
        spare: Sequence[str] = (),
        grouped: bool = False,
    ) -> None:
        """Columns as wide as needed; a column whose head starts with `>` is right-aligned.

        On a terminal that is too narrow the first column becomes headings, where it is `grouped`;
        then `spare` columns are left out, the first of them first, and a line says so.
        """
        width = self._width()
        shown = (
            narrowed(head, rows, width, spare, grouped=grouped) if width else Narrowed(head, rows)
        )
        inset = f"{indent}  " if shown.headings else indent
        for number, text in enumerate(table_lines(shown.head, shown.rows, inset, self.tone)):
            if number and shown.headings and shown.headings[number - 1]:
                self.line(f"{indent}{shown.headings[number - 1]}")
            self.line(self.tone(text, Tone.HEAD) if number == 0 else text)
        if shown.left_out:
            names = ", ".join(shown.left_out)
            self.line(f"{indent}({width} columns have no room for {names}; a pipe or --json does)")

    def parts(self, head: Sequence[str], rows: Sequence[Row]) -> None:
        """A table of which nothing may be left out: on a terminal that is too narrow its columns
        stand in several tables, one below the other, each with the first column.
        """
        width = self._width()
        several = parted(head, rows, width) if width and len(head) > 1 else [(head, rows)]
        for number, (part_head, part_rows) in enumerate(several):
            if number:
                self.line()
            self.table(part_head, part_rows)

    def tone(self, text: str, tone: Tone) -> str:
        """The text in colour where stdout is a terminal that wants it."""
        if self.json or not self._colored or not self._stdout.isatty():
            return text
        return f"\x1b[{tone.value}m{text}\x1b[0m"

    # ----------------------------------------------------------------------- beside the result

    def note(self, text: str) -> None:
        """A remark on stderr for people; nothing with --json."""
        if not self.json:
            self._say(printable(f"ckpt: {text}"))

    def error(self, code: int, message: str, hint: str = "") -> None:
        """What went wrong: thing and cause, then the next step."""
        if self.json:
            told = {"message_type": "exit_error", "code": code, "message": message, "hint": hint}
            self._say(printable_json(msgspec.json.encode(told).decode()))
            return
        self._say(printable(f"ckpt: {message}"))
        if hint:
            self._say(printable(f"      {hint}"))

    def is_interactive(self) -> bool:
        """Whether a person can be asked: a terminal on stdin and stderr, and no --json."""
        return not self.json and sys.stdin.isatty() and self._stderr.isatty()

    def ask(self, question: str) -> bool:
        """Yes or no, of the person at the terminal; an end of input is no."""
        self._stderr.write(f"{printable(question)} [y/N] ")
        self._stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    @contextlib.contextmanager
    def waiting(self, what: str, progress: Callable[[], str] = str) -> Iterator[None]:
        """Show what is waited for once that takes more than SLOW_S: live, or a line now and then.

        `progress` is called from another thread and says how far it is.
        """
        if self.json:
            yield
            return
        done = threading.Event()
        show = self._spin if self._stderr.isatty() else self._tell
        teller = threading.Thread(target=show, args=(what, progress, done), daemon=True)
        with contextlib.suppress(RuntimeError):  # Without a thread nothing is shown.
            teller.start()
        try:
            yield
        finally:
            done.set()
            if teller.is_alive():
                teller.join()

    # ----------------------------------------------------------------------- inside

    def _width(self) -> int:
        """Of the terminal, in columns; 0 where it is unknown, or stdout is none."""
        return shutil.get_terminal_size((0, 0)).columns if self._stdout.isatty() else 0

    def _put(self, text: str, *, now: bool = False) -> None:
        """Raises CkptError, and BrokenPipeError when nobody reads it."""
        try:
            self._stdout.write(text + "\n")
            if now:
                self._stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CkptError(f"cannot write the answer: {error.strerror}") from None

    def _tell(self, what: str, progress: Callable[[], str], done: threading.Event) -> None:
        wait_s = SLOW_S
        while not done.wait(wait_s):
            self._say(printable(f"ckpt: {_joined(what, progress())}"))
            wait_s = REPEAT_S

    def _spin(self, what: str, progress: Callable[[], str], done: threading.Event) -> None:
        if done.wait(SLOW_S):
            return
        from rich.console import Console
        from rich.text import Text  # A name's [red] is no markup.

        console = Console(file=self._stderr, no_color=not self._colored, highlight=False)
        with console.status(Text(printable(_joined(what, progress())))) as status:
            while not done.wait(0.2):
                status.update(Text(printable(_joined(what, progress()))))

    def _say(self, text: str) -> None:
        # Whoever closed stderr does not want to hear it, and a full disk cannot.
        with contextlib.suppress(OSError):
            self._stderr.write(text + "\n")
            self._stderr.flush()


def rate_text(count_bytes: int, seconds: float) -> str:
    """`1.25 GiB in 3.1 s (413 MiB/s)`, without the rate where it would mean nothing."""
    text = f"{format_bytes(count_bytes)} in {format_seconds(seconds)}"
    if count_bytes < RATE_BYTES_LEAST or seconds <= 0:
        return text
    return f"{text} ({format_bytes(count_bytes / seconds)}/s)"


def age_text(at_s: float) -> str:
    """`3 min 20 s ago`, `40 min ago` for a wall-clock time; a dash for none. Its clock may be ahead
    of ours.
    """
    if at_s <= 0:
        return "-"
    past_s = time.time() - at_s
    if past_s <= -AHEAD_S:
        return f"dated {format_seconds(round(-past_s))} ahead"
    if past_s < 1:
        return "just now"
    # Of ten minutes nobody counts the seconds.
    part_s = next((part for part in (DAY_S, HOUR_S, MINUTE_S) if past_s >= 10 * part), 1)
    return f"{format_seconds(past_s // part_s * part_s)} ago"


def show_error(output: Output, error: CkptError) -> int:
    """Report the error; returns the exit code."""
    message = error.message
    if error.retry_after_s is not None:
        message = f"{message}; retry after {error.retry_after_s:g} s"
    output.error(error.exit_code, message, error.hint)
    return error.exit_code


def _shown(text: str) -> str:
    """A line with our own colours, and nothing else that a terminal would obey."""
    parts = _TONE.split(text)
    return "".join(part if n % 2 else printable(part) for n, part in enumerate(parts))


def _joined(what: str, progress: str) -> str:
    return f"{what}: {progress}" if progress else f"{what} …"
