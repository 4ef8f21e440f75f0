"""Where a Unix socket lies when its directory's name is too long for `sun_path`."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from ckpt.aio.net.address import UNIX_PATH_BYTES_MAX
from ckpt.aio.private import make_private_directory
from ckpt.base.errors import Refused

_HASH_DIGITS: Final = 32


def socket_path(directory: str | Path, name: str) -> str:
    """`directory/name` when it fits; else a path in this user's runtime directory
    named by its hash.

    The same arguments give the same path to every process of one user and one environment. The
    runtime directory is made when it is missing, and Refused when another user owns it.
    """
    wanted = str(Path(directory).absolute() / name)
    if len(os.fsencode(wanted)) <= UNIX_PATH_BYTES_MAX:
        return wanted
    digest = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:_HASH_DIGITS]
    short = str(_runtime_directory() / digest)
    if len(os.fsencode(short)) > UNIX_PATH_BYTES_MAX:
        raise Refused(
            f"no socket path of at most {UNIX_PATH_BYTES_MAX} bytes for {wanted!r}",
            hint="set XDG_RUNTIME_DIR or TMPDIR to a shorter directory",
        )
    return short


def _runtime_directory() -> Path:
    """A directory that only this user can enter: XDG_RUNTIME_DIR's,
    else one in the temporary directory.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    user = os.getuid()
    directory = Path(base) / "ckpt" if base else Path(tempfile.gettempdir()) / f"ckpt-{user}"
    make_private_directory(directory)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        raise Refused(f"{directory} does not belong to this user alone", hint="remove it")
    return directory
