"""What `--version` says: the release, and who built the C library."""

from __future__ import annotations

from functools import cache

from ckpt.base.errors import CkptError
from ckpt.native.library import find_library


@cache
def release() -> str:
    """Of ckpt-burst; `unknown` in a tree that was never installed."""
    # Looking it up parses all that pip noted of the package, and most processes never ask.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ckpt-burst")
    except PackageNotFoundError:
        return "unknown"


def version_line(program: str) -> str:
    """`ckpt 0.1.0 (gcc 12.2.0, x86_64)`."""
    try:
        build = find_library().build
    except CkptError as error:
        build = str(error)
    return f"{program} {release()} ({build})"
