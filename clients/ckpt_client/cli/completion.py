"""How does a shell complete `ckpt`? A script of it, made once from the parsers of all commands.

The script is static: a shell that completes starts no Python.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CompletedOption:
    """One flag."""

    name: str
    """With its dashes."""
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompletedCommand:
    """One command: its flags, and the words that its first argument may be."""

    name: str
    help: str
    options: tuple[CompletedOption, ...]
    words: tuple[str, ...] = ()


Commands = Sequence[CompletedCommand]
CompletedOptions = Sequence[CompletedOption]
"""`common`: options that may stand before and after the command."""


def completed_command(
    name: str, help_text: str, parser: argparse.ArgumentParser
) -> CompletedCommand:
    """Everything that a parser accepts."""
    options, words = [], tuple[str, ...]()
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if not action.option_strings:
            words = words or choices
            continue
        meaning = " ".join((action.help or "").split())
        options += [
            CompletedOption(one, meaning, action.nargs not in (0, "?", "*"), choices)
            for one in action.option_strings
        ]
    return CompletedCommand(name, help_text, tuple(options), words)


def bash_script(commands: Commands, common: CompletedOptions) -> str:
    """For `source <(ckpt completion bash)`. Unknown words complete as files."""
    names = [command.name for command in commands]
    lines = [
        "_ckpt() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}",
        "    local verb= word before= words=",
        "    # bash cuts words at = and at :",
        "    [[ $current == = ]] && current=",
        "    [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD-2]}",
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        f"        case $before in {'|'.join(_valued(common))}) before=; continue ;; esac",
        "        before=$word",
        f"        case $word in {'|'.join(names)}) verb=$word; break ;; esac",
        "    done",
        "    COMPREPLY=()",
        "    case $verb:$previous in",
        f"        {'|'.join(f'*:{name}' for name in _valued(common))}) return ;;",
    ]
    for command in commands:
        for option in command.options:
            if option.takes_value:
                choices = f"words={_quoted(option.choices)}" if option.choices else "return"
                lines.append(f"        {command.name}:{option.name}) {choices} ;;")
    lines += ["    esac", "    [[ $words ]] || case $verb in"]
    lines.append(f"        '') words={_quoted([*names, *_names(common)])} ;;")
    for command in commands:
        text = _quoted([*command.words, *_names(command.options), *_names(common)])
        lines.append(f"        {command.name}) words={text} ;;")
    lines += [
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o default -F _ckpt ckpt",
    ]
    return "\n".join(lines) + "\n"


def zsh_script(commands: Commands, common: CompletedOptions) -> str:
    """For a file `_ckpt` in $fpath, or `source <(ckpt completion zsh)`."""
    lines = ["#compdef ckpt", "_ckpt() {", "    local state line", "    local -a verbs=("]
    lines += [f"        {shlex.quote(_plain(f'{one.name}:{one.help}'))}" for one in commands]
    head = " ".join(_zsh_options(common))
    lines += [
        "    )",
        f"    _arguments -C {head} '1: :->verb' '*:: :->rest'",
        "    case $state in",
        "        verb) _describe command verbs ;;",
        "        rest) case $words[1] in",
    ]
    for one in commands:
        rest = f"'1: :({' '.join(one.words)})'" if one.words else "'*: :_files'"
        options = " ".join(_zsh_options([*one.options, *common]))
        lines.append(f"            {one.name}) _arguments {options} {rest} ;;")
    lines += [
        "        esac ;;",
        "    esac",
        "}",
        'if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _ckpt "$@"; '
        "else compdef _ckpt ckpt; fi",
    ]
    return "\n".join(lines) + "\n"


def fish_script(commands: Commands, common: CompletedOptions) -> str:
    """For ~/.config/fish/completions/ckpt.fish, or `ckpt completion fish | source`."""
    lines = [
        f"complete -c ckpt -f -n __fish_use_subcommand -a {one.name} -d {shlex.quote(one.help)}"
        for one in commands
    ]
    for option in common:
        lines.append(f"complete -c ckpt -n __fish_use_subcommand {_fish_option(option)}")
    for one in commands:
        seen = f"complete -c ckpt -n '__fish_seen_subcommand_from {one.name}'"
        if one.words:
            lines.append(f"{seen} -f -a '{' '.join(one.words)}'")
        lines += [f"{seen} {_fish_option(option)}" for option in (*one.options, *common)]
    return "\n".join(lines) + "\n"


SCRIPTS: Final[Mapping[str, Callable[[Commands, CompletedOptions], str]]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}


def _valued(options: CompletedOptions) -> list[str]:
    return [one.name for one in options if one.takes_value]


def _names(options: CompletedOptions) -> list[str]:
    return [one.name for one in options]


def _quoted(words: Sequence[str]) -> str:
    return shlex.quote(" ".join(words))


def _zsh_options(options: CompletedOptions) -> Iterator[str]:
    for one in options:
        value = f":value:({' '.join(one.choices)})" if one.choices else ":value:_files"
        yield shlex.quote(f"{one.name}[{_plain(one.help)}]{value if one.takes_value else ''}")


def _plain(text: str) -> str:
    """Without what zsh reads as the end of a description."""
    return text.replace("[", "(").replace("]", ")").replace("\\", "")


def _fish_option(option: CompletedOption) -> str:
    dashes, name = (
        ("-l", option.name[2:]) if option.name.startswith("--") else ("-s", option.name[1:])
    )
    text = f"{dashes} {name} -d {shlex.quote(option.help)}"
    if option.choices:
        return f"{text} -x -a '{' '.join(option.choices)}'"
    return f"{text} -r" if option.takes_value else text
