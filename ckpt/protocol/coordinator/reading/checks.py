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
from ckpt.protocol.coordinator.reading.answers import Check

WARNING: Final = "warning"
ERROR: Final = "error"
OK_CODE: Final = 0
DEGRADED_CODE: Final = 3
LOST_CODE: Final = 4
TRY_LATER_CODE: Final = 75
DESCRIPTORS_ENOUGH: Final = 1 << 20


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
    " `kill -CONT PID` of one that is stopped, else `ckpt local stop DIR && ckpt ls`"
)
CHECKS: Final[Mapping[str, CheckKind]] = {
    "TARGET_DOWN": CheckKind(
        WARNING,
        OK_CODE,
        means="saves go to the other targets; what this one holds is made up for by parity",
        cause="a target's connection ended, or it was silent for a lease",
        mend=START,
        clears="as soon as its process has registered again; another directory that asks for its"
        " place turns it into DIRECTORY_UNKNOWN",
    ),
    "DIRECTORY_UNKNOWN": CheckKind(
        WARNING,
        OK_CODE,
        means="that process serves nobody; the target is down when its own directory is gone",
        cause="a process presents another directory under a target's name: it was emptied, or put"
        " in the place of the old one; it is not taken in",
        mend="bring the old directory back and start its target; when it is gone for good `ckpt"
        " target replace ID`: then saves use the new one, and what the old one held is gone",
        clears="when the directory is taken in, by the command or because the old one is back; 8 s"
        " after its process has ended",
    ),
    "DIRECTORY_COPIED": CheckKind(
        WARNING,
        OK_CODE,
        means="nothing is wrong with the target; the process on the copy serves nobody",
        cause="a process presents a copy of a target's directory, under its name or another one,"
        " while the target is there; it is not taken in",
        mend="`kill PID` on its host; a target that is to be added begins with an empty directory",
        clears="8 s after that process has ended",
    ),
    "DEVICE_FAILING": CheckKind(
        WARNING,
        OK_CODE,
        means="it gets no new columns while others will do; what it holds is read",
        cause="a device refused write after write, or read after read",
        mend="mend what the cause names; the target finds out by itself within 5 minutes, at once"
        " when it is started again: `kill PID`, and `ckptd target …` where no supervisor does that",
        clears="when the device has taken the target's small file, or the target has started again",
    ),
    "ROT": CheckKind(
        WARNING,
        OK_CODE,
        means="all can be read while parity or other copies cover it, and fewer losses are survived"
        " than `ckpt ls` says",
        cause="a target read what it keeps, and parts of files are not as they were written, or the"
        " device cannot read them",
        mend="`ckptd repair` makes columns again elsewhere, and documents are written there once"
        " more; of what stays (a column without another place, an index that nobody has whole) see"
        " what is left with `ckpt verify RUN@STEP`, save again, then `ckpt rm RUN@STEP`; a device"
        " that does it again is to be replaced",
        clears="a second after all is made again or the checkpoints are deleted, or `ckpt scrub ID`"
        " has read the files whole",
    ),
    "SCRUB_LATE": CheckKind(
        WARNING,
        OK_CODE,
        means="rot would be found late; nothing else is wrong",
        cause="a target was to have read a file by now: its share of the device's time is too small"
        " for what it keeps, or columns are written and read all the time",
        mend="`ckpt scrub ID` while nobody saves or loads; where that is too slow give the target"
        " more of its device, or a longer period (`scrub_percent` and `scrub_period_s` of `ckptd"
        " target`)",
        clears="when all that was due is read",
    ),
    "TOO_FEW_TARGETS": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="saves fail; what is committed is read as far as its targets are there",
        cause="fewer targets are live and well than a save needs",
        mend=START,
        clears="when enough for a save are live and well: k + 1, or k of a code without parity",
    ),
    "CONNECTIONS_FULL": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="trainers and readers are turned away and try again; those that are connected go on",
        cause="the coordinator, or a target, has no free descriptor, or as many connections as it"
        " may",
        mend="`prlimit --pid PID --nofile=N:N` as root, at once; for good `LimitNOFILE=` of its"
        " service; it takes the hard limit by itself when it starts",
        clears="when there is room again, because the limit was raised or others have left; of a"
        " target a second later",
    ),
    "TARGET_NEARFULL": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on; at this rate saves will be refused soon",
        cause="of a device, less the 5% that are never given away, ckpt's columns and other files"
        " hold `nearfull_percent` (85) or more",
        mend="the message says who holds it: remove other files, or `ckpt rm RUN@STEP`, keep fewer"
        " steps (`ckpt keep RUN`), or add targets; what is drained goes by itself",
        clears="a second or two after there is room again, or when the mark is raised",
    ),
    "TARGET_FULL": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="saves go to other targets while enough have room, and are refused otherwise;"
        " what is here is read",
        cause="of a device, less the 5% that are never given away, ckpt's columns and other files"
        " hold `full_percent` (95) or more",
        mend="the same as for TARGET_NEARFULL",
        clears="a second or two after there is room again, or when the mark is raised",
    ),
    "REDUNDANCY_LOW": CheckKind(
        WARNING,
        OK_CODE,
        means="all can be read, and fewer losses are survived than the save's answer said",
        cause="columns of checkpoints, or copies of their index or commit record, are on targets"
        " that are down, or are gone from their targets",
        mend="the same as for TARGET_DOWN; what is gone `ckptd repair` makes again (`ckpt repair`"
        " shows what it does), on other targets after `rebuild_after_s`; else the next save has all"
        " of its own, then `ckpt rm RUN@STEP`",
        clears="when the targets are back with all of it, it was made again, or the checkpoints are"
        " deleted",
    ),
    "CHECKPOINT_UNREACHABLE": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="a load of it waits, then fails with 75; it never gives an older step instead;"
        " nothing is proved lost",
        cause="more columns than parity covers are on targets that are down, or are not on their"
        " targets",
        mend="the same as for TARGET_DOWN; where all targets are up `ckpt verify RUN@STEP` settles"
        " whether it is lost",
        clears="when enough of its columns are there again; when it is deleted; when the loss is"
        " proved, and CHECKPOINT_LOST says so",
    ),
    "CHECKPOINT_LOST": CheckKind(
        ERROR,
        LOST_CODE,
        means="a load of this step fails with 4; one without a step walks back, and says so",
        cause="more columns than parity covers are proved to be damaged or gone",
        mend="`ckpt fetch STORE/RUN@STEP` where an object store has it that this cluster does not"
        " drain to, else `ckpt rm RUN@STEP`",
        clears="when its step was saved again, or is deleted",
    ),
    "CHECKPOINT_STORED": CheckKind(
        WARNING,
        OK_CODE,
        means="a load of it reads the object store, where its trainer was given one (`durable`);"
        " one without walks back, and says so",
        cause="more columns than parity covers are proved to be damaged or gone, and an object"
        " store has the same generation",
        mend="`ckpt fetch --lost` saves it again into the tier; `ckpt rm RUN@STEP` where it is not"
        " needed there",
        clears="when it was fetched, its columns are there again, or it is deleted",
    ),
    "DRAIN_FAILING": CheckKind(
        WARNING,
        OK_CODE,
        means="the tier keeps what this store still needs, and may fill; other stores are served",
        cause="the last checkpoint for an object store failed, or a worker cannot use the store"
        " (bucket, credentials, no answer), maybe never could",
        mend="mend what the cause names, it is tried again by itself; when the store is no more,"
        " end its `ckptd drain` and `ckpt drain forget URL`",
        clears="when a checkpoint has been verified in the store, or its worker can use it again;"
        " when it is forgotten; of a store that was never opened 5 minutes after its worker's last"
        " word",
    ),
    "DRAIN_STOPPED": CheckKind(
        WARNING,
        OK_CODE,
        means="the tier keeps what this store still needs, and may fill",
        cause="checkpoints wait for an object store, and no worker has served it for a minute",
        mend="`ckptd drain --to URL …`; when the store is no more `ckpt drain forget URL`",
        clears="as soon as a worker serves the store, or nothing waits for it any more",
    ),
    "REPAIR_PAUSED": CheckKind(
        WARNING,
        OK_CODE,
        means="what is lost stays so: fewer losses are survived than the save's answer said, or"
        " than a scrub has left",
        cause="somebody has paused repair, and columns are to be made again",
        mend="`ckpt repair resume`",
        clears="when it goes on, or nothing is due any more",
    ),
    "UPGRADE_UNFINISHED": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on, also with an earlier version; what is lost with a target is"
        " made again in its own place alone, and no target is drained, taken out or removed",
        cause="an earlier version made the catalog, and nobody has said that all are upgraded",
        mend="upgrade what `ckpt upgrade status` names, then `ckpt upgrade finish`",
        clears="when it is finished",
    ),
    "RETENTION_UNSAID": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on; nothing of these runs expires, and the tier may fill",
        cause="the catalog was made again from the targets, which do not know what was said to stay"
        " of a run; the cluster keeps fewer steps, which may be less than was said",
        mend="say it again, `ckpt keep RUN --last N …`; or `ckpt keep RUN --none`: the run keeps"
        " what the cluster keeps",
        clears="when it is said of every such run",
    ),
    "NOT_RUNNING": CheckKind(
        WARNING,
        DEGRADED_CODE,
        means="nothing is served; all that was committed is there",
        cause="a local cluster rests",
        mend="the next open starts it, or `ckpt ls`",
        clears="when it runs",
    ),
    "COORDINATOR_DOWN": CheckKind(
        ERROR,
        TRY_LATER_CODE,
        means="saves and loads wait; what is being sent to targets goes on, and its commit waits",
        cause="a local cluster's supervisor is there, its coordinator does not answer: stopped,"
        " hanging, or ended, as on a full disk",
        mend="`kill -CONT PID` of one that is stopped, `kill -KILL PID` of one that hangs; room on"
        " its disk; else `ckpt local stop DIR && ckpt ls`",
        clears="when it answers",
    ),
    "CATALOG_OLD": CheckKind(
        ERROR,
        LOST_CODE,
        means="saves and loads fail, saves under way wait; all that was committed is on the"
        " targets",
        cause="a target proves that another catalog was newer: this one was removed, emptied or"
        " put back",
        mend="`ckpt local stop DIR && ckpt catalog rebuild DIR`, on other machines `ckpt catalog"
        " rebuild DIR --targets 'HOST:PORT …'`",
        clears="when the coordinator has started with the catalog that was made again",
    ),
    "CATALOG_UNPROVED": CheckKind(
        ERROR,
        TRY_LATER_CODE,
        means="saves and loads wait, then fail with 75",
        cause="too few targets are there to vouch that the catalog is the newest",
        mend="the same as for TARGET_DOWN; when they are gone for good, rebuild the catalog as for"
        " CATALOG_OLD",
        clears="when enough targets have come and vouched",
    ),
    "NO_STANDBY": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on; when the coordinator dies they wait until it runs again",
        cause="a catalog that several coordinators may share has one coordinator alone",
        mend="start another one on another host: `ckptd coordinator --catalog URL --id NAME …`,"
        " with the secret file of the first",
        clears="within 2 s of the other one's start",
    ),
    "CATALOG_SLOW": CheckKind(
        WARNING,
        OK_CODE,
        means="commits, and what else is to be durable, take as long",
        cause="of the transactions with etcd of the last minutes one in a hundred takes 0.2 s or"
        " more: a slow disk of a member, or a slow network to it",
        mend="see `ckpt coordinator ls`, and etcd's own wal_fsync and peer round trips; etcd wants"
        " a disk of its own",
        clears="when newer transactions are faster, 5 minutes at most after the last slow one",
    ),
    "CATALOG_FULL": CheckKind(
        ERROR,
        DEGRADED_CODE,
        means="no save begins (`no_space`), commits of those under way wait; loads go on, but for"
        " ranks that are to settle together what they load",
        cause="etcd has reached its quota and takes no writes (its alarm NOSPACE)",
        mend="`etcdctl compact REVISION && etcdctl defrag --cluster && etcdctl alarm disarm`; where"
        " that frees too little, start its members with a larger `--quota-backend-bytes` first",
        clears="within 2 s of the alarm's end; what waited is stored then, in its order",
    ),
    "CATALOG_NO_QUORUM": CheckKind(
        ERROR,
        TRY_LATER_CODE,
        means="saves and loads wait; what is being sent to targets goes on, nothing is lost",
        cause="no member of etcd answers as one of a majority: members are down, or away",
        mend="see `ckpt coordinator ls`; start the members that are down, bring back the network to"
        " those that are away; when a majority is gone for good put back etcd's own snapshot, or"
        " `ckpt catalog rebuild etcd://… --targets 'HOST:PORT …'`",
        clears="when a majority answers again; who led, or another one, leads within a second",
    ),
    "CODES_DIFFER": CheckKind(
        WARNING,
        OK_CODE,
        means="saves and loads go on; after a takeover saves are planned by another code",
        cause="coordinators that share a catalog were started with different values of --code",
        mend="start those with the wrong one again: `ckptd coordinator --code CODE …`",
        clears="within 2 s of the last one's start",
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


def check(
    name: str, message: str, remedy: str, command: str = "", targets: Sequence[str] = ()
) -> Check:
    """One that stands now, of CHECKS."""
    return Check(name, CHECKS[name].severity, message, remedy, command, tuple(targets))


def connections_full(message: str, pid: int) -> Check:
    """A daemon turns peers away."""
    command = f"prlimit --pid {pid} --nofile={DESCRIPTORS_ENOUGH}:{DESCRIPTORS_ENOUGH}"
    return check("CONNECTIONS_FULL", message, DESCRIPTORS_REMEDY, command)


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


def quoted(word: str) -> str:
    """As a shell takes it for one word."""
    plain = word.isascii() and all(letter.isalnum() or letter in "@%+=:,./-_" for letter in word)
    return word if plain and word else "'" + word.replace("'", "'\"'\"'") + "'"
