"""Where this user's sockets lie that have no directory of their own, or one whose name is too long
for `sun_path`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from ckpt.aio.net.address import UNIX_PATH_BYTES_MAX
from ckpt.aio.private import make_private_directory
from ckpt.base.errors import NoSpace, Refused

_HASH_DIGITS: Final = 32
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def socket_path(directory: str | Path, name: str) -> str:
    """`directory/name` when it fits and can be made; else a path in this user's runtime directory
    named by its hash.

    The same arguments give the same path to every process of one user and one environment, while
    the directory takes writes, or takes none. Raises as `runtime_directory`.
    """
    wanted = str(Path(directory).absolute() / name)
    if len(os.fsencode(wanted)) <= UNIX_PATH_BYTES_MAX and not _is_read_only(directory):
        return wanted
    digest = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:_HASH_DIGITS]
    short = str(runtime_directory() / digest)
    if len(os.fsencode(short)) > UNIX_PATH_BYTES_MAX:
        raise Refused(
            f"no socket path of at most {UNIX_PATH_BYTES_MAX} bytes for {wanted!r}",
            hint="set XDG_RUNTIME_DIR or TMPDIR to a shorter directory",
        )
    return short


def runtime_directory() -> Path:
    """A directory that only this user can enter: XDG_RUNTIME_DIR's where that can be written (after
    `su` it is another user's), else one in the temporary directory; it is made when it is missing.

    Raises Refused when there is no place for it, or another user made it; NoSpace.
    """
    base, hint = os.environ.get("XDG_RUNTIME_DIR"), "set XDG_RUNTIME_DIR to a private directory"
    user = os.getuid()
    try:
        if base and os.access(base, os.W_OK | os.X_OK):
            directory = Path(base).absolute() / "ckpt"
        else:
            directory = Path(tempfile.gettempdir()) / f"ckpt-{user}"
        make_private_directory(directory)
        status = directory.lstat()
    except OSError as error:
        kind = NoSpace if error.errno in _FULL else Refused
        text = f"there is no place for this user's sockets: {error.strerror}"
        raise kind(text, hint=hint) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        raise Refused(f"{directory} is not a directory of this user alone", hint=hint)
    return directory


def _is_read_only(directory: str | Path) -> bool:
    """Of a device that has become so: no socket can be made there."""
    try:
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except OSError:
        return False
