"""How does a coordinator speak with etcd? By aiohttp, through each member's JSON gateway.

One member after the other is asked, beginning with the one that answered last, until one does; for
a lease, who is slow and the next one side by side. What may pass (no leader, no connection, no
answer) is Unavailable, and is asked again until a deadline; what will not pass is raised at once.
An answer that was lost leaves open whether the request was done: it is repeated as it was, so a
request must be one that may be repeated.
"""

from __future__ import annotations

import asyncio
import io
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from msgspec import Struct

from ckpt.aio.clock import now_us
from ckpt.aio.net.side_by_side import first_found
from ckpt.base.errors import CkptError, NotFound, Refused, Unauthorized, Unavailable
from ckpt.base.extras import needing
from ckpt.base.units import MiB
from ckptd.catalog.etcd.credentials import Credentials, why_broken
from ckptd.catalog.etcd.identity import EtcdIdentity, EtcdSeat, OtherEtcd, Turnout
from ckptd.catalog.etcd.url import EtcdUrl
from ckptd.catalog.etcd.words import (
    NOT_ENABLED,
    AnswerHeader,
    Authenticate,
    Authenticated,
    KeyChanges,
    KeyValue,
    Lease,
    LeaseKept,
    LeaseNamed,
    MemberHealth,
    MembersAsked,
    MembersFound,
    MemberStatus,
    Range,
    RangeFound,
    StaleToken,
    Versions,
    WatchKeys,
    WatchLine,
    decode,
    encode,
    failure_of,
)

if TYPE_CHECKING:
    import aiohttp

OLDEST: Final = (3, 4)
CONNECT_S: Final = 1.0
ATTEMPT_S: Final = 2.0
"""Patience with one member; then the next one is asked."""
MEMBERS_S: Final = 2.0
"""Patience with all of them, when they are asked whether they are of one etcd."""
KEEP_BESIDE_S: Final = 0.25
"""Then the next one is asked to keep a lease as well: one may hang, or be slow."""
KEEPS_PER_LEASE: Final = 3
LOG_IN_S: Final = 5.0
"""Patience with a member that checks a password, which takes it long where processors are few."""
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.0
ANSWER_BYTES_MAX: Final = 512 * MiB


class Answered(Protocol):
    """What etcd answers to `EtcdClient.call`."""

    @property
    def header(self) -> AnswerHeader:
        """Which etcd it is."""


_Found = TypeVar("_Found")
_Answer = TypeVar("_Answer", bound=Answered)


class EtcdClient:
    """I ask one etcd. Nothing is read or dialed before the first request but the files of the URL:
    Refused names one that cannot be used.
    """

    def __init__(self, url: EtcdUrl) -> None:
        with needing("a catalog in etcd"):
            import aiohttp
        self.url = url
        self._members = list(url.members)
        self.identity = EtcdIdentity(url.prefix)
        """Of the etcd that is asked."""
        self._credentials = Credentials(url)
        self._token = ""
        self.was_let_in = False
        """Nobody is turned away for good any more: people change rights and passwords."""
        #: etcd asks nobody for a name yet.
        self._is_open = False
        #: By member; whoever lacks a token waits for the one that is under way.
        self._log_ins: dict[str, asyncio.Task[None]] = {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=16), timeout=timeout, trust_env=False
        )
        self._broken = (aiohttp.ClientError, OSError)

    async def close(self) -> None:
        """End the connections."""
        for log_in in self._log_ins.values():
            log_in.cancel()
        await self._session.close()

    async def call(
        self, path: str, request: Struct, kind: type[_Answer], deadline: float = -math.inf,
        *, attempt_s: float = ATTEMPT_S, beside_s: float | None = None,
        failed: Callable[[Unavailable], None] | None = None,
    ) -> _Answer:  # fmt: skip
        """The answer to POST /v3/PATH; asked again until that time of the loop's clock. Each member
        has `attempt_s` to answer; after `beside_s` the next one is asked as well, and the first
        answer counts. `failed` hears of each time after which it is asked again.

        Raises Unavailable naming why each member did not answer, NoSpace, NotFound (no such
        lease), Unauthorized, Refused for all else that etcd does not take.
        """

        async def ask(member: str) -> _Answer:
            answer = decode(await self._post(member, f"/v3/{path}", request), kind)
            self.identity.check(answer.header)
            if self.identity.doubts(answer.header):
                self.identity.hear_size(*await self._size_at(member, answer.header))
            return answer

        return await self._insist(ask, deadline, attempt_s, failed, beside_s)

    async def check_version(self, deadline: float) -> None:
        """Raises Refused for an etcd that is too old."""

        async def ask(member: str) -> Versions:
            return decode(await self._say(member, "GET", "/version", b""), Versions)

        found = await self._insist(ask, deadline, ATTEMPT_S)
        for version in (found.etcdserver, found.etcdcluster):
            numbers = re.match(r"(\d+)\.(\d+)", version)
            if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
                raise Refused(
                    f"{self.url} is etcd {version}", hint="a catalog needs etcd 3.4 or newer"
                )

    async def turnout(self) -> Turnout:
        """Which member of which etcd answers at each address of the URL."""
        return Turnout(await asyncio.gather(*(self._seat_at(each) for each in self.url.members)))

    async def _seat_at(self, member: str) -> EtcdSeat:
        seat = EtcdSeat()
        with suppress(CkptError, TimeoutError):
            async with asyncio.timeout(MEMBERS_S):
                try:
                    said = await self._say(member, "POST", "/v3/maintenance/status", b"{}")
                except (StaleToken, Unauthorized):
                    # From 3.5.28 on it says so to root alone, or at least not to everybody.
                    local = Range(self.identity.question.key, serializable=True)
                    said = await self._post(member, "/v3/kv/range", local)
                header = decode(said, MemberStatus).header
                seat = EtcdSeat(header.cluster_id, header.member_id or member)
                return replace(seat, size=(await self._size_at(member, header))[1])
        return seat

    async def _size_at(self, member: str, header: AnswerHeader) -> tuple[AnswerHeader, int]:
        try:
            said = await self._post(member, "/v3/cluster/member/list", MembersAsked())
        except Unauthorized:
            return header, 0
        found = decode(said, MembersFound)
        return found.header, len(found.members)

    async def recount(self) -> None:
        """Note how many members there are: people add some, and take some out."""
        with suppress(CkptError, TimeoutError):
            async with asyncio.timeout(MEMBERS_S):
                self.identity.hear_size(*await self._size_at(self._members[0], AnswerHeader()))

    async def keep_lease(self, lease: int) -> int:
        """Renew the lease for its full length. Returns etcd's newest revision, or 0 when the lease
        has ended. Raises Unavailable when nobody knows.
        """
        named = LeaseNamed(lease)
        try:
            kept = await self.call("lease/keepalive", named, LeaseKept, beside_s=KEEP_BESIDE_S)
        except NotFound:
            return 0
        return kept.result.header.revision if kept.result.TTL > 0 else 0

    @asynccontextmanager
    async def keeping(self, lease: Lease, kept: Callable[[int], None]) -> AsyncIterator[None]:
        """Renew the lease as long as the block takes. `kept` hears when that was asked, each time
        that it was done.
        """

        async def keep() -> None:
            while True:
                await asyncio.sleep(lease.TTL / KEEPS_PER_LEASE)
                asked_us = now_us()
                with suppress(CkptError):
                    if await self.keep_lease(lease.ID):
                        kept(asked_us)

        task = asyncio.get_running_loop().create_task(keep())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def end_lease(self, lease: int) -> None:
        """End the lease with all its keys, if etcd answers; otherwise it ends by itself."""
        with suppress(CkptError):
            await self.call("lease/revoke", LeaseNamed(lease), Lease)

    async def one(self, key: bytes, deadline: float) -> KeyValue | None:
        """The value of the key; None if there is none. Raises as `call`."""
        found = await self.call("kv/range", Range(key), RangeFound, deadline)
        return found.kvs[0] if found.kvs else None

    async def health(self, member: str) -> tuple[float, str]:
        """Seconds until this member reported that it is well, and ""; otherwise NaN, and the
        reason.
        """
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            async with asyncio.timeout(CONNECT_S):
                said = decode(await self._say(member, "GET", "/health", b""), MemberHealth)
        except (CkptError, TimeoutError) as error:
            return math.nan, str(error) or "no answer in time"
        answered_s = clock() - began_s
        if said.health != "true":
            return math.nan, said.reason or "it says that it is not well"
        why = self.identity.why_other(await self._seat_at(member))
        return (math.nan, why) if why else (answered_s, "")

    async def watch(
        self, request: WatchKeys, turn: int, silence_s: float
    ) -> AsyncGenerator[KeyChanges | None, None]:
        """Changes, as one member reports them, a different one for each `turn`; None after a long
        silence. Raises Unavailable when the watch ends.
        """
        member = self.url.members[turn % len(self.url.members)]
        if self._lacks_token:
            await self._authenticate(member, self._token)
        headers = {"Authorization": self._token} if self._token else {}
        url = f"{self.url.scheme}://{member}/v3/watch"
        asked = self._session.post(
            url, data=io.BytesIO(encode(request)), headers=headers, ssl=self._credentials.tls
        )
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(ATTEMPT_S):
                    answer = await stack.enter_async_context(asked)
                async for line in _lines(answer.content, silence_s):
                    yield None if line is None else decode(line, WatchLine).result
        except self._broken as error:
            raise Unavailable(f"{member}: {self._why_broken(error)}") from None
        raise Unavailable(f"{member} ends the watch")

    async def _insist(
        self, ask: Callable[[str], Awaitable[_Found]], deadline: float, attempt_s: float,
        failed: Callable[[Unavailable], None] | None = None, beside_s: float | None = None,
    ) -> _Found:  # fmt: skip
        loop, wait_s = asyncio.get_running_loop(), RETRY_S
        while True:
            try:
                return await self._ask_each(ask, attempt_s, beside_s)
            except Unavailable as error:
                if loop.time() + wait_s > deadline:
                    raise
                if failed is not None:
                    failed(error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_S_MAX)

    async def _ask_each(
        self, ask: Callable[[str], Awaitable[_Found]], attempt_s: float, beside_s: float | None
    ) -> _Found:
        reasons: list[str] = []
        others: dict[str, str] = {}

        async def attempt(member: str) -> _Found | None:
            try:
                async with asyncio.timeout(attempt_s):
                    answer = await ask(member)
            except (Unavailable, Unauthorized, TimeoutError) as error:
                if isinstance(error, Unauthorized) and not self.was_let_in:
                    raise
                reasons.append(f"{member}: {str(error) or 'no answer in time'}")
                if isinstance(error, OtherEtcd):
                    others[member] = error.id
                self._credentials.renew()
                return None
            # Others may have moved it meanwhile.
            self._members.remove(member)
            self._members.insert(0, member)
            return answer

        found = await first_found([partial(attempt, each) for each in self._members], beside_s)
        if found is not None:
            return found
        if others:
            await self._follow_one_of(others)
        raise Unavailable(
            f"no member of {self.url} answers: {'; '.join(reasons)}",
            hint="see that a majority of its members runs, and that this host reaches them",
        )

    async def _follow_one_of(self, others: Mapping[str, str]) -> None:
        """Ask the etcd that most members are of instead, where it has the catalog, and none of them
        is of the one that was asked so far.
        """
        turnout = await self.turnout()
        most = "" if self.identity.id in turnout.etcds else turnout.chosen
        for member in (each for each, id in others.items() if most and id == most):
            with suppress(CkptError, TimeoutError):
                async with asyncio.timeout(MEMBERS_S):
                    said = await self._post(member, "/v3/kv/range", self.identity.question)
                if self.identity.is_answered(decode(said, RangeFound)):
                    self.identity.follow(most, turnout)
                    return

    @property
    def _lacks_token(self) -> bool:
        return bool(self.url.user) and not (self._token or self._is_open)

    async def _post(self, member: str, path: str, request: Struct) -> bytes:
        if self._lacks_token:
            await self._authenticate(member, self._token)
        token = self._token
        try:
            return await self._say(member, "POST", path, encode(request))
        except StaleToken:
            await self._authenticate(member, token)
        try:
            return await self._say(member, "POST", path, encode(request))
        except StaleToken as error:
            raise Unavailable(error.message) from None

    async def _authenticate(self, member: str, stale: str) -> None:
        """Have another token than that one, or know that none is needed. A log-in goes on when who
        waits for it gives up: a password is checked for long, and no sooner when begun again.
        """
        log_in = self._log_ins.get(member)
        if log_in is None or log_in.done():
            if self._token != stale:
                return
            log_in = self._log_ins[member] = asyncio.create_task(self._log_in(member))
            # Whoever still waits hears of its error.
            log_in.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(log_in)

    async def _log_in(self, member: str) -> None:
        self._token, self._is_open = "", False
        self._credentials.renew()
        request = Authenticate(self.url.user, self._credentials.password)
        try:
            async with asyncio.timeout(LOG_IN_S):
                content = await self._say(member, "POST", "/v3/auth/authenticate", encode(request))
        except Unauthorized as error:
            if NOT_ENABLED in error.message:
                self._is_open = True
                return
            if not self.was_let_in:
                raise
            # Whoever renews it changes it in etcd and in the file, one after the other.
            text = f"{self.url.password_file} has not the password of {self.url.user} any more"
            raise Unavailable(text, hint=error.hint) from None
        self._token = decode(content, Authenticated).token

    async def _say(self, member: str, method: str, path: str, body: bytes) -> bytes:
        """What one member answers. Raises as `call`; Unavailable without the member's name."""
        headers = {"Authorization": self._token} if self._token else {}
        url = f"{self.url.scheme}://{member}{path}"
        try:
            async with self._session.request(
                method, url, data=io.BytesIO(body) if body else None, headers=headers,
                ssl=self._credentials.tls,
            ) as answer:  # fmt: skip
                content = await _whole(answer)
                status = answer.status
        except self._broken as error:
            raise Unavailable(self._why_broken(error)) from None
        if status != 200:
            raise failure_of(status, content, self.url)
        return content

    def _why_broken(self, error: Exception) -> str:
        return why_broken(error, self.url, was_let_in=self.was_let_in)


async def _lines(content: aiohttp.StreamReader, silence_s: float) -> AsyncIterator[bytes | None]:
    """Whole lines, of any length; None after so much silence."""
    rest = b""
    while True:
        try:
            async with asyncio.timeout(silence_s):
                part = await content.readany()
        except TimeoutError:
            yield None
            continue
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > ANSWER_BYTES_MAX:
            raise Refused(f"an answer of etcd has more than {ANSWER_BYTES_MAX} bytes")
        for line in lines:
            yield line


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise Refused(f"an answer of etcd has more than {ANSWER_BYTES_MAX} bytes")
    return b"".join(parts)
