"""A target's word: the MAC over what it sealed, which only it and the coordinator can make.

The key is derived from the cluster's secret, the target and its boot, so that a proof of an earlier
boot, of another target or of another cluster does not verify.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from ckpt.base.ids import BootId, ColumnId, PayloadId, TargetId
from ckpt.format.messages.writing import ColumnProof

_LABEL: Final = b"ckpt target"
_HOLDINGS: Final = b"ckpt holdings"


@lru_cache(maxsize=4096)
def proof_key(secret: bytes, target: TargetId, boot: BootId) -> bytes:
    """The key, 32 bytes, under which one boot of a target signs."""
    name = target.encode()
    parts = (_LABEL, len(name).to_bytes(2, "little"), name, boot.to_bytes(8, "little"))
    return hmac.digest(secret, b"".join(parts), "sha256")


def make_proof(
    key: bytes,
    cluster: str,
    *,
    column: ColumnId,
    target: TargetId,
    boot: BootId,
    code: str,
    payload_bytes: int,
    column_crc: int,
    manifest_digest: bytes,
) -> ColumnProof:
    """The signed statement that this column is sealed on this target, in this boot."""
    proof = ColumnProof(
        column, target, boot, code, payload_bytes, column_crc, manifest_digest, mac=b""
    )
    return ColumnProof(
        column, target, boot, code, payload_bytes, column_crc, manifest_digest,
        mac=_mac(key, cluster, proof),
    )  # fmt: skip


def check_proof(proof: ColumnProof, cluster: str, secret: bytes) -> bool:
    """Whether the target that the proof names made it, in the boot that it names."""
    if not 0 < proof.boot < 1 << 64:
        return False
    key = proof_key(secret, proof.target, proof.boot)
    return hmac.compare_digest(_mac(key, cluster, proof), proof.mac)


def holdings_mac(
    key: bytes, cluster: str, after: str, page: bytes | bytearray | memoryview
) -> bytes:
    """Over a whole page of what lies on a target (ckpt.format.messages.targets.HoldingsPage), and
    after which name it was asked for: one for all columns in it.
    """
    head = b"".join([_HOLDINGS, _with_lengths((cluster, after))])
    return hmac.digest(key, head + hashlib.sha256(page).digest(), "sha256")


def _mac(key: bytes, cluster: str, proof: ColumnProof) -> bytes:
    """Over every field, each with its length in front, so that no two statements share bytes."""
    fields = (
        proof.column.column, proof.target, proof.boot, proof.code, proof.payload_bytes,
        proof.column_crc, proof.manifest_digest.hex(),
    )  # fmt: skip
    statement = _of_payload(cluster, proof.column.payload) + _with_lengths(fields)
    return hmac.digest(key, hashlib.sha256(statement).digest(), "sha256")


@lru_cache(maxsize=1024)
def _of_payload(cluster: str, payload: PayloadId) -> bytes:
    """What the proofs of all its columns begin with."""
    id, generation = payload.checkpoint, payload.checkpoint.generation
    return _with_lengths(
        (cluster, id.run, id.step, generation.term, generation.counter, payload.rank)
    )


def _with_lengths(fields: Iterable[str | int]) -> bytes:
    texts = [str(field).encode() for field in fields]
    return b"".join([len(text).to_bytes(4, "little") + text for text in texts])
