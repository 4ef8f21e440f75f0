"""What can go wrong in the world, sorted by what the caller may do about it.

A programmer's mistake is an assert. A peer's mistake is PeerError and never leaves the connection.
Every other failure is a CkptError: it knows its code on the wire, its exit code, whether the same
call may succeed later, and a hint for the reader.
"""

from __future__ import annotations

from typing import ClassVar, Final

from ckpt.base.printable import printable


class CkptError(Exception):
    """Base of everything that ckpt raises on purpose.

    `message` names the thing and the cause, `hint` the next step.
    """

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        parts = [self.message]
        if self.retry_after_s is not None:
            parts.append(f"retry after {self.retry_after_s:g} s")
        if self.hint:
            parts.append(self.hint)
        return printable("; ".join(parts), keep="\n\t")


class Refused(CkptError):
    """The request itself is wrong; nothing was changed. Correct it and call again."""

    code = "refused"
    exit_code = 2


class Unavailable(CkptError):
    """Out of reach for now; nothing is lost. The same call may succeed later."""

    code = "unavailable"
    exit_code = 75
    retryable = True


class Degraded(CkptError):
    """Done or readable, but with less redundancy than asked for."""

    code = "degraded"
    exit_code = 3


class Lost(CkptError):
    """Proved damage beyond what parity can mend."""

    code = "lost"
    exit_code = 4


class Corrupt(CkptError):
    """Bytes that do not match their checksum, or a document that does not parse."""

    code = "corrupt"
    exit_code = 4


class NotFound(CkptError):
    """No such run, step or tensor."""

    code = "not_found"
    exit_code = 10


class Busy(CkptError):
    """Somebody else holds it."""

    code = "busy"
    exit_code = 11
    retryable = True


class Unauthorized(CkptError):
    """The peer did not prove that it knows the cluster's secret."""

    code = "unauthorized"
    exit_code = 12


class NoSpace(CkptError):
    """No room, at targets, for the catalog, or where a command writes. A save has sent no byte."""

    code = "no_space"
    exit_code = 13
    retryable = True


class Aborted(CkptError):
    """This attempt will never commit; the reason names who ended it. Save again."""

    code = "aborted"
    exit_code = 1


class Fenced(Aborted):
    """A newer launch of the run has begun; this one can save no more."""

    code = "fenced"


class PeerError(CkptError):
    """The other side broke the protocol: its connection is cut and the event counted."""

    code = "peer"


ERRORS: Final[dict[str, type[CkptError]]] = {
    cls.code: cls
    for cls in (
        CkptError, Refused, Unavailable, Degraded, Lost, Corrupt, NotFound,
        Busy, Unauthorized, NoSpace, Aborted, Fenced, PeerError,
    )
}  # fmt: skip
"""Code on the wire -> class."""
ERROR_OF_EXIT: Final[dict[int, type[CkptError]]] = {
    **{error.exit_code: error for error in reversed(ERRORS.values())},
    Corrupt.exit_code: Corrupt,
}
"""Exit code of a process of ours -> class. None ends because it found a checkpoint to be Lost."""


def error_from_wire(
    code: str, message: str, hint: str = "", retry_after_s: float | None = None
) -> CkptError:
    """The error a peer reported; an unknown code (a newer peer's) becomes a plain CkptError."""
    return ERRORS.get(code, CkptError)(message, hint=hint, retry_after_s=retry_after_s)
