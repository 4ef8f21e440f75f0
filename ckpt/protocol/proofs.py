"""A target's word: the MAC over what it sealed, which only it and the coordinator can make.

The key is derived from the cluster's secret, the target and its boot, so that a proof of an earlier
incarnation, of another target or of another cluster does not verify.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import Final

from ckpt.base.ids import BootId, ColumnId, TargetId
from ckpt.format.messages import ColumnProof

_LABEL: Final = b"ckpt target"


@lru_cache(maxsize=4096)
def proof_key(secret: bytes, target: TargetId, boot: BootId) -> bytes:
    """The key, 32 bytes, under which one incarnation of a target signs."""
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


def _mac(key: bytes, cluster: str, proof: ColumnProof) -> bytes:
    """Over every field, each with its length in front, so that no two statements share bytes."""
    payload = proof.column.payload
    checkpoint = payload.checkpoint
    fields = (
        cluster, checkpoint.run, checkpoint.step, checkpoint.generation.term,
        checkpoint.generation.counter, payload.rank, proof.column.column, proof.target, proof.boot,
        proof.code, proof.payload_bytes, proof.column_crc, proof.manifest_digest.hex(),
    )  # fmt: skip
    texts = [str(field).encode() for field in fields]
    statement = b"".join([len(text).to_bytes(4, "little") + text for text in texts])
    return hmac.digest(key, hashlib.sha256(statement).digest(), "sha256")
