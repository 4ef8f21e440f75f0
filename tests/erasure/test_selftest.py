"""The self-test passes here, and a wrong machine does not pass it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ckpt.base.errors import CkptError
from ckpt.erasure import fallback, selftest
from ckpt.erasure.code import Code
from ckpt.erasure.codec import Codec


class WrongEncode(fallback.PyeclibTransform):
    """Flips a bit of the parity."""

    def compute(self, cells: Sequence[bytes]) -> list[bytes]:
        return [bytes([cell[0] ^ 1]) + cell[1:] for cell in super().compute(cells)]


class WrongDecode(WrongEncode):
    """Flips a bit of what is decoded, and encodes well."""

    def compute(self, cells: Sequence[bytes]) -> list[bytes]:
        if self.sources == tuple(range(self.code.k)):
            return fallback.PyeclibTransform.compute(self, cells)
        return super().compute(cells)


class WrongMachine:
    """A backend whose transforms are of the given kind."""

    name = "wrong"

    def __init__(self, kind: type[fallback.PyeclibTransform]) -> None:
        self._kind = kind

    def prepare(
        self, code: Code, sources: tuple[int, ...], wanted: tuple[int, ...]
    ) -> fallback.PyeclibTransform:
        return self._kind(code, sources, wanted)


def test_this_machine_gives_the_known_answers() -> None:
    selftest.self_test()


def test_the_fallback_gives_the_known_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "codec_for", lambda code: Codec(code, fallback.Pyeclib()))
    selftest.self_test()


@pytest.mark.parametrize("kind", [WrongEncode, WrongDecode])
def test_a_machine_that_computes_wrongly_may_not_start(
    monkeypatch: pytest.MonkeyPatch, kind: type[fallback.PyeclibTransform]
) -> None:
    monkeypatch.setattr(selftest, "codec_for", lambda code: Codec(code, WrongMachine(kind)))
    with pytest.raises(CkptError, match="erasure code gives wrong answers; unsafe to start"):
        selftest.self_test()


def test_a_changed_known_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(selftest.PARITY_CRC32, "4+2", (0, 0))
    with pytest.raises(CkptError, match="unsafe to start"):
        selftest.self_test()


def test_a_process_in_which_the_answers_are_wrong_gets_no_codec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selftest, "codec_for", lambda code: Codec(code, WrongMachine(WrongEncode)))
    monkeypatch.setattr(selftest, "_test_once", selftest.self_test)
    with pytest.raises(CkptError, match="unsafe to start"):
        selftest.trusted_codec(Code(4, 2))
