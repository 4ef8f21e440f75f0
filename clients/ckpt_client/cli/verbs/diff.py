"""How two checkpoints differ: names, shapes, dtypes, and how far values have moved.

Every value of both is read, a few MiB at a time. `moved` is the norm of the difference as a part of
the norm before, `largest` the greatest distance of one element. Tensors that came, went or changed
their form stand first, then those that moved most. --names compares names, shapes and dtypes alone
and reads no value. --prefix model compares only what lies below it in the state. URLs
(s3://bucket/run@500) are read from an object store, without any cluster: a checkpoint can be
compared with its drained copy.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.units import counted, format_bytes
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output
from ckpt_client.cli.source import opened_source
from ckpt_client.exchange.tensors import NamedArray, named_arrays
from ckpt_client.inspect.differences import Comparison, Difference, DifferenceKind

EXAMPLE = "ckpt diff llama/7b@12000 llama/7b@12500"
SHOWN_DEFAULT: Final = 40


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="RUN@A", help="the one, or its URL")
    parser.add_argument("after", metavar="RUN@B", help="the other")
    parser.add_argument("--names", action="store_true", help="read no value")
    parser.add_argument("--prefix", metavar="PATH", default="", help="only what lies below it")
    parser.add_argument(
        "--top", metavar="COUNT", type=int, default=SHOWN_DEFAULT,
        help=f"rows of the table, 0 for all [{SHOWN_DEFAULT}]",
    )  # fmt: skip


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.top < 0:
        text = f"--top {arguments.top}: 0 or more rows are possible"
        raise Refused(text, hint="--top 0 shows all")
    with (
        opened_source(arguments, output, arguments.before) as before,
        opened_source(arguments, output, arguments.after) as after,
    ):
        names = str(before.header), str(after.header)
        sides = [named_arrays(source, arguments.prefix, "/") for source in (before, after)]
        comparison = Comparison(before, after)

        def progress() -> str:
            whole = sum(array.byte_count for side in sides for array in side)
            return f"{format_bytes(comparison.bytes_read)} of {format_bytes(whole)}"

        with output.waiting(f"comparing {names[0]} with {names[1]}", progress):
            found = list(comparison.run(*sides, read_values=not arguments.names))
    counts = Counter(one.change for one in found)
    output.document({
        "before": names[0],
        "after": names[1],
        "counts": {change.value: counts[change] for change in DifferenceKind},
        "tensors": [_document_of(one) for one in found if one.change is not DifferenceKind.SAME],
    })  # fmt: skip
    _print(found, arguments.top or len(found), output)
    output.line(_summary(counts, read_values=not arguments.names))
    return ExitCode.OK


def _summary(counts: Counter[DifferenceKind], *, read_values: bool) -> str:
    words = {
        DifferenceKind.CHANGED: "changed",
        DifferenceKind.SAME: "same" if read_values else "alike",
        DifferenceKind.RESHAPED: "reshaped",
        DifferenceKind.ADDED: "added",
        DifferenceKind.REMOVED: "removed",
    }
    parts = [f"{counts[change]:,} {word}" for change, word in words.items() if counts[change]]
    return f"{counted(counts.total(), 'tensor')}: {', '.join(parts)}"


def _print(found: Sequence[Difference], shown: int, output: Output) -> None:
    other = [one for one in found if one.change is not DifferenceKind.SAME]
    other.sort(key=_rank_of)
    if not other:
        return
    output.table(
        ("", "name", "dtype, shape", ">moved", ">largest", ">elements"),
        [_row(one) for one in other[:shown]],
    )
    if len(other) > shown:
        output.line(f"and {len(other) - shown:,} more: --top 0 shows all")
    output.line()


def _rank_of(one: Difference) -> tuple[str, float, str]:
    """What is no change of values alone stands first, by its kind."""
    if one.change is DifferenceKind.CHANGED and one.moved is not None:
        return "~", -one.moved.relative, one.name
    return one.change.value, 0.0, one.name


def _row(one: Difference) -> tuple[str, str, str, str, str, str]:
    forms = list(dict.fromkeys(_form(array) for array in (one.before, one.after) if array))
    moved = one.moved
    if moved is None:
        return one.change.value, one.name, " -> ".join(forms), "", "", ""
    return (
        one.change.value, one.name, forms[0], f"{moved.relative:.3g}", f"{moved.largest:.3g}",
        f"{moved.changed_count:,}",
    )  # fmt: skip


def _form(array: NamedArray) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _document_of(one: Difference) -> dict[str, object]:
    document: dict[str, object] = {"name": one.name, "change": one.change.value}
    for side, array in (("before", one.before), ("after", one.after)):
        if array is not None:
            document[side] = {
                "dtype": str(array.dtype), "shape": array.shape, "bytes": array.byte_count
            }  # fmt: skip
    if one.moved is not None:
        document |= {
            "changed_elements": one.moved.changed_count,
            "distance": one.moved.distance,
            "relative": one.moved.relative,
            "largest": one.moved.largest,
        }
    return document
