"""The values of one tensor of a checkpoint, or what they are like.

NAME is the tensor's path, as `ckpt show RUN@STEP --tensors` lists it. Where several ranks have
their own under one name, NAME@rank-R is that of rank R. A URL (s3://bucket/run@500/NAME) is read
from an object store, without any cluster.

--stats reads all of it, a few MiB at a time: extremes, mean, standard deviation, how many are NaN,
infinite or zero, and a histogram. Of complex numbers the absolute values are meant.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from ckpt.base.errors import NotFound, Refused
from ckpt.base.units import MiB, format_bytes
from ckpt.objects.source import Source
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output
from ckpt_client.cli.source import opened_source
from ckpt_client.exchange.tensors import NamedArray, named_arrays, values
from ckpt_client.inspect.statistics import Statistics, ValueHistogram

EXAMPLE = "ckpt cat llama/7b@12500/model/embed.weight --stats"
BINS_DEFAULT: Final = 20
BINS_MAX: Final = 1000
BAR_COLUMNS: Final = 40
WHOLE_BYTES_MAX: Final = 64 * MiB
"""What is shown without --stats."""
_PLACE: Final = re.compile(r"(?P<checkpoint>.+?@[^/@]+)/(?P<name>.+)", re.DOTALL)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tensor", metavar="RUN@STEP/NAME", help="which one, or its URL")
    parser.add_argument(
        "--stats", action="store_true", help="describe the values instead of printing them"
    )
    parser.add_argument(
        "--bins", metavar="COUNT", type=int, default=BINS_DEFAULT,
        help=f"of the histogram [{BINS_DEFAULT}]",
    )  # fmt: skip


def run(arguments: argparse.Namespace, output: Output) -> int:
    if not 1 <= arguments.bins <= BINS_MAX:
        raise Refused(f"--bins {arguments.bins}: 1 to {BINS_MAX} are possible")
    checkpoint, name = _parse(arguments.tensor)
    with opened_source(arguments, output, checkpoint) as source:
        array = _find(source, name)
        document: dict[str, object] = {
            "checkpoint": str(source.header),
            "name": array.name,
            "dtype": str(array.dtype),
            "shape": array.shape,
            "bytes": array.byte_count,
        }
        output.line(
            f"{array.name}  {array.dtype}  {list(array.shape)}  {format_bytes(array.byte_count)}"
        )
        if arguments.stats:
            with output.waiting(f"reading {array.name}"):
                found, histogram = _look(source, array, arguments.bins)
            document |= _document_of(found, histogram)
            _print_statistics(found, histogram, output)
        else:
            whole = _read_whole(source, array)
            document["values"] = whole.tolist()
            output.line(np.array2string(whole, separator=", "))
    output.document(document)
    return ExitCode.OK


def _parse(text: str) -> tuple[str, str]:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Refused(
            f"{text!r} is not of the form RUN@STEP/NAME",
            hint="names are listed by: ckpt show RUN@STEP --tensors",
        )
    return found["checkpoint"], found["name"]


def _find(source: Source, name: str) -> NamedArray:
    arrays = {array.name: array for array in named_arrays(source, "", "/")}
    if name in arrays:
        return arrays[name]
    close = difflib.get_close_matches(name, arrays, n=3)
    close = close or [other for other in sorted(arrays) if other.startswith(f"{name}@")][:3]
    hint = f"did you mean {' or '.join(close)}?" if close else "see ckpt show RUN@STEP --tensors"
    raise NotFound(f"{source.header} has no tensor {name!r}", hint=hint)


def _look(source: Source, array: NamedArray, bins: int) -> tuple[Statistics, ValueHistogram | None]:
    """Reads it twice where it is larger than what is held in memory at once."""
    parts = _parts_of(source, array)
    found = Statistics()
    for part in parts():
        found.add(part)
    if not found.finite_count:
        return found, None
    histogram = ValueHistogram.between(found.minimum, found.maximum, bins)
    for part in parts():
        histogram.add(part)
    return found, histogram


def _parts_of(source: Source, array: NamedArray) -> Callable[[], Iterator[np.ndarray]]:
    def read() -> Iterator[np.ndarray]:
        return (part for _, part in values(source, [array]))

    if array.byte_count > WHOLE_BYTES_MAX:
        return read
    kept = [part.copy() for part in read()]
    return lambda: iter(kept)


def _read_whole(source: Source, array: NamedArray) -> np.ndarray:
    if array.byte_count > WHOLE_BYTES_MAX:
        raise Refused(
            f"{array.name} has {format_bytes(array.byte_count)}, more than is shown here",
            hint="--stats says what its values are like; `ckpt export` writes them to a file",
        )
    parts = [part.copy() for _, part in values(source, [array])]
    return np.concatenate(parts).reshape(array.shape)


def _document_of(found: Statistics, histogram: ValueHistogram | None) -> dict[str, object]:
    finite = found.finite_count > 0
    statistics = {
        "count": found.count,
        "nan": found.nan_count,
        "infinite": found.inf_count,
        "zero": found.zero_count,
        "min": found.minimum if finite else None,
        "max": found.maximum if finite else None,
        "mean": found.mean if finite else None,
        "std": found.deviation if finite else None,
        "norm": found.norm,
    }
    if histogram is None:
        return {"statistics": statistics, "histogram": None}
    counted = {"edges": histogram.edges.tolist(), "counts": histogram.counts.tolist()}
    return {"statistics": statistics, "histogram": counted}


def _print_statistics(found: Statistics, histogram: ValueHistogram | None, output: Output) -> None:
    rows = [("elements", f"{found.count:,}")]
    if found.finite_count:
        rows += [
            ("min, max", f"{found.minimum:.6g}, {found.maximum:.6g}"),
            ("mean, std", f"{found.mean:.6g}, {found.deviation:.6g}"),
            ("norm", f"{found.norm:.6g}"),
        ]
    rows += [
        ("NaN, inf", f"{found.nan_count:,}, {found.inf_count:,}"),
        ("zero", f"{found.zero_count:,}"),
    ]
    for name, text in rows:
        output.line(f"{name:<12}{text}")
    if histogram is not None:
        output.line()
        output.table((">from", ">to", ">count", ""), list(_bars(histogram)))


def _bars(histogram: ValueHistogram) -> Iterator[tuple[str, str, str, str]]:
    edges, most = histogram.edges, int(histogram.counts.max())
    for low, high, count in zip(edges[:-1], edges[1:], histogram.counts, strict=True):
        # Whatever is there shows.
        columns = -(-int(count) * BAR_COLUMNS // most)
        yield f"{low:.4g}", f"{high:.4g}", f"{count:,}", "#" * columns
