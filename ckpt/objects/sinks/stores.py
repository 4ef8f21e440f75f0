"""Which sink serves a URL.

file:///DIR                    a directory: durable, atomic, no library
obstore+s3://, +gs://, +az://  obstore
anything else with ://         fsspec (s3, gs, az, memory, ...)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ckpt.base.errors import Refused
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.sinks.retry import Patience
from ckpt.objects.sinks.sink import Sink

OBSTORE: Final = "obstore+"


def open_sink(
    url: str,
    options: Mapping[str, object] | None = None,
    patience: Patience | None = None,
    checksum: str = "",
) -> Sink:
    """The store at a URL; nothing is asked of it yet. Raises Refused.

    options: for the library that serves it: fsspec's storage options, or obstore's configuration.
    checksum: `crc32` or `md5`, which s3:// tells the store of each body.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not rest:
        raise Refused(
            f"object store {url!r} is not of the form SCHEME://PLACE",
            hint="file:///DIR, s3://BUCKET/PREFIX, obstore+s3://BUCKET/PREFIX, ...",
        )
    if checksum and scheme not in ("s3", "s3a"):
        raise Refused(f"object store {url!r}: checksum= is of s3:// alone")
    if scheme == "file":
        if not rest.startswith("/"):
            raise Refused(f"object store {url!r}: the directory must be absolute")
        return FileSink(Path(unquote(rest)))
    if scheme.startswith(OBSTORE):
        from ckpt.objects.sinks.obstore_sink import ObstoreSink

        return ObstoreSink(url.removeprefix(OBSTORE), options, patience)
    if scheme.startswith("ckpt"):
        raise Refused(f"{url!r} is a cluster, no object store")
    from ckpt.objects.sinks.fsspec_sink import FsspecSink
    from ckpt.objects.sinks.s3_upload import Checksum

    return FsspecSink(url, options, patience, Checksum(checksum or Checksum.CRC32))
