"""`ckpt demo` from beginning to end: a control run, a run that is disturbed, and the comparison.

    1  control    the training, without ckpt, undisturbed
    2  disturbed  the same training on an embedded cluster. Inside a burst two targets are killed,
                  then all trainers and their stagers, each with SIGKILL
    3  resumed    new trainers load the newest committed step from what is left, and go on
    4  compared   parameters, optimizer state and every loss must have the same bits

Everything happens in one directory and in processes that carry one mark; both are gone afterwards.
docs/demo.md says how each check is known.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.base.extras import check_installed
from ckpt_client.demo.course import Course, CourseOutcome
from ckpt_client.demo.judge import judge
from ckpt_client.demo.options import DemoOptions
from ckpt_client.demo.report import DemoCheck, DemoReport, print_report
from ckpt_client.demo.screen import Screen, open_screen
from ckpt_client.local.processes import end_marked, marked_environment

END_TIMEOUT_S: Final = 20.0


def run(options: DemoOptions) -> int:
    """Show it all; returns the exit code, 0 only when every check held.

    Raises CkptError when a piece does not come up or a rank fails, KeyboardInterrupt after Ctrl-C
    or SIGTERM; everything that was started has ended by then, and the directory is gone. Without
    the cluster's packages it raises NotInstalled before it trains.
    """
    check_installed("ckpt demo", "server")
    begun = time.monotonic()
    screen = open_screen(as_json=options.json)
    try:
        with _interruptible():
            report = _perform(options, screen, begun)
    finally:
        screen.close()
    print_report(report, as_json=options.json)
    return 0 if report.held else 1


def _perform(options: DemoOptions, screen: Screen, begun: float) -> DemoReport:
    mark = secrets.token_hex(16)
    if options.directory is not None:
        Path(options.directory).mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="ckpt-demo-", dir=options.directory)).resolve()
    outcome: CourseOutcome | None = None
    try:
        with marked_environment(mark, directory):
            outcome = Course(options, directory, screen, mark).run()
    finally:
        with _uninterrupted():
            left = end_marked(mark, END_TIMEOUT_S)
            if options.keep:
                screen.note(f"kept: {directory}")
            else:
                shutil.rmtree(directory, ignore_errors=True)
    checks, figures = judge(outcome, time.monotonic() - begun)
    gone = options.keep or not is_there(directory)
    clean = DemoCheck("nothing was left over", not left and gone and outcome.stopped, "")
    return DemoReport((*checks, clean), figures)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, unless the caller has a handler of its own.

    Signals can be set in the main thread only.
    """
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if is_ours:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C does not stop the cleaning up, which is short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
