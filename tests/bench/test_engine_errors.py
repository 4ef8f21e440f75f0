"""Which error does the user see for what an engine's library raises?"""

from __future__ import annotations

import errno

from ckpt.base.errors import CkptError, NoSpace, Unavailable
from ckptbench.engines.base import as_ckpt_error


def test_a_full_disk_is_no_space_in_whatever_way_a_library_says_it() -> None:
    plain = as_ckpt_error(OSError(errno.ENOSPC, "No space left on device", "/scratch/x"))
    assert isinstance(plain, NoSpace)
    assert str(plain).startswith("/scratch/x: No space left on device; a smaller size=")
    text_alone = as_ckpt_error(ValueError("I/O error: No space left on device (os error 28)"))
    assert isinstance(text_alone, NoSpace)
    wrapped = RuntimeError("unexpected pos 64 vs 0")
    wrapped.__context__ = OSError(errno.ENOSPC, "No space left on device")
    assert isinstance(as_ckpt_error(wrapped), NoSpace)


def test_other_errors_keep_their_words() -> None:
    broken = as_ckpt_error(OSError(errno.EIO, "Input/output error", "/scratch/x"))
    assert isinstance(broken, Unavailable)
    assert str(broken) == "/scratch/x: Input/output error"
    assert (
        str(as_ckpt_error(RuntimeError("Traceback:\n\nKeyError: 'w'\n")))
        == "RuntimeError: KeyError: 'w'"
    )
    assert type(as_ckpt_error(ValueError())) is CkptError
