"""What is said to etcd's JSON gateway, and what it answers: its v3 API, as far as a catalog needs.

Bytes are Base64, 64-bit numbers may be strings, and what is zero is left out. A field of None is
not sent.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field

from ckpt.base.errors import CkptError, NoSpace, NotFound, Refused, Unauthorized, Unavailable
from ckptd.catalog.etcd.url import EtcdUrl

_Answer = TypeVar("_Answer")


class KeyValue(Struct, frozen=True, gc=False):
    """One key as it is."""

    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0


class Range(Struct, frozen=True, omit_defaults=True):
    """Keys from `key` on; without `range_end` (exclusive) that one alone."""

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    serializable: bool = False
    """As the member knows them that answers, with a majority or without."""


class AnswerHeader(Struct, frozen=True):
    """Of each answer: etcd's newest revision, and which member of which etcd it is."""

    revision: int = 0
    cluster_id: str = ""
    member_id: str = ""
    raft_term: int = 0


class RangeFound(Struct, frozen=True):
    """Answer to Range."""

    kvs: tuple[KeyValue, ...] = ()
    more: bool = False
    header: AnswerHeader = field(default_factory=AnswerHeader)


class Put(Struct, frozen=True, omit_defaults=True):
    """The whole value of a key. With a lease it goes when that ends."""

    key: bytes
    value: bytes = b""
    lease: int = 0


class DeleteRange(Struct, frozen=True, omit_defaults=True):
    """Keys that go, as Range names them; those that are gone stay so."""

    key: bytes
    range_end: bytes = b""


class Compare(Struct, frozen=True, omit_defaults=True):
    """One condition: this field of the key (0 of one that is not there) is so."""

    key: bytes
    target: str
    create_revision: int | None = None
    mod_revision: int | None = None
    version: int | None = None
    value: bytes | None = None
    result: str = "EQUAL"


class Operation(Struct, frozen=True, omit_defaults=True):
    """One of these."""

    request_put: Put | None = None
    request_delete_range: DeleteRange | None = None
    request_range: Range | None = None


class Transaction(Struct, frozen=True, omit_defaults=True):
    """All of `success` when every comparison holds, else all of `failure`."""

    compare: tuple[Compare, ...]
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


class OperationDone(Struct, frozen=True):
    """What one operation of a transaction found."""

    response_range: RangeFound | None = None


class TransactionDone(Struct, frozen=True):
    """Which branch it took, and what was found there."""

    succeeded: bool = False
    responses: tuple[OperationDone, ...] = ()
    header: AnswerHeader = field(default_factory=AnswerHeader)

    def found(self, index: int) -> KeyValue | None:
        """The one key that its operation of that index asked for."""
        asked = self.responses[index].response_range
        return asked.kvs[0] if asked is not None and asked.kvs else None


class LeaseGrant(Struct, frozen=True):
    """A lease of `TTL` seconds."""

    TTL: int
    ID: int = 0


class LeaseNamed(Struct, frozen=True):
    """Keep it, or end it."""

    ID: int


class Lease(Struct, frozen=True):
    """One that was granted, or is kept: TTL is 0 when it has ended."""

    ID: int = 0
    TTL: int = 0
    header: AnswerHeader = field(default_factory=AnswerHeader)


class LeaseKept(Struct, frozen=True):
    """The first of the answers to a stream."""

    result: Lease = field(default_factory=Lease)

    @property
    def header(self) -> AnswerHeader:
        return self.result.header


class WatchFrom(Struct, frozen=True):
    """All changes of these keys, from that revision on."""

    key: bytes
    range_end: bytes
    start_revision: int


class WatchKeys(Struct, frozen=True):
    """Begin one."""

    create_request: WatchFrom


class KeyChange(Struct, frozen=True):
    """One key, at the `mod_revision` of `kv`."""

    kv: KeyValue
    type: str = "PUT"
    """Or DELETE."""


class KeyChanges(Struct, frozen=True):
    """What happened, by whole revisions in their order."""

    events: tuple[KeyChange, ...] = ()
    canceled: bool = False
    """No more will come: what was asked for is compacted, say."""
    compact_revision: int = 0
    cancel_reason: str = ""


class WatchLine(Struct, frozen=True):
    """One of the answers to WatchKeys."""

    result: KeyChanges = field(default_factory=KeyChanges)


class Compact(Struct, frozen=True):
    """What was overwritten up to this revision may go."""

    revision: int


class Compacted(Struct, frozen=True):
    """It may have been before."""

    header: AnswerHeader = field(default_factory=AnswerHeader)


class Authenticate(Struct, frozen=True):
    name: str
    password: str


class Authenticated(Struct, frozen=True):
    token: str = ""


class Versions(Struct, frozen=True):
    """Of the member that answers, and of the lowest member."""

    etcdserver: str
    etcdcluster: str = ""


class MemberStatus(Struct, frozen=True):
    """How the member is that answers."""

    header: AnswerHeader = field(default_factory=AnswerHeader)


class MembersAsked(Struct, frozen=True):
    """Who is a member?"""


class MemberFound(Struct, frozen=True):
    name: str = ""


class MembersFound(Struct, frozen=True):
    """All of the etcd that answers, also those that do not run."""

    members: tuple[MemberFound, ...] = ()
    header: AnswerHeader = field(default_factory=AnswerHeader)


class MemberHealth(Struct, frozen=True):
    """Of the member that answers."""

    health: str = ""
    """`true` when it has a leader and no alarm."""
    reason: str = ""


class Failure(Struct, frozen=True):
    """Why not; `code` is gRPC's."""

    error: str = ""
    """Of etcd's first gateway, which says it twice; etcd 3.6 has the second one, and `message`."""
    code: int = 0
    message: str = ""


def encode(request: Struct) -> bytes:
    """As the gateway takes it."""
    return _ENCODER.encode(request)


def decode(content: bytes, kind: type[_Answer]) -> _Answer:
    """Raises Unavailable for what is no such answer: somebody else's, or a part of one."""
    try:
        return msgspec.json.decode(content, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unavailable(f"what answers there is no etcd: {error}") from None


class StaleToken(CkptError):
    """It was good before: there is a new one to be had."""


def failure_of(status: int, content: bytes, url: EtcdUrl) -> CkptError:
    """The error that an answer stands for; what is not known to stay may pass."""
    try:
        said = decode(content, Failure)
    except Unavailable:
        if status == _NO_SUCH_PATH:
            # So it is where a file of options does not switch it on.
            return Unavailable(
                "it has no JSON gateway: start it with --enable-grpc-gateway; or name the port for"
                " its clients, where this is the one for its peers"
            )
        return Unavailable(f"HTTP status {status}")
    text = said.error or said.message or f"HTTP status {status}"
    stale = any(word in text for word in _STALE_WORDS) or (url.user and _NAMELESS in text)
    if stale or said.code == _UNAUTHENTICATED:
        return StaleToken(text)
    if said.code == _DENIED or any(word in text for word in _AUTH_WORDS):
        hint = "give user= and password_file= of one who may read and write below the prefix"
        return Unauthorized(f"{url}: {text}", hint=hint)
    if said.code == _EXHAUSTED and "space" in text:
        return NoSpace(
            f"{url}: {text}",
            hint="compact and defragment it, then etcdctl alarm disarm; or raise its"
            " --quota-backend-bytes",
        )
    if said.code == _NOT_FOUND:
        return NotFound(f"{url}: {text}")
    if said.code == _INVALID:
        return Refused(f"{url}: {text}")
    return Unavailable(text)


_ENCODER: Final = msgspec.json.Encoder()

_NO_SUCH_PATH: Final = 404
#: gRPC's codes.
_INVALID, _NOT_FOUND, _DENIED, _EXHAUSTED, _UNAUTHENTICATED = 3, 5, 7, 8, 16
_NAMELESS: Final = "user name is empty"
NOT_ENABLED: Final = "authentication is not enabled"
_AUTH_WORDS: Final = (_NAMELESS, NOT_ENABLED, "authentication failed")
_STALE_WORDS: Final = ("invalid auth token", "revision of auth store is old")
