"""Print a script that makes a shell complete commands, options and their values.

bash: `source <(ckpt completion bash)` in ~/.bashrc. zsh: `source <(ckpt completion zsh)`
in ~/.zshrc, after compinit. fish: `ckpt completion fish | source` in its config.fish. A
script that is kept has the options of one version: print it again after an upgrade.
"""

from __future__ import annotations

import argparse
import importlib

from ckpt_client.cli.commands import VERBS
from ckpt_client.cli.completion import SCRIPTS, CompletedCommand, completed_command
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.main import add_common
from ckpt_client.cli.output import Output

EXAMPLE = "ckpt completion bash >> ~/.bash_completion"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="whose script")


def run(arguments: argparse.Namespace, output: Output) -> int:
    commands = [_command(verb, *what) for verb, what in VERBS.items()]
    parser = argparse.ArgumentParser()
    add_common(parser)
    common = completed_command("", "", parser).options
    script = SCRIPTS[arguments.shell](commands, common)
    output.document({"shell": arguments.shell, "script": script})
    for line in script.splitlines():
        output.line(line)
    return ExitCode.OK


def _command(verb: str, module: str, meaning: str) -> CompletedCommand:
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(module).configure(parser)
    return completed_command(verb, meaning, parser)
