"""The self-test passes here, and a wrong machine does not pass it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ckpt.base.errors import CkptError
from ckpt.erasure import selftest
from ckpt.erasure.code import Code
from ckpt.native import cells

Wrong = Callable[[Sequence[memoryview], Sequence[memoryview]], bool]
"""Whether a computation of these outputs from these inputs goes wrong."""


def compute_wrongly(monkeypatch: pytest.MonkeyPatch, wrong: Wrong) -> None:
    """From now on the machine flips a bit of what it computes, where `wrong` says so."""
    right = cells.transform

    def transform(
        tables: Any, inputs: Sequence[memoryview], outputs: Sequence[memoryview], **options: bool
    ) -> Any:
        crcs = right(tables, inputs, outputs, **options)
        if wrong(inputs, outputs):
            outputs[0][0] ^= 1
        return crcs

    monkeypatch.setattr(cells, "transform", transform)


def is_encoding(inputs: Sequence[memoryview], _outputs: Sequence[memoryview]) -> bool:
    """The self-test's first data cell is among the inputs: it loses that before it decodes."""
    return selftest.data_cell(0) in inputs


def is_decoding(inputs: Sequence[memoryview], outputs: Sequence[memoryview]) -> bool:
    return not is_encoding(inputs, outputs)


def test_this_machine_gives_the_known_answers() -> None:
    selftest.self_test()


@pytest.mark.parametrize("wrong", [is_encoding, is_decoding])
def test_a_machine_that_computes_wrongly_may_not_start(
    monkeypatch: pytest.MonkeyPatch, wrong: Wrong
) -> None:
    compute_wrongly(monkeypatch, wrong)
    with pytest.raises(CkptError, match="erasure code gives wrong answers; unsafe to start"):
        selftest.self_test()


def test_a_changed_known_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(selftest.PARITY_CRC32, "4+2", (0, 0))
    with pytest.raises(CkptError, match="unsafe to start"):
        selftest.self_test()


def test_a_process_in_which_the_answers_are_wrong_gets_no_codec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute_wrongly(monkeypatch, is_encoding)
    monkeypatch.setattr(selftest, "self_test_once", selftest.self_test)
    with pytest.raises(CkptError, match="unsafe to start"):
        selftest.trusted_codec(Code(4, 2))
