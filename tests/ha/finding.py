"""Which etcd do these tests run? The one on the PATH, else Debian's, unpacked into the build
folder: nothing is installed, and no service of the system is touched.

    python -m tests.ha.finding      fetches it, and says which one it is

Without either, that says so loudly, and the tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "etcd"
FETCH_S = 120.0
NONE = "no etcd: skipped"


def etcd_path() -> Path | None:
    """The program, when it is here."""
    unpacked = FOLDER / "usr" / "bin" / "etcd"
    found = shutil.which("etcd") or (unpacked if unpacked.exists() else None)
    return None if found is None else Path(found)


def fetch() -> str:
    """Debian's package, without root; empty, or why there is none."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        _run("apt-get", "download", "--quiet", "etcd-server")
    except RuntimeError:
        # The lists of packages may never have been read; only root can.
        try:
            _run("apt-get", "update", "--quiet")
            _run("apt-get", "download", "--quiet", "etcd-server")
        except RuntimeError as error:
            return str(error)
    package = max(FOLDER.glob("etcd-server_*.deb"))
    try:
        _run("dpkg-deb", "--extract", str(package), ".")
    except RuntimeError as error:
        return str(error)
    package.unlink()
    return ""


def main() -> int:
    """Says on one line what the tests will run."""
    problem = "" if etcd_path() else fetch()
    found = etcd_path()
    if found is None:
        line = f"{'*' * 20} {NONE} ({problem}) {'*' * 20}"
    else:
        version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
        line = f"{found}: {version.stdout.splitlines()[0]}"
    sys.stdout.write(line + "\n")
    return 0


def _run(*command: str) -> None:
    """In the folder. Raises RuntimeError with what it said last."""
    try:
        done = subprocess.run(
            command, cwd=FOLDER, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{command[0]}: {error}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [str(done.returncode)]
        raise RuntimeError(f"{command[0]}: {said[-1]}")


if __name__ == "__main__":
    raise SystemExit(main())
