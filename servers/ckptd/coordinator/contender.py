"""Follow and lead in turns, for as long as the process runs: the shell around the leading machine.

    looks at the leader's key, the lease, the session to the leader
        --events--> LeadingMachine --actions--> take, unseat, load, lead, end the term

A term is a catalog that was loaded under a fence, a coordinator machine made of it, and the
sessions of who came meanwhile. When it ends nothing of it is left but the process and its port.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Coroutine
from contextlib import suppress
from time import time
from typing import Final

import msgspec

from ckpt.aio.clock import now_us
from ckpt.base.errors import Busy, CkptError, Corrupt, NoSpace, NotFound, Unavailable
from ckpt.base.units import US_PER_S
from ckpt.format.messages.hello import PROTOCOL_VERSION, Role
from ckpt.native.version import release
from ckpt.protocol.coordinator.leading import (
    Campaign,
    CampaignEnded,
    EndTerm,
    HolderGone,
    HolderSeen,
    ImageLoaded,
    KeyHolder,
    Lead,
    LeadingAction,
    LeadingEvent,
    LeadingMachine,
    LeadingState,
    Load,
    StepDownAsked,
    TermEnded,
    TermKept,
    TermLost,
    Unseat,
)
from ckpt.protocol.events import Ticked
from ckpt.protocol.handshake import Caller
from ckpt.protocol.target.term import PROCESS_BYTES
from ckptd.catalog.etcd.catalog import OPEN_S, EtcdCatalog
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.fence import Fence, FencedSpace
from ckptd.catalog.etcd.history import RevisionHistory
from ckptd.catalog.etcd.leader_key import Campaigner, why_free
from ckptd.catalog.etcd.lease import LeaseKeeper
from ckptd.catalog.etcd.mirror import Mirror
from ckptd.catalog.etcd.opening import admitted, etcd_place, with_remedy
from ckptd.catalog.etcd.roll import Coordinator, Roll
from ckptd.catalog.file import keep_cluster, kept_cluster
from ckptd.coordinator.colleagues import STANDING, Colleagues, CopyState
from ckptd.coordinator.config import CoordinatorConfig
from ckptd.coordinator.disagreements import SecretWatch
from ckptd.coordinator.front import (
    CLOSE_LINGER_S,
    REST_S,
    Front,
    listening,
    reached_at,
    say_ready,
)
from ckptd.coordinator.leader_watch import LeaderWatch
from ckptd.coordinator.process_end import ProcessEnd
from ckptd.coordinator.shell import CoordinatorShell
from ckptd.coordinator.silence import EtcdSilence
from ckptd.log import Reporter

LOOK_S: Final = 0.25
"""Pause between two looks at the leader's key."""
CAMPAIGN_S: Final = 2.0
"""Patience with one campaign; etcd may not answer."""
MIRROR_S: Final = 0.5
"""How long a standby's copy may take to reach the new term; after that everything is read."""
ROOM_S: Final = 1.0
"""Pause between two tries to write the roll's entry into an etcd that is full."""
ROLL_S: Final = 2.0
"""Pause between two looks at who runs."""


async def contend(
    config: CoordinatorConfig, secret: bytes, report: Reporter, end: ProcessEnd
) -> None:
    """Run until `end` says stop. Raises what made a start impossible: Unavailable naming each
    member of etcd after 30 s, Refused, Corrupt, Unauthorized; Busy for an id that another process
    has.
    """
    url, known = etcd_place(config.directory, config.cluster or None, config.catalog)
    client = EtcdClient(url)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + OPEN_S
    try:
        admission = FencedSpace(client)
        meta = await admitted(
            client, admission, known, secrets.token_hex(8), deadline,
            had_one=kept_cluster(config.directory, None) is not None,
        )  # fmt: skip
        client.was_let_in = True
        keep_cluster(config.directory, meta.cluster)
        async with listening(config, secret, meta.cluster) as front:
            contender = Contender(config, secret, report, end, front, client, meta.cluster)
            contender.limits_checked = admission.limits_checked
            await contender.run(deadline)
    finally:
        await client.close()


class Contender:
    """I am one coordinator of several; all my methods are called on the loop."""

    def __init__(
        self, config: CoordinatorConfig, secret: bytes, report: Reporter, end: ProcessEnd,
        front: Front, client: EtcdClient, cluster: str,
    ) -> None:  # fmt: skip
        self.id = config.id or socket.gethostname()
        self.address = reached_at(config, front.server.port)
        self.leads_since_s = 0.0
        """By the wall clock."""
        self.takeovers = 0
        """Terms that I began."""
        self.limits_checked = False
        """A full etcd does not say how much it takes at once: it is asked before I lead."""
        self.missing = ""
        """Why there is nothing to lead; empty while there is a catalog, as far as I know."""
        self._config = config
        self._secret = secret
        self._report = report
        self._end = end
        self._front = front
        self._cluster = cluster
        self._secrets = SecretWatch(secret, cluster, report, end.fail)
        me = Campaigner(self.id, self.address, self._secrets.mark)
        self._space = FencedSpace(client, me)
        self._silence = EtcdSilence(self._space)
        own = Coordinator(
            self._space.process, me.host, me.pid, self.address, front.view.http,
            release(), time(), config.shape, PROTOCOL_VERSION,
        )  # fmt: skip
        self.roll = Roll(client, self.id, own)
        self._mirror = Mirror(client, self._space)
        #: Of all that I have seen: a term may be shorter than what it keeps.
        self._history = RevisionHistory()
        front.people = self._colleagues = Colleagues(
            front, client, self._space, self.roll, self, self._begin, report
        )
        self._machine = LeadingMachine(self._space.process)
        caller = Caller(secret, Role.COORDINATOR, self.id, Role.COORDINATOR, cluster)
        self._watch = LeaderWatch(caller, self._leader_gone, self._say_standing)
        #: What was begun and has not ended.
        self._jobs: set[asyncio.Task[None]] = set()
        #: Who had the key when I looked last.
        self._predecessor: KeyHolder | None = None
        #: Why it was free when I campaigned last.
        self._why = ""
        #: Why I could not be written down, or begin a term, when I tried last.
        self._full: NoSpace | None = None
        #: Set when the key is to be looked at now.
        self._hurry = asyncio.Event()
        #: I have led, or have seen who does, or why nobody can.
        self._settled = False
        #: Of my term, as far as it has come.
        self._fence: Fence | None = None
        self._began_us = self._took_us = 0
        #: It was loaded from the copy of who stood by.
        self._warm = False
        self._keeper: LeaseKeeper | None = None
        self._loading: asyncio.Task[None] | None = None
        self._catalog: EtcdCatalog | None = None

    @property
    def state(self) -> LeadingState:
        """The state of the leading machine."""
        return self._machine.state

    async def run(self, deadline: float) -> None:
        """Run until the process is to end; then nothing of this coordinator is left."""
        try:
            await self.roll.join(deadline)
        except NoSpace as error:
            self._note_full(error)
            later = [self._begin(self._join_later())]
        else:
            later = []
        self._mirror.start()
        self._end.on_signals()
        late = asyncio.get_running_loop().call_at(deadline, self._check_settled)
        looks = [self._begin(each) for each in (self._look_on(), self._look_at_roll())] + later
        try:
            await self._front.run(self._end.stop, self._tick)
        finally:
            late.cancel()
            for look in looks:
                look.cancel()
            await self._leave()

    def _check_settled(self) -> None:
        # Where etcd is full it settles nothing to end: who comes instead could lead no sooner.
        if not self._settled and self._full is None:
            self._end.fail(Unavailable(f"nobody could lead at {self._space.url} in {OPEN_S:g} s"))

    @property
    def number(self) -> int:
        """The number of the term that this process leads; 0 while it does not lead."""
        leads = self.state is LeadingState.LEADING and self._fence is not None
        return self._fence.term if leads and self._fence is not None else 0

    @property
    def silence(self) -> str:
        """Why etcd does not answer, or store what my term writes; empty while it does."""
        return self._silence.why

    @property
    def full(self) -> NoSpace | None:
        """Why my term's catalog takes nothing more, or I can begin none."""
        return self._full if self._catalog is None else self._catalog.full

    def step_down(self) -> None:
        """Let another coordinator lead."""
        self._feed(StepDownAsked(now_us()))

    # ----------------------------------------------------------------------- events

    async def _look_on(self) -> None:
        """Looks at the key, one after the other, while nothing of mine is on its way to it."""
        while True:
            if self.state in (LeadingState.FOLLOWING, LeadingState.LEADING):
                await self._look()
            self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._hurry.wait()

    async def _look_at_roll(self) -> None:
        """For ever: who begins to lead names all at once."""
        while True:
            # What cannot be read now is as it was.
            with suppress(CkptError):
                await self._colleagues.look()
            await asyncio.sleep(ROLL_S)

    async def _join_later(self) -> None:
        """Until there is room to be written down."""
        while True:
            await asyncio.sleep(ROOM_S)
            try:
                await self.roll.join(asyncio.get_running_loop().time() + OPEN_S)
            except (NoSpace, Unavailable):
                continue
            except CkptError as error:
                self._end.fail(error)
            return

    def _note_full(self, error: NoSpace) -> None:
        """Nobody can begin a term: who leads goes on, who has stepped down does not come back."""
        if self._full is None:
            self._report("error", "cannot lead", {"why": error.message, "remedy": error.hint})
        self._full = error

    def _note_missing(self, error: NotFound) -> None:
        """Nobody can lead before it is back: a new one in its place would lack what there was."""
        if not self.missing:
            self._report("error", "cannot lead", {"why": error.message, "remedy": error.hint})
        self.missing = error.message
        self._settle()

    def _note_silence(self, error: Unavailable | None) -> None:
        """etcd has no majority, where it stays silent: nobody can lead, nor read the key."""
        self._silence.note(error, self._keeper)
        if self._front.leader or self.state is LeadingState.LEADING:
            return
        full = "" if self._full is None else self._full.message
        self._front.reception.why = self.silence or self.missing or full

    async def _look(self) -> None:
        before = self.state, self._fence
        try:
            holder = await self._space.holder(-1.0)
        except Unavailable as error:
            self._note_silence(error)
            return
        except CkptError as error:
            self._catalog_failed(error)
            return
        self._note_silence(None)
        self._secrets.look(holder, is_new=not self._settled)
        if self._mirror.revision:
            self._history.note(asyncio.get_running_loop().time(), self._mirror.revision)
        # What I took, or lost, meanwhile it may not know of.
        if before == (self.state, self._fence):
            self._mirror.expects(0 if holder is None else holder.revision)
            self._predecessor = holder or self._predecessor
            self._feed(HolderSeen(now_us(), holder))

    def _tick(self) -> float:
        if self._keeper is not None:
            self._feed(TermKept(self._keeper.kept_us))
        self._feed(Ticked(now_us()))
        due_us = self._machine.due_us
        return REST_S if due_us is None else (due_us - now_us()) / US_PER_S

    def _leader_gone(self, holder: KeyHolder) -> None:
        self._report("warning", "the leader's process is gone", {"address": holder.address})
        self._feed(HolderGone(now_us(), holder))
        self._hurry.set()

    def _say_standing(self, what: str) -> bytes | None:
        """What who leads asks of me."""
        if what != STANDING:
            return None
        return msgspec.json.encode(CopyState(self.id, self._mirror.revision))

    def _catalog_failed(self, error: CkptError) -> None:
        """Of my term. What another leader may do as well as I is no end of this process."""
        if isinstance(error, Busy | Unavailable | NoSpace):
            self._feed(TermLost(now_us(), error.message))
        else:
            self._end.fail(with_remedy(error, self._space.url))

    def _feed(self, event: LeadingEvent) -> None:
        for action in self._machine.handle(event):
            self._perform(action)
        self._follow()

    def _follow(self) -> None:
        """Send everybody to who leads, and watch that one."""
        other = self._machine.leader
        if other is not None and other.address != self._front.leader:
            known = {"leader": other.id, "address": other.address}
            self._report("info", "stands by", {"id": self.id, "term": other.term, **known})
        self._front.leader = "" if other is None else other.address
        if other is not None or self.state is LeadingState.LEADING:
            self._full, self.missing = None, ""
            self._front.reception.close()
        self._watch.follow(other)
        if other is not None or self.state is LeadingState.LEADING:
            self._settle()

    def _settle(self) -> None:
        """I lead, or know who does, or why nobody can."""
        if not self._settled and not self._end.stop.is_set():
            self._settled = True
            self._say_ready()

    # ----------------------------------------------------------------------- actions

    def _perform(self, action: LeadingAction) -> None:
        match action:
            case Campaign():
                self._why = why_free(self._predecessor, self._space.process, self._machine.gone)
                self._begin(self._campaign())
            case Unseat():
                self._begin(self._unseat(action.revision))
            case Load():
                self._loading = self._begin(self._load())
            case Lead():
                self._lead()
            case EndTerm():
                self._report("warning", "the term ends", {"why": action.why, "id": self.id})
                self._begin(self._end_term(action))

    def _begin(self, job: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        """What it raised is for the loop's handler, which ends the process."""
        self._jobs.discard(task)
        if not task.cancelled():
            task.result()

    async def _campaign(self) -> None:
        self._began_us = now_us()
        won: KeyHolder | None = None
        try:
            deadline = asyncio.get_running_loop().time() + CAMPAIGN_S
            if not self.limits_checked:
                await self._space.check_limits(deadline)
                self.limits_checked = True
            self._fence = await self._space.try_to_take(deadline)
        except NoSpace as error:
            self._note_full(error)
        except NotFound as error:
            self._note_missing(error)
        except Unavailable:
            self._fence = None
        except CkptError as error:
            self._catalog_failed(error)
        kept_us = lease_us = 0
        self._took_us = now_us()
        if self._fence is not None:
            fence = self._fence
            self._keeper = LeaseKeeper(self._space, fence, self._history)
            self._keeper.on_ended(self._hurry.set)
            kept_us, lease_us = fence.kept_us, fence.lease_s * US_PER_S
            won = KeyHolder(fence.revision, self._space.process, self.id, self.address, fence.term)
        self._feed(CampaignEnded(kept_us, won, lease_us))
        self._hurry.set()

    async def _unseat(self, revision: int) -> None:
        with suppress(Unavailable):
            deadline = asyncio.get_running_loop().time() + CAMPAIGN_S
            await self._space.unseat(revision, deadline)
        self._hurry.set()

    async def _load(self) -> None:
        assert self._fence is not None
        assert self._keeper is not None
        deadline = asyncio.get_running_loop().time() + OPEN_S
        known = await self._mirror.pairs_at(self._fence, MIRROR_S)
        self._warm = known is not None
        try:
            self._catalog = await EtcdCatalog.load(
                self._space, self._fence, self._cluster, self._keeper, deadline, known
            )
        except CkptError as error:
            self._catalog_failed(error)
        else:
            self._feed(ImageLoaded(now_us()))

    def _lead(self) -> None:
        catalog = self._catalog
        assert catalog is not None
        catalog.image.process = secrets.token_bytes(PROCESS_BYTES)
        try:
            shell = CoordinatorShell(
                self._config.policy(self._cluster), catalog, self._config.directory, self._secret,
                self._report, self._catalog_failed,
            )  # fmt: skip
        except Corrupt as error:
            self._catalog_failed(error)
            return
        self.leads_since_s = time()
        self.takeovers += 1
        began_us, took_us, loaded_us = self._began_us, self._took_us, now_us()
        self._report(
            "info",
            "leads",
            {
                "id": self.id,
                "term": catalog.image.term,
                "why": self._why,
                "campaign_s": (took_us - began_us) / US_PER_S,
                "load_s": (loaded_us - took_us) / US_PER_S,
                "warm": "yes" if self._warm else "no",
            },
        )
        # It is of use to who stands by alone.
        self._begin(self._mirror.stop())
        self._front.lead(shell, self._colleagues.addresses)

    async def _end_term(self, action: EndTerm) -> None:
        shell, catalog, keeper = self._front.retire(), self._catalog, self._keeper
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        # Without a shell nothing waits.
        finished = action.finish and (shell is None or await shell.finish())
        if shell is not None:
            shell.end()
        if catalog is not None:
            await (catalog.close() if finished else catalog.abandon())
        elif keeper is not None and self._fence is not None:
            await keeper.close()
            if finished:
                await self._space.free(self._fence)
        await self._front.part(action.why, CLOSE_LINGER_S if action.finish else 0.0)
        self._fence = self._keeper = self._loading = self._catalog = None
        self._mirror.start()
        self._feed(TermEnded(now_us()))
        self._hurry.set()

    # ----------------------------------------------------------------------- start and end

    def _say_ready(self) -> None:
        catalog, holder = self._catalog, self._machine.holder
        if catalog is not None:
            say_ready(self._front, id=self.id, term=catalog.image.term)
        else:
            say_ready(self._front, id=self.id, leader="" if holder is None else holder.address)

    async def _leave(self) -> None:
        """Finish the term, and be gone from the roll."""
        self.step_down()
        while self._jobs:
            await asyncio.gather(*self._jobs, return_exceptions=True)
            # A campaign that was under way may have been won.
            self.step_down()
        await self._watch.close()
        await self._mirror.stop()
        await self.roll.leave()
