"""Tables that are looked at in arrays are merged as they are one by one, word by word."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt
from ckpt.format.packed_table import PackedTable, Table
from ckpt.format.table import RankTable, encode_sound_table
from ckpt.format.table_decoding import decode_table
from ckpt.plan.tensor_merger import Differing
from tests.plan.merged import Merged, merge_tables
from tests.plan.models import models
from tests.plan.packing import packed_tables


def decoded(documents: Sequence[bytes]) -> list[RankTable] | str:
    """Entry by entry; or what is wrong."""
    try:
        return [decode_table(document) for document in documents]
    except Corrupt as error:
        return str(error)


def looked_at(documents: Sequence[bytes]) -> list[Table] | str:
    try:
        return packed_tables(documents)
    except Corrupt as error:
        return str(error)


def unpacked(table: Table) -> RankTable:
    return table.unpacked() if isinstance(table, PackedTable) else table


def said(merged: Merged) -> list[object]:
    """All of it, boxes one by one."""
    tensors = [
        (tensor.name, tensor.meaning, tensor.dtype, tensor.global_shape, tuple(tensor.boxes))
        for tensor in merged.tensors
    ]
    return [tensors, merged.overlaps, merged.problems, merged.warnings]


@given(models(), st.sampled_from(Differing))
def test_whichever_way_tables_go_the_same_is_said_of_them(
    tables: list[RankTable], differing: Differing
) -> None:
    documents = [encode_sound_table(table) for table in tables]
    one_by_one, in_arrays = decoded(documents), looked_at(documents)
    if isinstance(one_by_one, str) or isinstance(in_arrays, str):
        assert one_by_one == in_arrays
        return
    assert [unpacked(table) for table in in_arrays] == one_by_one
    assert said(merge_tables(in_arrays, differing)) == said(merge_tables(one_by_one, differing))
