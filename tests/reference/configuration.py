"""The blocks of the page of configuration files: each file that a daemon reads, with every key.

The keys, their meaning, unit and default are those of the dataclass that the file is read into. A
key without a default has an example; one that is not set is in a comment, `#key = value`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from textwrap import TextWrapper
from typing import Final, get_type_hints

from ckpt.base.units import exact_bytes
from ckptd.config import UNITS, docstrings, unit_of
from ckptd.coordinator.daemon import CoordinatorConfig
from ckptd.drain.daemon import DrainConfig
from ckptd.local.cluster_file import ClusterFile, ClusterOptions, load_or_create
from ckptd.local.supervisor import LocalConfig
from ckptd.target.daemon import TargetConfig
from ckptd.target.identity import TargetFile
from tests.reference.blocks import LINE_LENGTH_MAX

Value = str | int | float | bool

CONFIGS: Final[Mapping[str, type[object]]] = {
    "coordinator": CoordinatorConfig,
    "target": TargetConfig,
    "drain": DrainConfig,
    "local": LocalConfig,
}
"""Program to what its `--config FILE` is read into."""
EXAMPLES: Final[Mapping[str, Mapping[str, Value]]] = {
    "coordinator": {"directory": "/var/lib/ckpt"},
    "target": {
        "directory": "/mnt/nvme0/ckpt",
        "coordinator": "10.0.0.1:7070",
        "capacity_bytes": "3TiB",
    },
    "drain": {"to": "s3://bucket/runs?keep=20", "coordinator": "10.0.0.1:7070"},
    "local": {
        "directory": "/scratch/burst",
        "targets": 7,
        "keep": 3,
        "linger_s": 300.0,
        "capacity_bytes": "200GiB",
        "cell_bytes": "2MiB",
    },
}
"""For what must be given, and what is not set."""
TARGET_FILE: Final = TargetFile("n2-nvme0", "0123456789abcdef", bytes(range(16)))
_COMMENT: Final = TextWrapper(LINE_LENGTH_MAX, initial_indent="# ", subsequent_indent="# ")


def configuration_blocks() -> dict[str, str]:
    """By program, or by the name of the file."""
    options = {program: _toml(_option_lines(program)) for program in CONFIGS}
    return options | {
        "cluster.toml": _toml(_file_lines(ClusterFile, _values(cluster_file()))),
        "target.toml": _toml(_file_lines(TargetFile, _values(TARGET_FILE))),
    }


def cluster_file() -> ClusterFile:
    """What DIR is made as when nothing is asked for, on a machine of these examples."""
    with tempfile.TemporaryDirectory() as directory:
        made = load_or_create(Path(directory), ClusterOptions(), "node7", "ckptd 0.1.0")
    return replace(made, cluster="0123456789abcdef", device="259:1")


def _option_lines(program: str) -> Iterator[str]:
    kind = CONFIGS[program]
    helps, hints = docstrings(kind), get_type_hints(kind, include_extras=True)
    for option in fields(kind):  # type: ignore[arg-type]
        name, hint = option.name, hints[option.name]
        unit = "true or false" if hint is bool else unit_of(name, hint)
        is_set = option.default is not None and option.default != -1.0
        needed = option.default is MISSING
        value = EXAMPLES[program][name] if needed or not is_set else option.default
        note = "must be given" if needed else "default" if is_set else "not set by default"
        line = f"{name} = {_shown(name, value)}  # {unit}; {note}"
        yield from ("", _COMMENT.fill(helps[name]), line if is_set else f"#{line}")


def _file_lines(kind: type[object], values: Mapping[str, Value]) -> Iterator[str]:
    helps = docstrings(kind)
    for name, value in values.items():
        unit = UNITS.get(name.rpartition("_")[2])
        text = f"{helps[name]} {unit.capitalize()}." if unit else helps[name]
        yield from ("", _COMMENT.fill(text), f"{name} = {_toml_value(value)}")


def _values(file: ClusterFile | TargetFile) -> dict[str, Value]:
    found = {each.name: getattr(file, each.name) for each in fields(file)}
    return {name: v.hex() if isinstance(v, bytes) else v for name, v in found.items()}


def _shown(name: str, value: object) -> str:
    """Sizes as people write them."""
    if name.endswith("_bytes") and isinstance(value, int) and value:
        return f'"{exact_bytes(value)}"'
    return _toml_value(value)


def _toml_value(value: object) -> str:
    # JSON's strings, numbers and booleans are TOML's.
    return json.dumps(value)


def _toml(lines: Iterator[str]) -> str:
    return "\n```toml\n" + "\n".join(lines).lstrip("\n") + "\n```\n\n"
