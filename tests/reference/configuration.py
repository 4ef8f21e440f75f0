"""The blocks of the page of configuration files: each file that a daemon reads, with every key.

The keys, their meaning, unit and default are those of the dataclass that the file is read into. A
key without a default has an example; one that is not set is in a comment, `#key = value`.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from ckptd.cli import load
from ckptd.coordinator.config import CoordinatorConfig
from ckptd.drain.daemon import DrainConfig
from ckptd.local.cluster_file import ClusterFile, ClusterOptions, load_or_create
from ckptd.local.supervisor import LocalConfig
from ckptd.option_words import UNITS, docstrings
from ckptd.repair.daemon import RepairConfig
from ckptd.target.daemon import TargetConfig
from ckptd.target.identity import TargetFile
from ckptd.toml_file import Value, comment, toml_value

CONFIGS: Final[Mapping[str, type[object]]] = {
    "coordinator": CoordinatorConfig,
    "target": TargetConfig,
    "drain": DrainConfig,
    "repair": RepairConfig,
    "local": LocalConfig,
}
"""Program to what its `--config FILE` is read into."""
TARGET_FILE: Final = TargetFile("n2-nvme0", "0123456789abcdef", bytes(range(16)))


def configuration_blocks() -> dict[str, str]:
    """By program, or by the name of the file."""
    options = {program: _toml(printed(program)) for program in CONFIGS}
    return options | {
        "cluster.toml": _toml(_file(ClusterFile, _values(cluster_file()))),
        "target.toml": _toml(_file(TargetFile, _values(TARGET_FILE))),
    }


def printed(program: str) -> str:
    """What `ckptd PROGRAM --print-toml` prints."""
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        load(program)(["--print-toml"])
    return out.getvalue()


def cluster_file() -> ClusterFile:
    """What DIR is made as when nothing is asked for, on a machine of these examples."""
    with tempfile.TemporaryDirectory() as directory:
        made = load_or_create(Path(directory), ClusterOptions(), "node7", "ckptd 0.1.0")
    return replace(made, cluster="0123456789abcdef", device="259:1")


def _file(kind: type[object], values: Mapping[str, Value]) -> str:
    helps, parts = docstrings(kind), []
    for name, value in values.items():
        unit = UNITS.get(name.rpartition("_")[2])
        text = f"{helps[name]} {unit.capitalize()}." if unit else helps[name]
        parts.append(f"{comment(text)}\n{name} = {toml_value(value)}\n")
    return "\n".join(parts)


def _values(file: ClusterFile | TargetFile) -> dict[str, Value]:
    found = {each.name: getattr(file, each.name) for each in fields(file)}
    return {name: v.hex() if isinstance(v, bytes) else v for name, v in found.items()}


def _toml(text: str) -> str:
    return f"\n```toml\n{text}```\n\n"
