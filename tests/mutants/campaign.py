"""Plants bugs one at a time and runs the tests: `python -m tests.mutants.campaign --count 60`.

    pick by seed --> plant in a copy of the tree --> the tests of its room that reach it,
        nearest file first --> killed by a test that passes without it | survived | timeout | unsure
        --> a line of the log --> report by file

The tree stays untouched. What the log holds already is not run again, so a campaign that was
stopped goes on, and a greater count adds to it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec

from tests.mutants import histories, reach
from tests.mutants.operators import Mutant, compiles, mutants_of
from tests.mutants.reach import Reach

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MUTATED: Final = (
    "ckpt/protocol", "ckpt/plan", "ckpt/format", "ckpt/transfer", "ckpt/aio/disk.py",
    "ckpt/aio/disk_actions.py",
)  # fmt: skip
NEAR: Final[dict[str, tuple[str, ...]]] = {
    "ckpt/protocol": ("tests/protocol",),
    "ckpt/plan": ("tests/plan", "tests/protocol"),
    "ckpt/format": ("tests/format", "tests/protocol"),
    "ckpt/transfer": ("tests/transfer",),
    "ckpt/aio": ("tests/aio", "tests/ckptd/test_target.py"),
}
"""Where a room's bugs should be found, the fastest first."""
FAR: Final = tuple(
    f"tests/{name}"
    for name in ("protocol", "sim", "ckptd", "objects", "fs", "client", "e2e", "e2e_remote", "soak")
)
"""What `--judge=all` runs behind the near ones."""
COPIED: Final = (
    "ckpt", "servers", "clients", "benchmarks", "tests", "docs", "pyproject.toml", "Makefile",
    "README.md", "CHANGELOG.md",
)  # fmt: skip
SLOWEST: Final = ("--deselect", "tests/sim/test_planted_bugs.py")
PLUGINS: Final = ("-p", "timeout", "-p", "hypothesispytest", "-p", "no:cacheprovider")
MAIN: Final = "tests/sim/test_simulation.py"
"""The simulator's main campaign: the only one whose seeds `--sim-seeds` counts."""
LIMIT_S: Final = 600.0


class Verdict(msgspec.Struct, frozen=True):
    """How one bug ended; a line of the log."""

    key: str
    path: str
    line: int
    operator: str
    end: str
    """`killed`, `survived`, `timeout`, or `unsure`: the test fails without the bug, too."""
    by: str = ""
    """The test or history that noticed it."""
    diff: str = ""


Judge = Callable[[Path, Mutant], tuple[str, str]]
"""Runs tests in a copy of the tree; how it ended, and which test noticed it."""


@dataclass(frozen=True, slots=True)
class Histories:
    """A judge: the simulator alone. `by` says which history was broken; of a bug that broke none,
    how many it changed.
    """

    seeds: int
    known: Path
    """How each history goes without a bug; `begin` writes it."""
    limit_s: float = LIMIT_S

    def begin(self, tree: Path) -> None:
        """On a tree without a bug."""
        if not self.known.exists():
            end, by = self(tree)
            assert end == "survived", f"the tree itself fails: {end} {by}"

    def __call__(self, tree: Path, _mutant: Mutant | None = None) -> tuple[str, str]:
        command = [
            sys.executable, "-m", histories.__name__,
            "--seeds", str(self.seeds), "--known", str(self.known),
        ]  # fmt: skip
        status, text = _outcome_of(command, tree, {}, self.limit_s)
        if status is None:
            return "timeout", ""
        last = text.strip().rpartition("\n")[2]
        return ("killed" if status else "survived"), last[:200]


@dataclass(frozen=True, slots=True)
class Pytest:
    """A judge: pytest in the copy."""

    which: str = "near"
    limit_s: float = LIMIT_S
    sim_seeds: int = 100
    reaches: Mapping[str, Reach] = field(default_factory=dict)
    """By folder of near tests; without one all tests of the folder are run."""
    known: dict[str, bool] = field(default_factory=dict)
    """Test file -> whether the test of it that was asked for passes on the tree as it is."""

    def __call__(self, tree: Path, mutant: Mutant) -> tuple[str, str]:
        for files in self._stages(tree, mutant):
            end, by = run_pytest(tree, files, self.limit_s, self.sim_seeds)
            if end != "survived":
                return end, by
        return "survived", ""

    def passes(self, tree: Path, test: str) -> bool:
        """Whether a test passes in a tree without a bug; a file of tests is asked once."""
        file = test.partition("::")[0]
        if file not in self.known:
            end, _ = run_pytest(tree, [test], self.limit_s, self.sim_seeds)
            self.known[file] = end == "survived"
        return self.known[file]

    def _stages(self, tree: Path, mutant: Mutant) -> list[list[str]]:
        stages = [self._near(tree, folder, mutant) for folder in near_of(mutant.path)]
        if self.which == "all":
            stages += [[folder] for folder in FAR if folder not in near_of(mutant.path)]
        return [stage for stage in stages if stage]

    def _near(self, tree: Path, folder: str, mutant: Mutant) -> list[str]:
        files = nearest_first(tree, folder, mutant.path)
        if folder not in self.reaches:
            return files
        # A bug of one statement changes no line on which a function begins before it.
        tests = self.reaches[folder].tests_of(mutant, (tree / mutant.path).read_text())
        order = {file: at for at, file in enumerate(files)}
        return sorted(tests, key=lambda test: order[test.partition("::")[0]])


def near_of(path: str) -> tuple[str, ...]:
    """Where a file's bugs should be found."""
    return next(where for room, where in NEAR.items() if path.startswith(room))


def reaches_of(tree: Path, mutants: Iterable[Mutant], place: Path) -> dict[str, Reach]:
    """Who reaches what in the folders near to these bugs; kept in `place` until sources change."""
    found = {}
    for folder in sorted({each for mutant in mutants for each in near_of(mutant.path)}):
        if (tree / folder).is_dir():
            kept = place / f"{Path(folder).name}-{reach.digest_of(tree, ['ckpt', folder])}.jsonl"
            if not kept.exists():
                begun = kept.with_suffix(".begun")
                begun.unlink(missing_ok=True)
                run_pytest(tree, [folder], 3 * LIMIT_S, reach_file=begun)
                begun.rename(kept)
            found[folder] = Reach(reach.read_lines(kept))
    return found


def nearest_first(tree: Path, folder: str, path: str) -> list[str]:
    """A folder's test files; those that name the mutated module, or have a word of it in their
    name, first.
    """
    module = path.removesuffix(".py").replace("/", ".")
    words = set(re.split(r"[/_.]", path)) - {"ckpt", "py", "machine", "protocol"}
    place = tree / folder
    files = sorted(place.glob("test_*.py")) if place.is_dir() else [place]

    def distance(file: Path) -> tuple[int, str]:
        shared = len(words & set(file.stem.split("_")))
        return -shared - 2 * (module in file.read_text()), file.name

    return [file.relative_to(tree).as_posix() for file in sorted(files, key=distance)]


def run_pytest(
    tree: Path,
    files: Sequence[str],
    limit_s: float,
    sim_seeds: int = 100,
    reach_file: Path | None = None,
) -> tuple[str, str]:
    """`killed`, `survived` or `timeout`, and the first test that failed."""
    # A tree of its own may say nothing of plugins, and each costs every run its import.
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # Other histories count by the same variable, and some must be enough to meet every case.
    if all(file.startswith(MAIN) for file in files):
        environment["CKPT_SIM_SEEDS"] = str(sim_seeds)
    ways = ["-x"]
    if reach_file is not None:
        environment[reach.VARIABLE] = str(reach_file)
        ways = ["-p", reach.__name__]
    command = [
        sys.executable, "-m", "pytest", *PLUGINS, *ways, "-q", "--no-header",
        "-m", "not slow", "--hypothesis-seed=0", *SLOWEST, *files,
    ]  # fmt: skip
    status, text = _outcome_of(command, tree, environment, limit_s)
    if status is None:
        return "timeout", ""
    if status == 0:
        return "survived", ""
    if "+++ Timeout +++" in text:  # Of one test: pytest-timeout ends the process.
        return "timeout", ""
    noticed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    return "killed", noticed[1] if noticed else f"pytest ended with {status}"


def _outcome_of(
    command: Sequence[str], tree: Path, more: Mapping[str, str], limit_s: float
) -> tuple[int | None, str]:
    """The exit status and the output of what runs in a tree; None when it had to be ended."""
    rooms = [str(tree / room) for room in ("", "servers", "clients", "benchmarks")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(rooms),
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            _end_group(process)
        output.seek(0)
        return status, output.read()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Whatever a test of a mutant started goes with it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


# --------------------------------------------------------------------------- a campaign


def pick(tree: Path, only: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """So many bugs in the order of the seed; a greater count begins with the same ones."""
    found = [each for place in only for each in _mutants_in(tree, place)]
    random.Random(seed).shuffle(found)
    chosen: list[Mutant] = []
    for mutant in found:
        if len(chosen) == count:
            break
        if compiles(mutant.applied((tree / mutant.path).read_text())):
            chosen.append(mutant)
    return chosen


def _mutants_in(tree: Path, place: str) -> Iterator[Mutant]:
    """Of a folder, a file, or of lines: FILE:FIRST-LAST."""
    name, _, lines = place.partition(":")
    first, last = (int(line) for line in lines.split("-")) if lines else (1, sys.maxsize)
    files = sorted((tree / name).rglob("*.py")) if (tree / name).is_dir() else [tree / name]
    for file in files:
        for mutant in mutants_of(file.relative_to(tree).as_posix(), file.read_text()):
            if first <= mutant.line <= last:
                yield mutant


def run(
    tree: Path,
    mutants: Iterable[Mutant],
    log: Path,
    judge: Judge,
    *,
    passes: Callable[[Path, str], bool] = lambda _tree, _test: True,
    workers: int = 1,
) -> list[Verdict]:
    """A verdict for each, those of the log without running them again. `passes`: whether a test
    that noticed a bug passes in a tree without it.
    """
    mutants = list(mutants)
    known = {verdict.key: verdict for verdict in read_log(log)}
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, log.open("ab") as lines:
        for number in range(workers):
            copies.put(copy_of(tree, Path(place) / str(number)))

        def judged(mutant: Mutant) -> None:
            copy = copies.get()
            try:
                known[mutant.key] = verdict = one(copy, mutant, judge, passes)
            finally:
                copies.put(copy)
            lines.write(msgspec.json.encode(verdict) + b"\n")
            lines.flush()
            sys.stderr.write(f"{verdict.end} {verdict.path}:{verdict.line} {verdict.by}\n")

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(judged, [each for each in mutants if each.key not in known]))
    return [known[mutant.key] for mutant in mutants]


def one(copy: Path, mutant: Mutant, judge: Judge, passes: Callable[[Path, str], bool]) -> Verdict:
    """Plant it, look who notices, and take it out again."""
    file = copy / mutant.path
    source = file.read_text()
    file.write_text(mutant.applied(source))
    try:
        end, by = judge(copy, mutant)
    finally:
        file.write_text(source)
    if end == "killed" and not passes(copy, by):
        end = "unsure"
    diff = mutant.diff(source)
    return Verdict(mutant.key, mutant.path, mutant.line, mutant.operator, end, by, diff)


def read_log(log: Path) -> list[Verdict]:
    """Verdicts of earlier runs; a last line that was cut off is run again."""
    if not log.exists():
        return []
    whole = log.read_bytes()
    lines = whole[: whole.rfind(b"\n") + 1]
    if len(lines) < len(whole):
        log.write_bytes(lines)
    return [msgspec.json.decode(line, type=Verdict) for line in lines.splitlines()]


def copy_of(tree: Path, copy: Path) -> Path:
    """What tests need, without what git ignores."""
    ignored = shutil.ignore_patterns("__pycache__", "node_modules", ".*")
    copy.mkdir()
    for name in COPIED:
        if (tree / name).is_dir():
            shutil.copytree(tree / name, copy / name, ignore=ignored)
        elif (tree / name).exists():
            shutil.copy(tree / name, copy / name)
    return copy


def report(verdicts: Sequence[Verdict]) -> str:
    """By file, then what survived, each as a diff."""
    ends = Counter((verdict.path, verdict.end) for verdict in verdicts)
    lines = [f"{'killed':>7} {'timeout':>7} {'unsure':>7} {'survived':>8}  file"]
    for path in [*sorted({verdict.path for verdict in verdicts}), "all"]:
        counts = [
            sum(n for (p, e), n in ends.items() if e == end and path in (p, "all"))
            for end in ("killed", "timeout", "unsure", "survived")
        ]
        lines.append("{:>7} {:>7} {:>7} {:>8}  {}".format(*counts, path))
    for verdict in verdicts:
        if verdict.end == "survived":
            where = f"{verdict.path}:{verdict.line}: {verdict.operator}"
            lines += ["", f"survived: {where}", *filter(None, [verdict.by]), verdict.diff]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 1 when one survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=60, help="how many bugs")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument(
        "--only", action="append", help="a folder, a file, or FILE:FIRST-LAST of its lines"
    )
    parser.add_argument("--judge", choices=("near", "sim", "all"), default="near")
    parser.add_argument("--sim-seeds", type=int, default=120, help="of the main campaign")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="of one pytest")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--log", type=Path, help="default: .mutants/JUDGE.jsonl")
    chosen = parser.parse_args(arguments)
    log: Path = chosen.log or ROOT / ".mutants" / f"{chosen.judge}.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    mutants = pick(ROOT, chosen.only or MUTATED, chosen.seed, chosen.count)
    place, limit_s = log.parent, chosen.limit_s
    if chosen.judge == "sim":
        name = f"sim-{chosen.sim_seeds}-{reach.digest_of(ROOT, ['ckpt', 'tests/sim'])}.txt"
        simulator = Histories(chosen.sim_seeds, place.resolve() / name, limit_s)
        simulator.begin(ROOT)
        verdicts = run(ROOT, mutants, log, simulator, workers=chosen.workers)
    else:
        reaches = reaches_of(ROOT, mutants, place.resolve())
        judge = Pytest(chosen.judge, limit_s, chosen.sim_seeds, reaches)
        verdicts = run(ROOT, mutants, log, judge, passes=judge.passes, workers=chosen.workers)
    sys.stdout.write(report(verdicts))
    return any(verdict.end == "survived" for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
