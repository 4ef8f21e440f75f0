"""Ranks' tables as a coordinator has them that looks for forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt.format.packed_table import Table, TableForm, form_digest, table_arrays
from ckpt.format.table import RankTable, encode_sound_table
from ckpt.format.table_decoding import decode_table
from ckpt.protocol.coordinator.saving.forms import TableForms


def packed_tables(documents: Iterable[bytes]) -> list[Table]:
    """Of each document, in its form where it has one. Raises Corrupt."""
    forms = TableForms()
    found: list[Table] = []
    for document in documents:
        arrays = table_arrays(document)
        if arrays is None:
            found.append(decode_table(document))
            continue
        tried = (form.pack(arrays) for form in forms.candidates(form_digest(arrays)))
        packed = next((table for table in tried if table is not None), None)
        if packed is None:
            table = decode_table(document)
            form = TableForm(table, arrays)
            packed = form.pack_first(table, arrays)
            forms.begin(form_digest(arrays), arrays, lambda: None)
            forms.end(form_digest(arrays), form)
        found.append(packed)
    return found


def packed(tables: Sequence[RankTable]) -> list[Table]:
    """Tables that need not be sound."""
    return packed_tables([encode_sound_table(table) for table in tables])
