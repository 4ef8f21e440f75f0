"""Every health check there is: what it means, what mends it, and how `ckpt status` ends with it.

The page docs/health.md is made of this table, and a test proves each entry: it brings the check
about, runs the command that it names, and sees it go. So a check without a cause and a command that
mends it does not pass. Nothing of the coordinator is imported here, because the command line names
checks as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.limits import DESCRIPTORS_REMEDY
from ckpt.base.shell_words import at_host
from ckpt.protocol.coordinator.reading.answers import Check

WARNING: Final = "warning"
ERROR: Final = "error"
OK_CODE: Final = 0
DEGRADED_CODE: Final = 3
LOST_CODE: Final = 4
TRY_LATER_CODE: Final = 75
DESCRIPTORS_ENOUGH: Final = 1 << 20
NEW_TARGET: Final = "ckptd target --id NEW_ID"
START_WORKER: Final = "start a worker, on any host that reaches the targets"
WORKER_HEARD_S: Final = 60.0
"""A repair worker that was heard within this time works, or asks again soon."""


@dataclass(frozen=True, slots=True)
class CheckKind:
    """What is the same of a check whenever it stands."""

    severity: str
    exit_code: int
    """Of `ckpt status` while it stands alone; with --check a warning's is 3."""
    means: str
    """For those who save and load, while it stands."""
    cause: str
    """In one sentence."""
    mend: str
    """What to do, with the command in backticks."""
    clears: str
    """When it goes, by itself or after that."""


START: Final = (
    "start them: `ckptd target …`; in a local cluster `ckpt target release ID` of one that is held,"
    " `kill -CONT PID` of one that is stopped, else `ckpt local stop DIR && ckpt ls`. Where its"
    " process runs, its log says why it is not here, such as another secret: it names nobody then,"
    " so nobody else can say"
)
CHECKS: Final[Mapping[str, CheckKind]] = {
    "TARGET_DOWN": CheckKind(
        WARNING,
        OK_CODE,
        means="saves go to the other targets; loads compute what this one holds from parity",
        cause="a target's connection ended, or it was silent for a lease",
        mend=START,
        clears="as soon as its process has registered again; if another directory asks for its"
        " place, the check becomes DIRECTORY_UNKNOWN",
    ),
    "DIRECTORY_UNKNOWN": CheckKind(
        WARNING,
        OK_CODE,
        means="that process serves nobody; the target is down if its own directory is gone",
        cause="a process comes with a target's name but another directory: one that was emptied,"
        " or that took the place of the old one, or that was given a name which is taken; it is"
        " not let in",
        mend="bring the old directory back and start its target; if it is gone for good, `ckpt"
        " target replace ID`: then saves use the new directory, and what the old one held is gone."
        " If the target serves all the same, the process was started with its name by mistake: end"
        " it, or start it in an empty directory with an `--id` of its own",
        clears="when the directory is let in, by the command or because the old one is back; 8 s"
        " after its process has ended",
    ),
    "DIRECTORY_COPIED": CheckKind(
        WARNING,
        OK_CODE,
        means="nothing is wrong with the target; the process on the copy serves nobody",
        cause="a process comes with a copy of a target's directory, under its name or another one,"
        " while the target is there; it is not let in",
        mend="`kill PID` on its host; to add a target, begin with an empty directory",
        clears="8 s after that process has ended",
    ),
    "TARGET_REMOVED": CheckKind(
        WARNING,
        OK_CODE,
        means="that process serves nobody; nothing is missing because of it",
        cause="the process of a target that was removed still runs, or was started again; it is"
        " not let in",
        mend="`kill PID` on its host, and start it no more; to use its device again, empty the"
        " directory, and start a target there with an `--id` that was never used",
        clears="70 s after that process has ended",
    ),
    "DEVICE_FAILING": CheckKind(
        WARNING,
        OK_CODE,
        means="it gets no new columns while there are enough other targets; what it holds can be"
        " read",
        cause="a device refused write after write, or read after read",
        mend="mend what the cause names; the target notices within 5 minutes, or at once when it"
        " is started again: `kill PID`, then `ckptd target …` if no supervisor starts it",
        clears="when the device has accepted the target's small test file, or the target was"
        " started again",
    ),
    "ROT": CheckKind(
        WARNING,
        OK_CODE,
        means="all can be read while parity or other copies cover the damage, but fewer losses are"
        " survived than `ckpt ls` says",
        cause="a target read what it keeps and found parts of files that are not as they were"
        " written, or that the device cannot read",
        mend="`ckptd repair` makes columns again, and documents are written again in place; if"
        " damage stays (a column for which no target has room, an index that no target has"
        " whole), look with `ckpt verify RUN@STEP` at what is left, save again, then `ckpt rm"
        " RUN@STEP`; replace a device that rots again",
        clears="a second after all was made again or the checkpoints were deleted, or when `ckpt"
        " scrub ID` has read the files whole",
    ),
    "SCRUB_LATE": CheckKind(
        WARNING,
        OK_CODE,
        means="rot would be found late; nothing else is wrong",
        cause="a target should have read a file by now: its share of the device's time is too"
        " small for what it keeps, columns are written and read all the time, or its process did"
        " not run when that was due; its log says which",
        mend="`ckpt scrub ID` while nobody saves or loads; if that is too slow, give the target"
        " more of its device's time, or a longer period (`scrub_percent` and `scrub_period_s` of"
        " `ckptd target`)",
        clears="when all that was due has been read",
    ),
    "TOO_FEW_TARGETS": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="saves fail; what is committed can be read as far as its targets are there",
        cause="fewer targets are live and well than a save needs, or they are in too few failure"
        " domains",
        mend=START,
        clears="when enough for a save are live and well, by number and by the domain rule: k + 1,"
        " or k of a code without parity",
    ),
    "CONNECTIONS_FULL": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="trainers and readers are turned away and try again; those that are connected go on",
        cause="the coordinator or a target has no free descriptor, or as many connections as it"
        " may have",
        mend="`prlimit --pid PID --nofile=N:N` as root, at once; for good, `LimitNOFILE=` of its"
        " service; a daemon raises its limit to the hard one when it starts",
        clears="when there is room again, because the limit was raised or others have left; for a"
        " target, a second later",
    ),
    "TARGET_NEARFULL": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on; at this rate saves will be refused soon",
        cause="ckpt's columns and other files hold `nearfull_percent` (85) or more of a device,"
        " not counting the 5% that are never given away",
        mend="the message says what holds the space: remove other files, or `ckpt rm RUN@STEP`,"
        " keep fewer steps (`ckpt keep RUN`), or add targets; what is drained is evicted by itself",
        clears="a second or two after there is room again, or when the limit is raised",
    ),
    "TARGET_FULL": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="saves go to other targets while enough have room, and are refused otherwise; what"
        " is here can be read",
        cause="ckpt's columns and other files hold `full_percent` (95) or more of a device, not"
        " counting the 5% that are never given away; or its file system has no inodes left, or"
        " refuses space that it says is free, as a quota does",
        mend="the same as for TARGET_NEARFULL",
        clears="a second or two after there is room again, or when the limit is raised; after a"
        " refusal, when the next column finds room, or 10 minutes later",
    ),
    "REDUNDANCY_LOW": CheckKind(
        WARNING,
        OK_CODE,
        means="all can be read, but fewer losses are survived than the save's answer said",
        cause="columns of checkpoints, or copies of their index or commit record, are on targets"
        " that are down, or are gone from their targets",
        mend="the same as for TARGET_DOWN; `ckptd repair` makes again what is gone, on other"
        " targets after `rebuild_after_s` (`ckpt repair` shows it), at once where no more may be"
        " lost; without it, save again, then `ckpt rm RUN@STEP`",
        clears="when the targets are back with all of it, it was made again, or the checkpoints"
        " were deleted",
    ),
    "CHECKPOINT_UNREACHABLE": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="a load of it waits, then fails with 75; it never falls back to an older step;"
        " nothing is proved lost",
        cause="more columns than parity covers are on targets that are down, or are not on their"
        " targets",
        mend="the same as for TARGET_DOWN; if all targets are up, `ckpt verify RUN@STEP` settles"
        " whether it is lost",
        clears="when enough of its columns are there again, when it is deleted, or when the loss"
        " is proved and CHECKPOINT_LOST says so",
    ),
    "CHECKPOINT_LOST": CheckKind(
        ERROR,
        LOST_CODE,
        means="a load of this step fails with 4; a load without a step takes an older one, and"
        " says so",
        cause="more columns than parity covers are proved to be damaged or gone",
        mend="`ckpt fetch STORE/RUN@STEP` if an object store has it that this cluster does not"
        " drain to, else `ckpt rm RUN@STEP`",
        clears="when its step was saved again, or was deleted",
    ),
    "CHECKPOINT_STORED": CheckKind(
        WARNING,
        OK_CODE,
        means="a trainer that was given the object store (`durable`) loads it from there; one"
        " without loads an older step, and says so",
        cause="more columns than parity covers are proved to be damaged or gone, and an object"
        " store has the same generation",
        mend="`ckpt fetch --lost` saves it again into the tier; `ckpt rm RUN@STEP` if it is not"
        " needed there",
        clears="when it was fetched, its columns are there again, or it was deleted",
    ),
    "DRAIN_FAILING": CheckKind(
        WARNING,
        OK_CODE,
        means="the tier keeps what this store still needs, and may fill; other stores are served",
        cause="the last checkpoint for an object store failed, or a worker cannot use the store"
        " (bucket, credentials, no answer), and perhaps never could",
        mend="mend what the cause names; the worker tries again by itself; if the store is gone"
        " for good, end its `ckptd drain` and `ckpt drain forget URL`",
        clears="when a checkpoint was verified in the store, its worker can use it again, or it is"
        " forgotten; for a store that was never opened, 5 minutes after its worker's last word",
    ),
    "DRAIN_STOPPED": CheckKind(
        WARNING,
        OK_CODE,
        means="the tier keeps what this store still needs, and may fill",
        cause="checkpoints wait for an object store, and no worker has served it for a minute",
        mend="`ckptd drain --to URL …`; if the store is gone for good, `ckpt drain forget URL`",
        clears="as soon as a worker serves the store, or nothing waits for it any more",
    ),
    "REPAIR_PAUSED": CheckKind(
        WARNING,
        OK_CODE,
        means="what is lost stays lost: as soon as something is, fewer losses are survived than the"
        " save's answer said, or than a scrub has left",
        cause="somebody has paused repair; the message says what is due to be made again",
        mend="`ckpt repair resume`",
        clears="when repair resumes",
    ),
    "MOVES_STOPPED": CheckKind(
        WARNING,
        OK_CODE,
        means="a target that is to be emptied keeps its columns; all can be read",
        cause="columns are to leave targets that are draining or out, or to move for balance, and"
        " no repair worker was heard for a minute",
        mend="`ckptd repair --coordinator HOST:PORT` on any host that reaches the targets; or take"
        " it back, `ckpt target undrain ID`, `ckpt target in ID`, `ckpt target balance --stop`",
        clears="as soon as a worker asks for work, or nothing is to move any more",
    ),
    "UPGRADE_UNFINISHED": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on, also with an earlier version; what a lost target held is"
        " made again only in its own place, and no target can be drained, taken out or removed",
        cause="an earlier version made the catalog, and nobody has finished the upgrade",
        mend="upgrade what `ckpt upgrade status` names, then `ckpt upgrade finish`",
        clears="when it is finished",
    ),
    "RETENTION_UNSAID": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on; nothing of these runs expires, and the tier may fill",
        cause="the catalog was made again from the targets, which do not know a run's rules of"
        " what stays; the cluster's own rule may keep fewer steps than these",
        mend="set the rules again, `ckpt keep RUN --last N …`; or `ckpt keep RUN --none`, and the"
        " run keeps what the cluster keeps",
        clears="when it is set for every such run",
    ),
    "NOT_RUNNING": CheckKind(
        WARNING,
        DEGRADED_CODE,
        means="nothing is served; all that was committed is there",
        cause="a local cluster is stopped",
        mend="the next open starts it, or `ckpt ls`",
        clears="when it runs",
    ),
    "COORDINATOR_DOWN": CheckKind(
        ERROR,
        TRY_LATER_CODE,
        means="saves and loads wait; bytes on their way to targets go on, and their commit waits",
        cause="a local cluster's supervisor runs, but its coordinator does not answer: it is"
        " stopped, hangs, or has ended, for example on a full disk",
        mend="`kill -CONT PID` if it is stopped, `kill -KILL PID` if it hangs; make room on its"
        " disk; else `ckpt local stop DIR && ckpt ls`",
        clears="when the coordinator answers",
    ),
    "CATALOG_OLD": CheckKind(
        ERROR,
        LOST_CODE,
        means="saves and loads fail, saves under way wait; all that was committed is on the"
        " targets",
        cause="a target proves that a newer catalog existed: this one was removed, emptied or"
        " restored from a copy; or somebody removed some of its keys from etcd",
        mend="`ckpt local stop DIR && ckpt catalog rebuild DIR`, on other machines end the"
        " coordinator, `ckpt catalog rebuild DIR --targets 'HOST:PORT …'`, start it again; with"
        " `--catalog` see first whether that is right, then `ckpt catalog rebuild etcd://…"
        " --targets 'HOST:PORT …'`",
        clears="when the coordinator has started with the catalog that was made again",
    ),
    "CATALOG_UNPROVED": CheckKind(
        ERROR,
        TRY_LATER_CODE,
        means="saves and loads wait, then fail with 75",
        cause="too few targets are there to vouch that the catalog is the newest",
        mend="the same as for TARGET_DOWN; if they are gone for good, rebuild the catalog as for"
        " CATALOG_OLD",
        clears="when enough targets have come and vouched",
    ),
    "NO_STANDBY": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on; when the coordinator dies they wait until it runs again",
        cause="only one coordinator runs on a catalog that several may share",
        mend="start another one on another host: `ckptd coordinator --catalog URL --id NAME …`,"
        " with the secret file of the first",
        clears="within 2 s of the other coordinator's start",
    ),
    "CATALOG_SLOW": CheckKind(
        WARNING,
        OK_CODE,
        means="commits, and other changes that must be durable, take as long",
        cause="in the last minutes one transaction in a hundred with etcd took 0.2 s or more: a"
        " member's disk is slow, or the network to it",
        mend="look at `ckpt coordinator ls`, and at etcd's own wal_fsync and peer round trips;"
        " etcd wants a disk of its own",
        clears="when newer transactions are faster, at most 5 minutes after the last slow one",
    ),
    "CATALOG_FULL": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="no save begins (`no_space`), commits of saves under way wait; loads go on, except"
        " for ranks that must agree on what they load",
        cause="the disk of the coordinator's directory is full; or etcd has reached its quota and"
        " takes no writes (its alarm NOSPACE)",
        mend="make room on that disk; for etcd `etcdctl compact REVISION && etcdctl defrag"
        " --cluster && etcdctl alarm disarm`, and if that frees too little, first start its members"
        " with a larger `--quota-backend-bytes`",
        clears="within 2 s; what waited is then stored, in its order",
    ),
    "CATALOG_NO_QUORUM": CheckKind(
        ERROR,
        TRY_LATER_CODE,
        means="saves and loads wait; bytes on their way to targets go on, nothing is lost",
        cause="no member of etcd answers as part of a majority: members are down, or cannot be"
        " reached; or etcd refuses what is asked: its user has lost rights, or it has an alarm",
        mend="look at `ckpt coordinator ls`; start the members that are down, mend the network to"
        " those that cannot be reached; give the rights back, mend what the alarm names, end it; if"
        " a majority is gone for good, restore etcd's own"
        " snapshot, or `ckpt catalog rebuild etcd://… --targets 'HOST:PORT …'`",
        clears="when a majority answers again; the same coordinator or another one leads within a"
        " second",
    ),
    "CODES_DIFFER": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on; after a takeover, other options hold",
        cause="coordinators that share a catalog were started with different options",
        mend="restart those with the wrong ones: `ckptd coordinator --code CODE …`",
        clears="within 2 s of the last one's restart",
    ),
    "CATALOG_CORRUPT": CheckKind(
        ERROR,
        LOST_CODE,
        means="saves and loads fail; all that was committed is on the targets",
        cause="a local cluster's coordinator cannot read its catalog",
        mend="`ckpt local stop DIR && ckpt catalog rebuild DIR`",
        clears="when the coordinator has started with the catalog that was made again",
    ),
}


BY_COMMANDS: Final = frozenset({"NOT_RUNNING", "COORDINATOR_DOWN", "CATALOG_CORRUPT"})
"""What no coordinator says of itself: commands find it where none answers."""


def check(
    name: str, message: str, remedy: str, command: str = "", targets: Sequence[str] = ()
) -> Check:
    """One that stands now, of CHECKS."""
    return Check(name, CHECKS[name].severity, message, remedy, command, tuple(targets))


def checkpoints(found: Sequence[object], verb: str, verb_of_many: str) -> str:
    """How many there are, with their verb."""
    many = f"{len(found)} checkpoints {verb_of_many}"
    return f"1 checkpoint {verb}" if len(found) == 1 else many


def connections_full(message: str, pid: int, address: str) -> Check:
    """The daemon at that address turns peers away."""
    command = f"prlimit --pid {pid} --nofile={DESCRIPTORS_ENOUGH}:{DESCRIPTORS_ENOUGH}"
    return check("CONNECTIONS_FULL", message, DESCRIPTORS_REMEDY, at_host(address, command))


def new_target(address: str) -> str:
    """The command that adds one; whoever runs it fills in what is in capitals."""
    placed = f"--directory NEW_DIR --coordinator {address}"
    return f"{NEW_TARGET} {placed} --listen HOST:PORT"


def exit_code(checks: Sequence[Check], *, strict: bool) -> int:
    """How `ckpt status` ends: by the worst of them. `strict`: a warning is 3 as well."""
    codes = {_exit_code(each) for each in checks}
    if strict and checks:
        codes.add(DEGRADED_CODE)
    order = (LOST_CODE, TRY_LATER_CODE, DEGRADED_CODE)
    return next((code for code in order if code in codes), OK_CODE)


def _exit_code(each: Check) -> int:
    """Also of one that only a newer coordinator knows."""
    kind = CHECKS.get(each.name)
    if kind is not None:
        return kind.exit_code
    return DEGRADED_CODE if each.severity == ERROR else OK_CODE
