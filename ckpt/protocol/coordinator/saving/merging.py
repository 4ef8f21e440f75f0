"""What the ranks of an attempt handed over, as one: tables, homes, warnings, index entries."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.base.ids import ColumnNumber, Home, TargetId
from ckpt.erasure.code import Code
from ckpt.format.index_pages import IndexPayload
from ckpt.format.messages.saving import ReplicaPolicy
from ckpt.format.table import Piece
from ckpt.plan.coverage import Differing, Merged, merge_tables
from ckpt.plan.repeats import repeat_warning
from ckpt.protocol.coordinator.saving.attempts import Attempt, Payload

WARNINGS_MAX = 4
WARNING_CHARS_MAX = 200


def merge(attempt: Attempt) -> Merged:
    """All ranks' tables as one; differing replicas are kept only when every rank wants it."""
    tables = [p.table for _, p in sorted(attempt.payloads.items()) if p.table is not None]
    keep = all(p.replicas is ReplicaPolicy.KEEP for p in attempt.payloads.values())
    return merge_tables(tables, Differing.KEEP if keep else Differing.ABORT)


def referring(attempt: Attempt) -> Iterator[Piece]:
    """Pieces of its tables that lie in homes."""
    for payload in attempt.payloads.values():
        if payload.homes and payload.table is not None:
            for entry in payload.table.entries:
                yield from (piece for piece in entry.pieces if piece.home is not None)


def homes_used(attempt: Attempt) -> tuple[Home, ...]:
    """Of those that its ranks named."""
    used = {piece.home for piece in referring(attempt)}
    named = {home for payload in attempt.payloads.values() for home in payload.homes}
    return tuple(sorted(home for home in named if home.generation in used))


def warnings(attempt: Attempt, merged: Merged) -> tuple[str, ...]:
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
