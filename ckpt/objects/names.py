"""How runs and tensors are called in an object store.

    RUN@STEP/TERM.COUNTER/                 one generation: a Zarr v3 group
        zarr.json                          its metadata, consolidated besides
        tensors/NAME/zarr.json, c/0/0 ..   an array of all ranks (shards of it, replicas)
        ranks/R/NAME/...                   an array that belongs to rank R
        ranks/each/NAME/...                small arrays that belong to a rank each, as rows of one
        packed/0.zip, ..                   tensors under 1 MiB: a ZIP file that is a Zarr group
        trees.json                         the ranks' trees with their plain values
        manifest.json                      authoritative
        COMMITTED.json                     last, created once
        drain/...                          only while it is being written

A key has letters, digits and `._-/` of a name as they are, any other byte of its UTF-8 as `=XX` in
hex: stores, URLs and file systems agree on those. A segment that Zarr keeps for itself, or of dots
only, is escaped at its first character; an empty one is a single `=`.
"""

from __future__ import annotations

from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import Generation, RunName, Step, check_run_name, check_step

COMMITTED: Final = "COMMITTED.json"
MANIFEST: Final = "manifest.json"
TREES: Final = "trees.json"
ZARR: Final = "zarr.json"
DRAIN: Final = "drain/"
PLAN: Final = "drain/plan.json"
TENSORS: Final = "tensors"
RANKS: Final = "ranks"
EACH: Final = "ranks/each"
PACKED: Final = "packed"

_PLAIN: Final = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)  # fmt: skip
_KEPT: Final = ("c", "zarr.json", "zarr")
"""Segments of a key that Zarr itself uses below an array."""


def groups_above(path: str) -> list[str]:
    """Of a node of the group: those that it lies in, the root apart."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def node_path(name: str) -> str:
    """A tensor's name as the path of a Zarr node; two names never give the same one."""
    return "/".join(_segment(part) for part in name.split("/"))


def receipt_key(item: int) -> str:
    """Where a worker notes that it wrote and verified an item of the plan."""
    return f"{DRAIN}item-{item:06d}.json"


def step_prefix(run: str, step: int) -> str:
    """Before the generations of a step: `RUN@STEP/`."""
    return f"{run_prefix(run)}{step}/"


def run_prefix(run: str) -> str:
    """Before the steps of a run: `RUN@`."""
    return "/".join(_segment(part) for part in check_run_name(run).split("/")) + "@"


def generation_prefix(run: str, step: int, generation: Generation) -> str:
    """Before everything of one generation: `RUN@STEP/TERM.COUNTER/`."""
    return f"{step_prefix(run, step)}{generation}/"


def parse_stored(url: str) -> tuple[str, RunName, Step | None]:
    """`s3://bucket/runs@12` as (store, run, step): the run is the last segment unless `//` ends the
    store (`s3://bucket/prefix//team/run@12`). Without `@STEP` the newest is meant.

    Raises Refused.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not rest:
        raise Refused(f"{url!r} is not of the form SCHEME://STORE/RUN@STEP")
    root, double, name = rest.rpartition("//")
    if not double:
        root, _, name = rest.rpartition("/")
    run, at, step = name.partition("@")
    if at and not (step.isascii() and step.isdigit()):
        raise Refused(f"{url!r}: step {step!r} is no number", hint="SCHEME://STORE/RUN@STEP")
    found = check_step(int(step)) if at else None
    return f"{scheme}://{root}", check_run_name(run), found


def store_above(url: str, run: str, whole: str) -> str | None:
    """Where `url` is a folder of the run `whole`, and `run` its last part: the URL of the store."""
    folder = "/" + run_prefix(whole)[: -len(run_prefix(run))].rstrip("/")
    fits = whole.endswith(f"/{run}") and url.endswith(folder)
    return url.removesuffix(folder) if fits else None


def _segment(part: str) -> str:
    if not part:
        return "="
    raw = part.encode()
    text = "".join(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in raw)
    if part in _KEPT or not part.strip(".") or part.startswith("__"):
        return f"={raw[0]:02X}{text[1:]}"
    return text
