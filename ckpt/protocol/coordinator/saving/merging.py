"""What the ranks of an attempt handed over, as one: tables, homes, warnings, index entries.

A thousand ranks declare a million boxes, and to merge them takes seconds. A slice of it is done at
a time, so that leases are renewed, and other jobs are served, meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ckpt.base.errors import Refused
from ckpt.base.ids import CheckpointId, ColumnNumber, Home, TargetId
from ckpt.erasure.code import Code
from ckpt.format.index.document import TensorPages
from ckpt.format.index.pages import IndexPayload
from ckpt.format.messages.hello import MOVES_VERSION
from ckpt.format.messages.saving import ReplicaPolicy
from ckpt.format.packed_table import Table
from ckpt.plan.coverage import ENTRIES_AT_ONCE, TableMerger
from ckpt.plan.repeats import repeat_warning
from ckpt.plan.tensor_merger import Differing, Overlap, Problem
from ckpt.protocol.coordinator.desk import Desk, Then
from ckpt.protocol.coordinator.saving.attempts import Attempt, Payload

WARNINGS_MAX = 4
WARNING_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class MergedTables:
    """Of all ranks. It may become an index when `problems` is empty and every overlap agrees."""

    pages: TensorPages
    """Finished."""
    overlaps: tuple[Overlap, ...]
    problems: tuple[str, ...]
    """For people."""
    warnings: tuple[Problem, ...]


class TableMerges:
    """I merge the tables of each certified attempt once, a slice at a time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        #: Until they are dropped: what waits for targets is not merged again.
        self._merges: dict[CheckpointId, _Merge] = {}

    def find(self, attempt: Attempt, then: Then) -> MergedTables | None:
        """The merged tables, or None while they are still being merged: then `then` runs once when
        they are ready, unless a rank hands over another table first.
        """
        merge = self._merges.get(attempt.checkpoint)
        if merge is None or not merge.is_of(attempt):
            merge = self._merges[attempt.checkpoint] = _Merge(attempt, in_rows=self._in_rows)
            merge.go_on()
            if merge.merged is None:
                self._desk.later(lambda: self._go_on(attempt.checkpoint, merge, then))
        return merge.merged

    @property
    def _in_rows(self) -> bool:
        """Whether every process that may read the index understands boxes in rows."""
        return self._desk.needs >= MOVES_VERSION

    def drop(self, checkpoint: CheckpointId) -> None:
        """Forget the merge of an attempt that has ended."""
        self._merges.pop(checkpoint, None)

    def _go_on(self, checkpoint: CheckpointId, merge: _Merge, then: Then) -> None:
        if self._merges.get(checkpoint) is not merge:
            return
        merge.go_on()
        if merge.merged is None:
            self._desk.later(lambda: self._go_on(checkpoint, merge, then))
        else:
            then()


class _Merge:
    """Of the tables as they are when I am made; differing replicas are kept only when every rank
    wants it.
    """

    def __init__(self, attempt: Attempt, *, in_rows: bool) -> None:
        self._tables = _tables_of(attempt)
        keep = all(p.replicas is ReplicaPolicy.KEEP for p in attempt.payloads.values())
        self._pages = TensorPages(in_rows=in_rows)
        self._merger = TableMerger(
            self._tables, Differing.KEEP if keep else Differing.ABORT, self._pages
        )
        self.merged: MergedTables | None = None
        """Once it is known."""

    def is_of(self, attempt: Attempt) -> bool:
        """Whether these are its tables still."""
        tables = _tables_of(attempt)
        return len(tables) == len(self._tables) and all(
            one is other for one, other in zip(tables, self._tables, strict=True)
        )

    def go_on(self) -> None:
        """One slice."""
        refused: tuple[str, ...] = ()
        try:
            self._merger.go_on(ENTRIES_AT_ONCE)
        except Refused as error:  # A tensor that no index has room for.
            refused = (error.message,)
        if refused or self._merger.done:
            self._pages.finish()
            problems = *refused, *(problem.message for problem in self._merger.problems)
            self.merged = MergedTables(
                self._pages, self._merger.overlaps, problems, self._merger.warnings
            )


def _tables_of(attempt: Attempt) -> list[Table]:
    return [p.table for _, p in sorted(attempt.payloads.items()) if p.table is not None]


def homes_used(attempt: Attempt) -> tuple[Home, ...]:
    """Of those that its ranks named."""
    used = {piece.home for table in _referring(attempt) for piece in table.away()}
    named = {home for payload in attempt.payloads.values() for home in payload.homes}
    return tuple(sorted(home for home in named if home.generation in used))


def referenced_bytes(attempt: Attempt) -> int:
    """Bytes of its tables that lie in homes."""
    return sum(table.away_bytes() for table in _referring(attempt))


def _referring(attempt: Attempt) -> Iterator[Table]:
    """Tables that may have pieces in homes."""
    for payload in attempt.payloads.values():
        if payload.homes and payload.table is not None:
            yield payload.table


def warnings(attempt: Attempt, merged: MergedTables) -> tuple[str, ...]:
    """What its answer tells people."""
    certificates = [payload.certify for payload in attempt.payloads.values()]
    repeated = repeat_warning([one.repeats if one is not None else None for one in certificates])
    texts = [*([repeated] if repeated else []), *(kept.message for kept in merged.warnings)]
    return tuple(text[:WARNING_CHARS_MAX] for text in texts[:WARNINGS_MAX])


def metrics_of(attempt: Attempt) -> dict[str, float]:
    """Those of the lowest rank that gave any: one step has one value of each."""
    given = (payload.metrics for _, payload in sorted(attempt.payloads.items()))
    return next((metrics for metrics in given if metrics), {})


def index_payload(payload: Payload, columns: tuple[TargetId | None, ...]) -> IndexPayload:
    """A rank's entry, with the target that was accepted for each column."""
    certify = payload.certify
    assert certify is not None
    return IndexPayload(
        rank=payload.id.rank,
        code=payload.layout.code,
        payload_bytes=payload.layout.payload_bytes,
        cell_bytes=payload.layout.cell_bytes,
        document_offset=certify.document_offset,
        document_bytes=certify.document_bytes,
        manifest_digest=certify.manifest_digest,
        columns=columns,
        column_crcs=tuple(
            payload.proofs[ColumnNumber(j)].column_crc if ColumnNumber(j) in payload.proofs else 0
            for j in range(payload.layout.code.n)
        ),
    )


def code_of(attempt: Attempt) -> Code:
    """The same for all its payloads."""
    return next(iter(attempt.payloads.values())).layout.code
