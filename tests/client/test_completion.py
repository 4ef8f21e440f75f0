"""`ckpt completion`: what a shell offers at a tab."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from ckpt_client.cli.commands import VERBS
from tests.client.clikit import run


def offered(script: str, *words: str) -> list[str]:
    """What bash offers for the last of the words, cut as it cuts them."""
    line, last = " ".join(map(shlex.quote, words)), len(words) - 1
    ask = f"COMP_WORDS=({line}); COMP_CWORD={last}; _ckpt; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\ncomplete -p ckpt >&2\n{ask}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == "complete -o default -F _ckpt ckpt\n"
    return done.stdout.split()


@pytest.fixture(scope="module")
def script() -> str:
    ended = run("completion", "bash")
    assert (ended.code, ended.err) == (0, "")
    return ended.out


def test_bash_offers_commands_options_and_values(script: str) -> None:
    assert offered(script, "ckpt", "sta") == ["status"]
    assert set(VERBS) < set(offered(script, "ckpt", ""))
    assert offered(script, "ckpt", "status", "--ch") == ["--check"]
    assert offered(script, "ckpt", "doctor", "--state-bytes", "80G", "--ran") == [
        "--ranks", "--ranks-here",
    ]  # fmt: skip
    assert offered(script, "ckpt", "target", "re") == ["remove", "replace", "release"]
    assert offered(script, "ckpt", "export", "--format", "s") == ["safetensors"]
    assert offered(script, "ckpt", "export", "--format", "=", "n") == ["npz"]
    assert offered(script, "ckpt", "completion", "")[:3] == ["bash", "zsh", "fish"]


def test_bash_offers_files_where_it_cannot_know(script: str) -> None:
    """Nothing of ours: `complete -o default` is bash's own."""
    assert offered(script, "ckpt", "status", "--store", "d") == []
    assert offered(script, "ckpt", "import", "weights") == []


def test_bash_finds_the_command_after_a_store(script: str) -> None:
    cut = ("ckpt", "--store", "ckpt", ":", "//head", ":", "7700")
    assert offered(script, *cut, "verif") == ["verify"]
    assert offered(script, *cut, "rm", "--y") == ["--yes"]
    assert offered(script, "ckpt", "--store", "demo", "rm", "--y") == ["--yes"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_knows_every_command_and_option(shell: str) -> None:
    text = run("completion", shell).out
    for verb in VERBS:
        assert verb in text
    assert "state-bytes" in text
    assert "safetensors npz" in text
    assert run("completion", shell, "--json").document()["script"] == text


def test_a_shell_that_nobody_knows_is_refused() -> None:
    ended = run("completion", "tcsh")
    assert (ended.code, "tcsh" in ended.err) == (2, True)
