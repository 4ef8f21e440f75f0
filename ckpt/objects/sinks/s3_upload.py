"""A multipart upload of the S3 API that ends one way or the other: complete, or aborted.

    create -> part, part, ... -> complete
                   \\-> whatever else ends the block (an error, Ctrl-C, a cancelled thread): abort

Every part carries its checksum. A process that is killed aborts nothing: `ckpt gc --multipart`, the
next drain of the same checkpoint and a lifecycle rule do. Nothing relies on the store to
check it: what was written is read back.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from typing import Final, Self

from ckpt.base.errors import CkptError, NotFound
from ckpt.base.units import MiB
from ckpt.format.checksum import Buffer, crc32

PART_BYTES: Final = 16 * MiB
"""A part is sent when so many bytes have gathered; S3 allows 5 MiB to 5 GiB, 10,000 of them."""

CallS3 = Callable[..., Mapping[str, object]]


class Checksum(Enum):
    """What a store gets with a body, so that it may refuse one that rotted on the way."""

    CRC32 = "crc32"
    MD5 = "md5"
    """1.5 CPU s/GB; for stores that compare it and no CRC-32, such as Ceph's gateway 16."""

    def of(self, body: Buffer) -> dict[str, str]:
        """Arguments of a request that sends the body."""
        if self is Checksum.MD5:
            digest = hashlib.md5(body, usedforsecurity=False).digest()
            return {"ContentMD5": base64.b64encode(digest).decode()}
        return {"ChecksumCRC32": base64.b64encode(crc32(body).to_bytes(4, "big")).decode()}


class S3Upload:
    """One object in parts; see ckpt.objects.sinks.sink.Upload."""

    def __init__(
        self, call: CallS3, bucket: str, key: str, checksum: Checksum = Checksum.CRC32
    ) -> None:
        self._call = call
        self._checksum = checksum
        self._bucket, self._key = bucket, key
        self._where = {"Bucket": bucket, "Key": key}
        #: The part that is being gathered, and how much of it is; its memory serves all parts.
        self._gathered = bytearray(PART_BYTES)
        self._filled = 0
        self._upload = ""
        self._parts: list[dict[str, object]] = []
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._upload and not self._is_over:
            with suppress(CkptError):  # The error that ended the block counts; gc finds the rest.
                abort_upload(self._call, self._bucket, self._key, self._upload)

    def part(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            count = min(len(view), PART_BYTES - self._filled)
            self._gathered[self._filled : self._filled + count] = view[:count]
            self._filled += count
            view = view[count:]
            if self._filled == PART_BYTES:
                self._send(bytes(self._gathered))  # aiohttp takes nothing else.
                self._filled = 0

    def complete(self) -> None:
        last = bytes(memoryview(self._gathered)[: self._filled])
        if not self._upload:
            self._call("put_object", **self._where, Body=last, **self._checksum.of(last))
            return
        if last:
            self._send(last)
        self._call(
            "complete_multipart_upload",
            **self._where,
            UploadId=self._upload,
            MultipartUpload={"Parts": self._parts},
        )
        self._is_over = True

    def _send(self, body: bytes) -> None:
        if not self._upload:
            algorithm = {"ChecksumAlgorithm": "CRC32"} if self._is_told_crc else {}
            answer = self._call("create_multipart_upload", **self._where, **algorithm)
            self._upload = str(answer["UploadId"])
        number, checksum = len(self._parts) + 1, self._checksum.of(body)
        answer = self._call(
            "upload_part",
            **self._where,
            UploadId=self._upload,
            PartNumber=number,
            Body=body,
            **checksum,
        )
        told = checksum if self._is_told_crc else {}
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"], **told})

    @property
    def _is_told_crc(self) -> bool:
        """The store keeps it with the object, and has to hear so before and after the parts."""
        return self._checksum is Checksum.CRC32


def pending_uploads(call: CallS3, bucket: str, prefix: str) -> Sequence[tuple[str, str, float]]:
    """(key, upload, Unix time of its beginning) of all that were never ended."""
    return list(_pages(call, bucket, prefix))


def abort_upload(call: CallS3, bucket: str, key: str, upload: str) -> None:
    """End one; one that is gone is no error."""
    with suppress(NotFound):
        call("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)


def _pages(call: CallS3, bucket: str, prefix: str) -> Iterator[tuple[str, str, float]]:
    markers: dict[str, object] = {}
    while True:
        page = call("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **markers)
        uploads = page.get("Uploads", [])
        assert isinstance(uploads, list)
        for one in uploads:
            begun = one["Initiated"]
            assert isinstance(begun, datetime)
            yield str(one["Key"]), str(one["UploadId"]), begun.timestamp()
        if not page.get("IsTruncated"):
            return
        markers = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }
