"""Which data files does a torch.distributed.checkpoint `.metadata` name?

The document is a pickle, which must not be loaded here. Its opcodes are only listed: every file's
name stands in it as a text of a form that nothing else has.
"""

from __future__ import annotations

import pickletools
import re
from typing import Final

from ckpt.base.errors import Refused

DATA_FILE: Final = re.compile(r"__[0-9]+_[0-9]+\.distcp\Z", re.ASCII)
METADATA: Final = ".metadata"
METADATA_TMP: Final = ".metadata.tmp"
RANK_METADATA: Final = re.compile(r"__[0-9]+\.metadata(\.tmp)?\Z", re.ASCII)
"""Of `use_collectives=False`."""


def data_files(metadata: bytes) -> tuple[str, ...]:
    """Their names, sorted. Raises Refused for what is no pickle."""
    try:
        texts = [value for _, value, _ in pickletools.genops(metadata) if isinstance(value, str)]
    except Exception as error:  # Its own errors are of many classes.
        raise Refused(
            f"{METADATA} is not what torch.distributed.checkpoint writes: {error}"
        ) from None
    return tuple(sorted({text for text in texts if DATA_FILE.match(text)}))
