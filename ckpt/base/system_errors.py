"""What the operating system refuses, as an error of ours: what could not be done, why, and the next
step.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from ckpt.base.errors import CkptError, NoSpace, Refused, Unavailable


class Scarce(Unavailable):
    """This process, or its machine, has none left of what it takes to ask; no peer is to blame."""


LOCKS_REMEDY: Final = (
    "its file system takes no locks (flock): name a directory on another one, or mount it with them"
)
_ROOM: Final = "make room there"
_RIGHTS: Final = "this user needs the right to write there"
_NO_FOLDER: Final = "a file is where a directory has to be: name another place"
_KNOWN: Final[Mapping[int, tuple[type[CkptError], str]]] = {
    errno.ENOSPC: (NoSpace, _ROOM),
    errno.EDQUOT: (NoSpace, _ROOM),
    errno.EFBIG: (NoSpace, "raise the limit of a file's size: ulimit -f"),
    errno.EROFS: (Refused, "mount it for writing, or name another directory"),
    errno.EACCES: (Refused, _RIGHTS),
    errno.EPERM: (Refused, _RIGHTS),
    errno.EEXIST: (Refused, _NO_FOLDER),
    errno.ENOTDIR: (Refused, _NO_FOLDER),
    errno.ENAMETOOLONG: (Refused, "its file system takes no name of that length"),
    errno.EMFILE: (Scarce, "raise this process's limit of open files: ulimit -n"),
    errno.ENFILE: (Scarce, "no file can be opened on this machine: raise fs.file-max"),
    errno.ENOMEM: (NoSpace, "give it more memory: ulimit -v, or its cgroup's limit"),
    errno.EAGAIN: (Scarce, "raise the limit of processes: ulimit -u, or its pids.max"),
}
"""Whose cause lies outside of ckpt: which of our errors it is, and what helps."""


def system_error(what: str, error: OSError, *, hint: str = "") -> CkptError:
    """`what` could not be done because of `error`. A hint of the caller's knows more."""
    kind, known = _KNOWN.get(error.errno or 0, (CkptError, ""))
    return kind(f"{what}: {error.strerror or error}", hint=hint or known)
