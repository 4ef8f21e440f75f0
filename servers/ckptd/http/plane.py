"""When does a daemon have an HTTP plane? When its `http` option names an address; else not even the
library for it is imported, which is half of the import time of a whole daemon.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt.aio.durable import is_there
from ckpt.base.extras import needing
from ckpt.base.system_errors import system_error
from ckptd.config import host_and_port
from ckptd.directory import CLUSTER_FILE_NAME

if TYPE_CHECKING:
    from ckptd.http.server import Answers, Reports


@asynccontextmanager
async def served(
    address: str, reports: Reports, *, answers: Answers | None, secret: bytes, directory: Path
) -> AsyncIterator[str]:
    """Serve the reports while the block runs; gives the bound HOST:PORT, "" when `address` is.

    The read-only token lies in the daemon's directory. Raises Unavailable when the address cannot
    be had, Refused when the token there cannot be one or may not be read.
    """
    if not address:
        yield ""
        return
    with needing("an address of HTTP"):
        from ckptd.http.server import TOKEN_NAME, HttpPlane, metrics_token

    try:
        token = metrics_token(directory)
    except OSError as error:
        hint = "this user has to own it" if isinstance(error, PermissionError) else ""
        raise system_error(f"cannot use {directory / TOKEN_NAME}", error, hint=hint) from None
    is_local = is_there(directory / CLUSTER_FILE_NAME)
    plane = HttpPlane(
        reports,
        answers=answers,
        secret=secret,
        token=token,
        local=directory.absolute() if is_local else None,
    )
    try:
        yield await plane.start(*host_and_port(address))
    finally:
        await plane.close()
