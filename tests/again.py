"""pytest; in CI the few tests that failed run once more, by themselves.

    python -m tests.again ARGUMENTS OF PYTEST

Most tests here are about processes that wait for each other. On two cores one may fail only
because others had the machine, and CI then says nothing of the change. So that such a test is not
hidden either, its first failure is shown whole, and a line names it: it is a defect to mend, of
the test or of what it is about. As CPython's own CI does (`regrtest --rerun`).

More than a few failures are no accident: they count at once. So does everything outside of CI,
where this is pytest and nothing else. CI is where the environment has `CI`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MOST: Final = 3
"""Tests that may fail and run again."""
TESTS_FAILED: Final = 1
"""pytest's exit code when it ran to its end and some failed."""
UNSTEADY: Final = "UNSTEADY, passed by itself:"


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code; of the second run, where there is one."""
    command = [sys.executable, "-m", "pytest"]
    if not os.environ.get("CI"):
        sys.stdout.flush()
        os.execv(sys.executable, [*command, *arguments])
    with tempfile.TemporaryDirectory() as cache:
        first = subprocess.call([*command, "-o", f"cache_dir={cache}", *arguments])
        failed = failed_in(Path(cache))
    if first != TESTS_FAILED or not 0 < len(failed) <= MOST:
        return first
    options = [one for one in arguments if not is_path(one)]
    second = subprocess.call([*command, *options, "-n", "0", *failed])
    if second == 0:
        sys.stdout.writelines(f"{UNSTEADY} {name}\n" for name in failed)
    return second


def failed_in(cache: Path) -> list[str]:
    """The ids of the tests that failed in the run with this cache, a new one."""
    noted = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(noted.read_text())) if noted.exists() else []


def is_path(argument: str) -> bool:
    """Whether an argument says where tests are. A path as a value is written `--option=PATH`."""
    return Path(argument.split("::")[0]).exists()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
