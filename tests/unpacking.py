"""Archives of ours, unpacked."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(path: Path, folder: Path) -> None:
    """Without a warning: with the filter `data` where Python has filters. 3.11.2 has none, which is
    Debian 12's.
    """
    with tarfile.open(path) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
