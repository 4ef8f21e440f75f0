"""What mends a cluster of one machine? A coordinator's advice, where a supervisor starts the
daemons, and the secret lies in the cluster's directory. Commands make it exact
(`ckpt_client.cli.advice`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from ckpt.base.shell_words import quoted
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt.protocol.coordinator.reading.checks import NEW_TARGET, START_WORKER

OLD_TARGET: Final = "ckptd target --id "
#: Commands that name their directory themselves.
_STORE_LESS: Final = ("ckpt local ", "ckpt catalog ")


def on_one_machine(found: Check, directory: str) -> Check:
    """The same check; new targets, repair and drains are that machine's own. `directory` is the
    cluster's, absolute.
    """
    if found.command.startswith(NEW_TARGET):
        return replace(found, command="ckpt target add NEW_DIR")
    if found.command.startswith("ckptd repair "):
        before, by_hand, _ = found.remedy.partition(START_WORKER)
        remedy = f"{before}its supervisor starts a worker: wait" if by_hand else before
        return replace(found, remedy=remedy, command="ckpt repair --wait")
    if found.command.startswith("ckptd drain "):
        secret = quoted(f"{directory}/secret")
        return replace(found, command=f"{found.command} --secret-file {secret}")
    return found


def for_its_page(found: Check, directory: str) -> Check:
    """As the coordinator shows it in a browser: it does not know what its supervisor does, which
    `ckpt status` on that machine does.
    """
    local = on_one_machine(found, directory)
    if local.command.startswith(OLD_TARGET):
        remedy = "ckpt status, on its machine, says what brings each of them back"
        local = replace(local, remedy=remedy, command="ckpt status")
    return with_store(local, f"ckpt+local://{directory}")


def with_store(found: Check, store: str | None) -> Check:
    """Its commands name the store as the user named it; without a name the environment has it."""
    if store is None:
        return found
    return replace(found, command=_each(found.command, lambda line: _named(line, store)))


def _named(line: str, store: str) -> str:
    if not line.startswith("ckpt ") or line.startswith(_STORE_LESS):
        return line
    return f"{line} --store {quoted(store)}"


def _each(command: str, change: Callable[[str], str]) -> str:
    return "".join(change(part) for part in re.split("( && |; )", command))
