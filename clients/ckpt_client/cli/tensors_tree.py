"""What is in a checkpoint: its tensors as a tree, with sizes. For `ckpt show --tensors`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ckpt.base.errors import NotFound
from ckpt.base.ids import Rank
from ckpt.base.units import counted, format_bytes
from ckpt.objects.source import Source
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output
from ckpt_client.cli.source import opened_source
from ckpt_client.load.tensor_info import TensorInfo, tensor_infos

Row = tuple[str, str, str, str, str]


@dataclass(slots=True)
class _Branch:
    """What lies below one step of a path."""

    branches: dict[str, _Branch] = field(default_factory=dict)
    leaves: list[tuple[str, TensorInfo]] = field(default_factory=list)
    bytes: int = 0
    count: int = 0


def run(arguments: argparse.Namespace, output: Output) -> int:
    """`arguments.tensors` is the pattern: `*` is any text, also with slashes in it."""
    with opened_source(arguments, output, arguments.checkpoint) as source:
        name = str(source.header)
        infos = _matching(source, arguments.tensors)
    size = sum(info.bytes for info in infos)
    output.document(
        {"checkpoint": name, "bytes": size, "tensors": [_document_of(info) for info in infos]}
    )
    output.line(f"{name}: {counted(len(infos), 'tensor')}, {format_bytes(size)}")
    output.line()
    output.table(("name", "dtype", "shape", ">size", "from"), list(_rows(_tree(infos), "")))
    return ExitCode.OK


def _matching(source: Source, pattern: str) -> list[TensorInfo]:
    infos = tensor_infos(source.tensors(), lambda _: source.trees())
    found = [info for info in infos if fnmatchcase(info.name, pattern)]
    if not found and infos:
        raise NotFound(
            f"{source.header} has no tensor like {pattern!r}",
            hint=f"it has {infos[0].name!r}, for example; * matches any text",
        )
    return found


def _tree(infos: Sequence[TensorInfo]) -> _Branch:
    root = _Branch()
    for info in infos:
        *steps, last = info.name.split("/")
        branch = root
        for step in (*steps, None):
            branch.bytes += info.bytes
            branch.count += 1
            if step is not None:
                branch = branch.branches.setdefault(step, _Branch())
        branch.leaves.append((last, info))
    return root


def _rows(branch: _Branch, indent: str) -> Iterator[Row]:
    for step, below in branch.branches.items():
        # A step with one step below it, and nothing else, takes no line of its own.
        while len(below.branches) == 1 and not below.leaves:
            ((only, below),) = below.branches.items()
            step = f"{step}/{only}"
        count = counted(below.count, "tensor")
        yield f"{indent}{step}/", "", "", format_bytes(below.bytes), count
        yield from _rows(below, f"{indent}  ")
    for name, info in branch.leaves:
        shape = str(list(info.shape))
        yield f"{indent}{name}", str(info.dtype), shape, format_bytes(info.bytes), _origin(info)


def _origin(info: TensorInfo) -> str:
    ranks = ranges_text([Rank(rank) for rank in info.ranks])
    word = "rank" if len(info.ranks) == 1 else "ranks"
    if info.per_rank and len(info.ranks) > 1:
        return f"each of {word} {ranks}"
    parts = f"{info.shards} shards of " if info.shards > 1 else ""
    return f"{parts}{word} {ranks}"


def ranges_text(ranks: Sequence[Rank]) -> str:
    """`0-7, 12`, of ascending ranks."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _document_of(info: TensorInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "dtype": str(info.dtype),
        "shape": info.shape,
        "bytes": info.bytes,
        "shards": info.shards,
        "ranks": info.ranks,
        "per_rank": info.per_rank,
    }
