"""Before a library is loaded: where no file can be opened, the loader says what it says of one that
is missing.
"""

from __future__ import annotations

import os

from ckpt.base.system_errors import system_error


def ensure_loading(what: str) -> None:
    """Raises Scarce where this process may open nothing more."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise system_error(f"{what} cannot be loaded", error) from None
