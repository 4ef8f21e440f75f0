"""How does the demo show that it goes on? Bars on a terminal, else lines, or JSON lines."""

from __future__ import annotations

import json
import sys
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

PLAIN_LINES: Final = 5
"""About so many for each phase, besides its beginning."""
REFRESH_HZ: Final = 4
"""Drawing takes time from the ranks."""


class Screen(Protocol):
    """What the director tells as it goes."""

    def begin(self, phase: str, steps: int) -> None:
        """A phase of so many training steps (0: it has none) begins."""

    def advance(self, step: int, loss: float) -> None:
        """A training step is done."""

    def note(self, text: str) -> None:
        """Something happened."""

    def close(self) -> None:
        """Nothing more comes."""


class TerminalScreen:
    """A bar for each phase; what happened stands above."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(),
            TextColumn("{task.fields[words]:<24}"),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=REFRESH_HZ,
        )
        self._task: TaskID | None = None
        self._progress.start()

    def begin(self, phase: str, steps: int) -> None:
        self._finish()
        self._task = self._progress.add_task(phase, total=steps or None, words="")

    def advance(self, step: int, loss: float) -> None:
        if self._task is not None:
            words = f"step {step}, loss {loss:.3f}"
            self._progress.update(self._task, completed=step, words=words)

    def note(self, text: str) -> None:
        self._progress.console.print(f"  {text}", highlight=False, markup=False)

    def close(self) -> None:
        self._finish()
        self._progress.stop()

    def _finish(self) -> None:
        if self._task is not None:
            self._progress.stop_task(self._task)
            if self._progress.tasks[-1].total is None:
                self._progress.update(self._task, total=1, completed=1)
            self._task = None


class PlainScreen:
    """A line now and then."""

    def __init__(self) -> None:
        self._every = 1

    def begin(self, phase: str, steps: int) -> None:
        self._every = max(1, steps // PLAIN_LINES)
        print(phase, flush=True)

    def advance(self, step: int, loss: float) -> None:
        if step % self._every == 0:
            print(f"  step {step}, loss {loss:.3f}", flush=True)

    def note(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def close(self) -> None:
        sys.stdout.flush()


class JsonScreen:
    """One JSON object a line; `message_type` says what it is."""

    def __init__(self) -> None:
        self._phase, self._steps = "", 0

    def begin(self, phase: str, steps: int) -> None:
        self._phase, self._steps = phase, steps
        self._print("phase", steps=steps)

    def advance(self, step: int, loss: float) -> None:
        self._print("progress", step=step, steps=self._steps, loss=loss)

    def note(self, text: str) -> None:
        self._print("event", text=text)

    def close(self) -> None:
        sys.stdout.flush()

    def _print(self, message_type: str, **fields: str | int | float) -> None:
        line = {"message_type": message_type, "phase": self._phase, **fields}
        print(json.dumps(line), flush=True)


def open_screen(*, as_json: bool) -> Screen:
    """What fits this standard output. Colours are rich's business, which honours NO_COLOR."""
    if as_json:
        return JsonScreen()
    console = Console()
    return TerminalScreen(console) if console.is_terminal else PlainScreen()
