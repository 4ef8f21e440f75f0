"""Environments that have the wheel and no source tree, under each Python that is here."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final
from zlib import crc32

from tests.client.clikit import TIMEOUT_S, Ended, environment
from tests.tree import ROOT

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Of Python, those that pyproject.toml promises."""
BUILD: Final = (sys.executable, "-m", "build", "--no-isolation")
"""What builds is installed here, the compiler of ziglang included (`make test-wheel`)."""
_INSTALL_TIMEOUT_S: Final = 300.0
_ASK: Final = "import sys; print('%d.%d' % sys.version_info[:2])"


@dataclass(frozen=True, slots=True)
class Environment:
    """A venv; commands run in it as in a shell that has activated nothing."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def command(self, name: str) -> Path:
        """The path of a command that an installation put there."""
        return self.folder / "bin" / name

    @property
    def packages(self) -> Path:
        """Where its packages lie."""
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def run(self, name: str, *words: object, **environ: str) -> Ended:
        """A command of it, to its end."""
        done = subprocess.run(
            [self.command(name), *map(str, words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(**environ),
            timeout=TIMEOUT_S,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def script(self, text: str, *words: object, **environ: str) -> Ended:
        """A script of a user: every warning is an error, no folder is searched but the venv's."""
        return self.run("python", "-P", "-W", "error", "-c", text, *words, **environ)


@dataclass(frozen=True, slots=True)
class Environments:
    """Those with a wheel, in a folder: each is made when a worker of the run first asks for it."""

    folder: Path
    wheel: Path

    def of(self, python: Path, extra: str = "") -> Environment:
        """One that has the wheel, and an extra of it."""
        requirement = f"{self.wheel}[{extra}]" if extra else str(self.wheel)
        folder = self.folder / f"{crc32(bytes(python)):08x}{extra}"
        once(folder, lambda: _install(folder, python, requirement))
        return Environment(folder)


def beside(other: Environment, folder: Path, python: Path, wheel: Path) -> Environment:
    """One that has the wheel alone, and finds what that requires in the other one's packages."""
    _install(folder, python, "--no-deps", str(wheel))
    made = Environment(folder)
    # Whatever is in both is found in its own.
    (made.packages / "beside.pth").write_text(f"{other.packages}\n")
    return made


def once(place: Path, make: Callable[[], object]) -> None:
    """What makes `place`, by whichever worker of a run comes first; the others wait for it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    made = place.with_name(f"{place.name}.made")
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make()
            made.touch()


def _install(folder: Path, python: Path, *words: str) -> None:
    """A new venv that has what `pip install WORDS` installs."""
    # It needs no pip of its own, which takes longer to make than the rest: ours serves it.
    bare = [python, "-m", "venv", "--without-pip", folder]
    subprocess.run(bare, check=True, timeout=_INSTALL_TIMEOUT_S)
    inside = Environment(folder).python
    pip = [sys.executable, "-m", "pip", "--python", inside, "--disable-pip-version-check"]
    # Of what comes along, tests import a part, and that is compiled when they do.
    line = [*pip, "install", "--quiet", "--no-compile", *words]
    subprocess.run(line, check=True, timeout=_INSTALL_TIMEOUT_S)


def built(folder: Path) -> tuple[Path, Path]:
    """The sdist of this tree, and the wheel that is built of that sdist."""
    line = [*BUILD, "--outdir", folder, ROOT]
    run = partial(subprocess.run, line, check=True, capture_output=True, timeout=_INSTALL_TIMEOUT_S)
    once(folder, run)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@cache
def interpreter(version: str) -> Path | None:
    """A Python of that version: the one that runs, one on the path, or one of pyenv's."""
    return next((path for path in _candidates(version) if _version(path) == version), None)


def _candidates(version: str) -> Iterator[Path]:
    yield Path(sys.executable)
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)


def _version(python: Path) -> str:
    """Empty for what is no Python, such as a shim without a version under it."""
    try:
        asked = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except OSError:
        return ""
    return asked.stdout.strip()
