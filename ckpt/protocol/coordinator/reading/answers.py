"""The records that people and tools are answered with: `views.py` and `drain_views.py` fill them.

Their fields are the interface; they are added to, never renamed. Nothing of the coordinator is
imported here: whoever only asks need not load its machines. (Structs, since every command and every
trainer makes these classes at its start: as dataclasses they took a sixth of a command's.)
"""

from __future__ import annotations

from msgspec import Struct

from ckpt.format.messages.keeping import Retention
from ckpt.protocol.coordinator.reading.coordinator_answers import CoordinatorView


class RotView(Struct, frozen=True):
    """A damaged part of a file on a target."""

    run: str
    step: int
    generation: str
    kind: str
    """`column`, `index`, `record`, `labels` or `tombstone`."""
    rank: int | None
    """Of a column, as its number."""
    column: int | None
    region: str
    """`cells`, `header 2`, `copy 1`, and so on; `file` when all of it is gone."""
    start: int
    """In the file."""
    end: int
    why: str


class ScrubView(Struct, frozen=True):
    """What a target knows of the bytes that it keeps. Times are seconds of the Unix epoch."""

    period_s: float
    """Everything is read at least this often; 0: only when somebody asks."""
    pass_began_s: int
    """Of the pass under way, else of the last one; 0: none began."""
    pass_ended_s: int
    """When the last pass was over: all that was there at its begin was read; 0: none was."""
    oldest_s: int
    """The oldest last reading of a file that was read at all; 0: none was."""
    late_s: int
    """By how much the most overdue file is late."""
    rot_count: int
    """Damaged parts of files, now."""
    rot: tuple[RotView, ...]
    """The first of them."""
    whole_since_s: int = 0
    """The begin of the last pass that is over: every byte that is there was read since then, or
    written; 0: none is over."""


class TargetView(Struct, frozen=True):
    """One target as `ckpt status` shows it."""

    id: str
    state: str
    domain: str
    address: str
    pid: int | None
    """None while it is not running."""
    directory: str
    bytes_total: int
    bytes_used: int
    bytes_free: int
    columns: int
    boot: str
    counters: dict[str, int]
    device_failing: bool = False
    """It refuses what it is asked: no new columns go there, while others will do."""
    device_error: str = ""
    """The last error that its device reported, since the target started."""
    device_errors: dict[str, int] = {}
    """How much it refused since then, by kind: write, read, sync, create, space. Empty: nothing."""
    wire: str = ""
    """Which connections have tags on their bulks: auto (from and to other hosts), mac, plain; or
    encrypt: all of TCP is encrypted. Empty: it is of an earlier version, and has none."""
    scrub: ScrubView | None = None
    """None: it is of an earlier version, or was not here yet."""
    standing: str = "in"
    """Its standing, as people set it: in, draining, out."""


class Check(Struct, frozen=True):
    """A named health check: what is wrong and what to do."""

    name: str
    severity: str
    """`warning` or `error`."""
    message: str
    """What is wrong, and why."""
    remedy: str
    """What to do."""
    command: str = ""
    """The command that does it; empty where it is no command's business."""
    targets: tuple[str, ...] = ()
    """Which targets have to be started for it to go."""


class AttemptView(Struct, frozen=True):
    """A save that has not ended."""

    run: str
    step: int
    generation: str
    state: str
    ranks_handed_over: int
    ranks_certified: int
    world_size: int
    bytes: int
    ranks_awaited: tuple[int, ...] = ()
    """The first of those that are not certified, at most RANKS_NAMED_MAX."""


class StepView(Struct, frozen=True):
    """One generation as `ckpt ls` shows it. Redundancy is what it is now, not at the write."""

    run: str
    step: int
    generation: str
    state: str
    newest: bool
    bytes: int
    world_size: int
    code: str
    targets_survivable: int
    domains_survivable: int
    domain_level: str
    columns_missing: int
    readable: bool
    stall_s: float
    commit_s: float
    fault_in_s: float
    committed_at_s: float
    slowest_rank: int
    slowest_target: str
    reason: str
    targets_survivable_at_commit: int
    domains_survivable_at_commit: int
    readers: int = 0
    """Loads that hold it now."""
    warnings: tuple[str, ...] = ()
    referenced_bytes: int = 0
    """Of `bytes`, what earlier generations hold, its homes."""
    homes: tuple[int, ...] = ()
    """Their steps."""
    documents_missing: int = 0
    """Copies of its index, commit record and labels, and of its homes', that are not there now."""
    names: tuple[str, ...] = ()
    pinned: bool = False
    """Nothing deletes it before it is unpinned."""
    gpu_s: float = 0.0
    """What the training paid: `stall_s` once for each rank, as all wait for the slowest."""
    metrics: dict[str, float] = {}
    """The metrics that its save was given."""
    aside: bool = False
    """A rollback has set it aside: nobody gets it as the newest."""
    stored: tuple[str, ...] = ()
    """Its state is `stored`: the tier has lost it, these object stores have it."""


class NameView(Struct, frozen=True):
    """A name of a run, and what it names."""

    name: str
    step: int
    generation: str
    aside: bool = False
    """A rollback has set aside what it names, under this name or another."""


class VerdictView(Struct, frozen=True):
    """What becomes of one generation, and why."""

    step: int
    generation: str
    stays: bool
    """False: it is deleted at the run's next commit, or as soon as nobody reads it."""
    reason: str
    bytes: int


class RetentionView(Struct, frozen=True):
    """What stays of a run."""

    run: str
    source: str
    """Whose rules count: the `run`'s own, the `cluster`'s, or `lost`: the catalog was made again,
    and all stays until somebody says what shall."""
    rules: Retention
    text: str
    """The same in words."""
    steps: tuple[VerdictView, ...]
    """Ascending."""


class ColumnsView(Struct, frozen=True):
    """Where the columns of one rank's payload are; `live` says which of them can be read now."""

    rank: int
    targets: tuple[str | None, ...]
    live: tuple[bool, ...]


class DocumentView(Struct, frozen=True):
    """Where the copies of an index or of a commit record are; `live` says which can be read now."""

    kind: str
    """`index` or `record`."""
    targets: tuple[str, ...]
    """Where it was put; a record only where it is, which nothing else says."""
    live: tuple[bool, ...]
    copies: int
    """How many there should be."""


class ReadingView(Struct, frozen=True):
    """When the bytes of one checkpoint were read at rest, its homes' and documents' included.

    A pass of a target that is over has read all that was there at its begin. So what lies there has
    been read since, or was written since: a bound, no exact time. That it was read does not say
    that it was whole: damage that is found is in the target's `rot`.
    """

    since_s: int
    """Of the targets that have read their part since the commit, the oldest begin of such a pass,
    by that target's clock; 0: none has."""
    target: str
    """Which one it is; empty: none."""
    read: tuple[str, ...]
    """Those targets."""
    unread: tuple[str, ...]
    """Targets of which no pass is over that began after the commit, or that do not scrub."""
    away: tuple[str, ...]
    """Targets with a column that cannot be read now: nothing is said of it."""


class ShowView(Struct, frozen=True):
    """Everything of one step."""

    generations: tuple[StepView, ...]
    """Ascending; the one that was asked for is the last, also where it is not the newest."""
    columns: tuple[ColumnsView, ...]
    """Of the last generation."""
    documents: tuple[DocumentView, ...] = ()
    """Of the last generation."""
    reading: ReadingView | None = None
    """Of the last generation. None: where its columns are is not known now, or this is of an
    earlier version."""


class RunView(Struct, frozen=True):
    """One run in a line."""

    run: str
    steps: int
    latest: int | None
    bytes: int
    """What the tier holds of it."""
    committed_at_s: float
    is_open: bool = False
    """Processes of its newest launch are here: a save of another launch would end theirs."""


class FilesView(Struct, frozen=True):
    """A committed checkpoint of files, the newest generation of its step."""

    run: str
    step: int
    generation: str
    bytes: int
    committed_at_s: float


class MemberView(Struct, frozen=True):
    """A file that is on its targets and waits for the commit of its step."""

    name: str
    length: int
    fingerprint: str
    """Hexadecimal."""


class MembersView(Struct, frozen=True):
    """The open list of a step; an empty generation when there is none."""

    generation: str
    members: tuple[MemberView, ...]


class StoreStatus(Struct, frozen=True):
    """One object store and its backlog."""

    url: str
    state: str
    """`idle`, `draining`, `waiting` (for a worker, or after a failure), `failing` with `error`;
    `unreached`: no worker could open it yet, so that nothing is kept for it."""
    every: int = 1
    keep: int | None = None
    runs: tuple[str, ...] = ()
    conditional: bool = True
    """False: the store has no conditional create, so one worker at a time gets a lease."""
    workers: tuple[str, ...] = ()
    backlog: int = 0
    """Checkpoints that it needs and does not have."""
    backlog_bytes: int = 0
    oldest_undrained: str = ""
    """RUN@STEP; empty without one."""
    oldest_undrained_at_s: float = 0.0
    """Unix time of its commit; 0 without one."""
    draining: tuple[str, ...] = ()
    parts_done: int = 0
    """Finished parts of the checkpoints that are being drained, as far as their plans are known."""
    parts: int = 0
    written_bytes: int = 0
    """Bytes of those, written by the workers that live."""
    bytes_per_s: float = 0.0
    """Rate of all workers together, while they drain."""
    end_in_s: float = 0.0
    """Seconds until the backlog is done at that rate; 0 when that is unknown."""
    last: str = ""
    """What was drained last."""
    drained: int = 0
    """Checkpoints drained since the coordinator began."""
    failed: int = 0
    """Failed attempts to drain one, since then."""
    unserved_s: float = 0.0
    """For how long there has been no worker."""
    error: str = ""


class UpgradeMember(Struct, frozen=True):
    """A process that is here, or a target that belongs here, and its protocol version."""

    kind: str
    """coordinator, target, stager, reader, worker or command."""
    name: str
    """Empty for the leading coordinator."""
    protocol: int | None
    """None: it has not come to this coordinator yet."""
    state: str


class UpgradeView(Struct, frozen=True):
    """How far the upgrade of the cluster is."""

    protocol: int
    """The version that the leading coordinator speaks."""
    needs: int
    """Peers that speak less are not let in."""
    finished: bool
    """Whether columns may move, and targets leave."""
    members: tuple[UpgradeMember, ...]
    against: tuple[str, ...]
    """Why the upgrade cannot be finished now."""
    away: tuple[str, ...]
    """Targets that are waited for, unless --force is given."""


class StatusView(Struct, frozen=True):
    """The one-screen answer."""

    cluster: str
    coordinator: CoordinatorView
    health: str
    """HEALTH_OK, HEALTH_WARN or HEALTH_ERR."""
    checks: tuple[Check, ...]
    code: str
    term: int
    epoch: int
    targets: tuple[TargetView, ...]
    runs: tuple[RunView, ...]
    attempts: tuple[AttemptView, ...]
    stores: tuple[StoreStatus, ...] = ()
    """Where checkpoints are drained to."""
