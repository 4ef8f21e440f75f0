"""Which process is a target? One at a time, and of the one directory that is known by its name.

A directory has an incarnation: 128 random bits, made once and kept in it. Another directory of the
same name, emptied or put in its place, has another one. A copy of a directory has the same one, but
another place (this start of which machine, which file); and only one process can hold the lock in
one place.

    a process presents                          it is
    a name or an incarnation that is new        taken in, and its incarnation noted
    the incarnation known for this name         taken in; while another has the seat, refused
    another incarnation of this name            refused, until somebody says that it is the target
    an incarnation known by another name        refused: a directory is one target
    the name or incarnation of a removed one    refused, for good
    none, as older daemons do                   taken in; while another has the seat, refused

A place keeps its seat for a lease after its session ended, and after the coordinator began, so that
a broken connection gives no copy the chance to step in. A process that comes back in that place has
the seat at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ckpt.base.errors import Busy, CkptError, NotFound, Refused
from ckpt.base.ids import TargetId
from ckpt.base.limits import INCARNATION_BYTES, LEASE_US, TARGET_ID_BYTES_MAX
from ckpt.base.units import US_PER_S, format_bytes
from ckpt.format.documents.cluster_map import TARGETS_BYTES_MAX, target_bytes
from ckpt.format.messages.targets import RegisterTarget
from ckpt.protocol.coordinator.catalog import TargetSeen, TargetStanding
from ckpt.protocol.coordinator.desk import Desk

CLAIM_US: Final = 8_000_000
"""A process that was refused dials again within a second; one that does not has gone."""
CLAIMS_MAX: Final = 64
TEXT_BYTES_MAX: Final = 8192
"""Of what a target says of where it is: a path has 4096, with a word on its machine before it."""
REMOVED_RETRY_S: Final = 60.0
"""Only a catalog of before the removal, put back by somebody, would take such a target in."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A process that was refused a target's seat."""

    target: TargetId
    incarnation: bytes
    place: str
    directory: str
    domain: str
    address: str
    pid: int
    replaces: bool
    """It may take the seat when somebody says so; else it has to end."""
    why: str
    heard_us: int
    """When it knocked; of a removed one, which knocks rarely, when it will again."""
    is_removed: bool = False

    @property
    def where(self) -> str:
        """For people."""
        host = self.domain.split("/")[2] if self.domain.count("/") > 2 else self.domain
        return f"{self.directory} on {host} (process {self.pid})"


class Claims:
    """I know each target's directory, and who else asks for its seat."""

    def __init__(self, known: Mapping[TargetId, TargetSeen]) -> None:
        #: Which directory and which place have each target's seat.
        self._known = dict(known)
        #: Those of each incarnation that is known.
        self._named: dict[bytes, set[TargetId]] = {}
        for each in self._known.values():
            self._named.setdefault(each.incarnation, set()).add(each.target)
        #: Of the cluster's map, what all of them take.
        self._map_bytes = sum(map(_map_bytes, self._known.values()))
        self.version = 0
        """Another one whenever something else is known of a target."""
        #: Processes that were refused a seat lately, at most CLAIMS_MAX; see `_key`.
        self._refused: dict[tuple[TargetId, bytes, str], Claim] = {}
        #: Why each was refused, as it was reported last; at most CLAIMS_MAX.
        self._reported: dict[tuple[TargetId, bytes, str], str] = {}
        #: When the session of each seat ended; no entry while it stands, or before it ever did.
        self._left_us: dict[TargetId, int] = {}
        #: When each was let in by somebody's word that has not come since.
        self._let_in_us: dict[TargetId, int] = {}
        #: When the first target asked for a seat; None before.
        self._born_us: int | None = None

    # ----------------------------------------------------------------------- questions

    def all(self) -> Collection[TargetSeen]:
        """What is known of each target, durable or about to be."""
        return self._known.values()

    def standing(self, now_us: int) -> list[Claim]:
        """Those that were refused and still knock, by target."""
        heard = [each for each in self._refused.values() if now_us - each.heard_us < CLAIM_US]
        return sorted(heard, key=lambda each: (each.target, each.incarnation, each.place))

    def replacements(self, target: TargetId, now_us: int) -> list[Claim]:
        """Directories that would take this target's place."""
        return [each for each in self.standing(now_us) if each.replaces and each.target == target]

    def let_in(self, now_us: int) -> list[TargetId]:
        """Those whose new directory was let in, which knocked lately and will do so again."""
        return [id for id, us in self._let_in_us.items() if now_us - us < CLAIM_US]

    def is_renamed(self, message: RegisterTarget) -> bool:
        """Whether its directory is known under another target's name."""
        return self._of_another_name(message) is not None

    def seen(self, message: RegisterTarget) -> TargetSeen:
        """What will be known of a process that is taken in."""
        known = self._known.get(message.target)
        kept = message.incarnation or (known.incarnation if known is not None else b"")
        standing = TargetStanding.IN if known is None else known.standing
        if standing is TargetStanding.ABSENT:
            standing = TargetStanding.IN
        return TargetSeen(
            message.target, message.domain, message.directory, kept, message.place, standing
        )

    # ----------------------------------------------------------------------- events

    def judge(self, message: RegisterTarget, *, seated: bool, now_us: int) -> CkptError | None:
        """Why this process is refused the seat that it asks for; None when it is taken in.

        `seated`: a session of another process of this target stands.
        """
        if self._born_us is None:
            self._born_us = now_us
        if problem := _misfit(message):
            return Refused(problem)
        known = self._known.get(message.target)
        if self._overfills(message, known):
            return Refused(
                f"the cluster's map has no room for target {message.target}:"
                f" {len(self._known)} targets, removed ones too, and their domains and directories"
                f" take {format_bytes(self._map_bytes)} of {format_bytes(TARGETS_BYTES_MAX)}",
                hint="give new targets shorter domains and directories",
            )
        if known is not None and known.standing is TargetStanding.REMOVED:
            gone = removed(message.target, retry_after_s=REMOVED_RETRY_S)
            self._note(message, gone, now_us=now_us, is_removed=True)
            return gone
        unknown = _of_another_directory(known, message, seated) if known is not None else None
        error = self._of_another_name(message) or unknown
        if error is None and known is not None:
            error = self._of_a_taken_seat(known, message, seated=seated, now_us=now_us)
        if error is None:
            self._refused.pop(_key(message), None)
        else:
            self._note(message, error, replaces=error is unknown, now_us=now_us)
        return error

    def took(self, seen: TargetSeen) -> bool:
        """This process has the seat; True when what is known of the target changes by it."""
        self._left_us.pop(seen.target, None)
        self._let_in_us.pop(seen.target, None)
        self._reported.pop((seen.target, seen.incarnation, seen.place), None)
        return self._know(seen)

    def standing_of(self, target: TargetId) -> TargetStanding:
        """The standing that people set last, durable or about to be."""
        return self._known[target].standing

    def stand(self, target: TargetId, standing: TargetStanding) -> TargetSeen:
        """Set a target's standing. Returns what is known of the target now."""
        seen = replace(self._known[target], standing=standing)
        self._know(seen)
        return seen

    def left(self, target: TargetId, now_us: int) -> None:
        """Note that the session of its seat ended."""
        self._left_us[target] = now_us

    def excuse(self, gap_us: int) -> None:
        """Excuse all: the coordinator stood still for so long, and heard nobody."""
        self._left_us = {target: left_us + gap_us for target, left_us in self._left_us.items()}

    def answered(
        self, target: TargetId, incarnation: bytes, now_us: int, *, seated: bool
    ) -> TargetSeen | None:
        """What a question that is repeated has done already, as far as can be known; else None.

        `seated`: a session of this target stands. Whoever was meant by "the only one" has joined
        since then, or knocks.
        """
        known = self._known.get(target)
        if known is None or self.replacements(target, now_us):
            return None
        done = incarnation == known.incarnation if incarnation else seated
        return known if done else None

    def replaced(self, target: TargetId, incarnation: bytes, now_us: int) -> TargetSeen:
        """Somebody says that this directory, or the only one that asks, is the target from now on.

        Raises NotFound when none asks, Refused when several do and none is named.
        """
        asking = [
            each
            for each in self.replacements(target, now_us)
            if incarnation in (b"", each.incarnation)
        ]
        if not asking:
            raise NotFound(
                f"no other directory asks for the place of target {target}",
                hint="start `ckptd target` on it, under that name; ckpt status then shows it",
            )
        if len(asking) > 1:
            listed = "; ".join(f"{each.incarnation.hex()}: {each.where}" for each in asking)
            raise Refused(
                f"{len(asking)} directories ask for the place of target {target}: {listed}",
                hint="end all but one, or name one with --incarnation",
            )
        claim = asking[0]
        standing = self._known[target].standing
        seen = TargetSeen(
            target, claim.domain, claim.directory, claim.incarnation, claim.place, standing
        )
        self._know(seen)
        self._let_in_us[target] = now_us
        self._refused = {k: c for k, c in self._refused.items() if c != claim}
        return seen

    def report(self, message: RegisterTarget, error: CkptError, desk: Desk) -> None:
        """Report why a process was refused, once: it comes again twice a second, for as long as it
        runs.
        """
        key = _key(message)
        if self._reported.get(key) == error.message:
            return
        if len(self._reported) >= CLAIMS_MAX:
            del self._reported[next(iter(self._reported))]
        self._reported[key] = error.message
        desk.report(
            "warning", "target refused", target=message.target, directory=message.directory,
            pid=message.pid, why=error.message, remedy=error.hint,
        )  # fmt: skip

    # ----------------------------------------------------------------------- inside

    def _know(self, seen: TargetSeen) -> bool:
        """True when it is news."""
        was, self._known[seen.target] = self._known.get(seen.target), seen
        self._map_bytes += _map_bytes(seen) - _map_bytes(was)
        if was is not None:
            self._named[was.incarnation].discard(seen.target)
        self._named.setdefault(seen.incarnation, set()).add(seen.target)
        self.version += was != seen
        return was != seen

    def _overfills(self, message: RegisterTarget, known: TargetSeen | None) -> bool:
        """Whether the map would fit no frame with what it says: then no target could get one."""
        size = target_bytes(message.target, message.domain, message.directory)
        grows = size - _map_bytes(known)
        return grows > 0 and self._map_bytes + grows > TARGETS_BYTES_MAX

    def _of_another_name(self, message: RegisterTarget) -> CkptError | None:
        if not message.incarnation:
            return None
        others = self._named.get(message.incarnation, set()) - {message.target}
        if not others:
            return None
        return Refused(
            f"{message.directory} is the directory of target {min(others)}, or a copy of it, under"
            f" the name {message.target}",
            hint="end this process; start a target in an empty directory instead",
        )

    def _of_a_taken_seat(
        self, known: TargetSeen, message: RegisterTarget, *, seated: bool, now_us: int
    ) -> CkptError | None:
        if message.place == known.place:
            return None
        born_us = now_us if self._born_us is None else self._born_us
        held_until_us = LEASE_US + self._left_us.get(message.target, born_us)
        if not seated and (not known.place or now_us >= held_until_us):
            return None
        after_s = LEASE_US / US_PER_S if seated else (held_until_us - now_us) / US_PER_S
        return Busy(
            f"target {message.target} is {known.directory}, which has another process;"
            f" {message.directory} is a copy of that directory, or was moved while it was in use",
            hint="end the process on the copy",
            retry_after_s=after_s,
        )

    def _note(
        self, message: RegisterTarget, error: CkptError, *, now_us: int, replaces: bool = False,
        is_removed: bool = False,
    ) -> None:  # fmt: skip
        key = _key(message)
        self._refused = {
            k: c for k, c in self._refused.items() if now_us - c.heard_us < CLAIM_US and k != key
        }
        if len(self._refused) >= CLAIMS_MAX:
            return
        heard_us = now_us + round(REMOVED_RETRY_S * US_PER_S) if is_removed else now_us
        self._refused[key] = Claim(
            *key, message.directory, message.domain, message.address, message.pid, replaces,
            error.message, heard_us, is_removed,
        )  # fmt: skip


def _misfit(message: RegisterTarget) -> str:
    """Why nobody can be that target, whatever is known of it; empty if nothing speaks against it.
    Its name and the rest are in the catalog, in the map that each target keeps, and in indexes.
    """
    if not 1 <= len(message.target.encode()) <= TARGET_ID_BYTES_MAX:
        return f"a target's id has 1 to {TARGET_ID_BYTES_MAX} bytes"
    if not 0 < message.boot < 1 << 64:
        return f"boot id {message.boot} is none"
    if len(message.incarnation) not in (0, INCARNATION_BYTES):
        return f"an incarnation has {INCARNATION_BYTES} bytes"
    texts = message.address, message.unix, message.domain, message.directory, message.place
    if max(len(text.encode()) for text in texts) > TEXT_BYTES_MAX:
        return f"it says in more than {TEXT_BYTES_MAX} bytes where it is"
    return ""


def _map_bytes(seen: TargetSeen | None) -> int:
    return 0 if seen is None else target_bytes(seen.target, seen.domain, seen.directory)


def _key(message: RegisterTarget) -> tuple[TargetId, bytes, str]:
    return message.target, message.incarnation, message.place


WRONG_NAME: Final = "end this process, or start it in an empty directory with an --id of its own"
"""The remedy where a process has the name of a target that serves."""


def removed(target: TargetId, *, retry_after_s: float | None = None) -> CkptError:
    """It is no target any more."""
    return Refused(
        f"target {target} was removed from this cluster, for good",
        hint="start a target of another name, in an empty directory",
        retry_after_s=retry_after_s,
    )


def _of_another_directory(
    known: TargetSeen, message: RegisterTarget, seated: bool
) -> CkptError | None:
    if message.incarnation in (b"", known.incarnation) or not known.incarnation:
        return None
    if seated:
        return Refused(
            f"target {message.target} is another directory than {message.directory}:"
            f" {known.directory}, which is served",
            hint=WRONG_NAME,
        )
    return Refused(
        f"target {message.target} is another directory than {message.directory}: it was emptied,"
        " or this one was put in its place",
        hint=f"bring the old one back; when it is gone for good: ckpt target replace"
        f" {message.target}",
    )
