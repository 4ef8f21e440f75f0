"""`ckpt init` writes files that the daemons take as they are, and never over another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_client.cli.upkeep.init import DAEMONS
from tests.client.clikit import environment, run
from tests.warm_child import start_daemon

WAIT_S = 60.0


def in_force(daemon: str, *words: object) -> dict[str, object]:
    """The options that `ckptd DAEMON` starts with."""
    line = [daemon, *map(str, words), "--print-config"]
    ckptd = start_daemon(line, stderr=2, environment=environment())
    assert ckptd.stdout is not None
    with ckptd.stdout:
        found: dict[str, object] = json.load(ckptd.stdout)
    assert ckptd.wait(WAIT_S) == 0
    return found


def test_each_daemon_takes_its_file_and_what_is_changed_in_it(tmp_path: Path) -> None:
    ended = run("init", str(tmp_path / "etc"), "--json")
    assert ended.code == 0
    files = {one["daemon"]: Path(one["path"]) for one in ended.document()["files"]}
    assert list(files) == list(DAEMONS)
    for daemon, path in files.items():
        found = in_force(daemon, "--config", path)
        assert [name for name in found if f"\n{name} = " not in f"\n{path.read_text()}"] == [
            name for name, value in found.items() if value is None or value == -1
        ]
    target = files["target"]
    target.write_text(target.read_text().replace('pool_bytes = "64MiB"', 'pool_bytes = "96MiB"'))
    assert in_force("target", "--config", target)["pool_bytes"] == 96 << 20


def test_only_those_that_are_named_are_written(tmp_path: Path) -> None:
    ended = run("init", str(tmp_path), "target")
    assert ended.code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["target.toml"]
    assert f"ckptd target --config {tmp_path}/target.toml" in ended.out


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    mine = tmp_path / "drain.toml"
    mine.write_text("mine")
    ended = run("init", str(tmp_path))
    assert ended.code == 2
    assert f"{mine}: already there" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["drain.toml"]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("etc", "targt"), "did you mean target?"),
        (("/proc/etc",), "cannot make the folder /proc/etc: "),
        # Which is there, and takes no file.
        (("/proc/self",), "cannot write into /proc/self: it is not writable for this user"),
    ],
)
def test_what_cannot_be_written_is_named(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    first, *rest = words
    ended = run("init", str(tmp_path / first), *rest)
    assert ended.code == 2
    assert said in ended.err
