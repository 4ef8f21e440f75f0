"""What people and their tools ask of the coordinator: questions, names, deletions, replacements."""

from __future__ import annotations

from msgspec import Struct

from ckpt.base.ids import CheckpointId, Generation, RunName, Step, TargetId


class Ask(Struct, frozen=True, gc=False):
    """A question of people and tools; the answer is the JSON that HTTP `/v1/<what>` gives."""

    what: str
    """`status`, `coordinator`, `runs`, `steps`, `show`, `names`, `retention`, `files` or
    `members`; `coordinators`, which HTTP does not answer."""
    run: RunName | None = None
    step: Step | None = None
    generation: Generation | None = None
    """`show` alone; None: the newest of the step."""


class Answer(Struct, frozen=True, gc=False):
    """Bulk: JSON."""


class DeleteStep(Struct, frozen=True, gc=False):
    """Delete every generation of (run, step): tombstone first, columns when nobody reads them."""

    run: RunName
    step: Step
    generation: Generation | None = None
    """Only this one."""
    nameless: bool = False
    """Only if it has no name."""
    repeated: bool = False
    """It was asked before, and the answer was lost: what is deleted by now was deleted by that
    request.
    """


class StepDeleted(Struct, frozen=True, gc=False):
    """The tombstone is durable; nobody resolves this step any more."""

    bytes_freed: int
    bytes_held: int = 0
    """More, which go when no later checkpoint refers to them."""


class LabelStep(Struct, frozen=True, gc=False):
    """Change the labels of a committed step. A name that another step of the run has moves here.
    Idempotent.
    """

    run: RunName
    step: Step
    generation: Generation | None = None
    """None: its newest one."""
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    pinned: bool | None = None
    """None: as it is."""


class StepLabeled(Struct, frozen=True, gc=False):
    """Durable, on as many targets as the commit record."""

    checkpoint: CheckpointId
    names: tuple[str, ...]
    pinned: bool


class RollBack(Struct, frozen=True, gc=False):
    """Make a step its run's newest again: everything committed of later ones gets a name that sets
    it aside. Idempotent. With `dry_run` nothing is changed.
    """

    run: RunName
    step: Step
    dry_run: bool = False


class RolledBack(Struct, frozen=True, gc=False):
    """Durable as a name is, for all of them together. Bulk: JSON, a list of `SetAside`."""

    run: RunName
    step: Step


class SetAside(Struct, frozen=True, gc=False):
    """One generation of a later step, and what it is called."""

    step: Step
    generation: str
    name: str


class StepDown(Struct, frozen=True, gc=False):
    """Let another coordinator lead."""

    coordinator: str = ""
    """The id of who shall lead no more; empty: whoever does."""


class SteppedDown(Struct, frozen=True, gc=False):
    """It hears nobody any more, stores and acknowledges what waits, and frees the key."""

    coordinator: str
    term: int


class ReplaceTarget(Struct, frozen=True, gc=False):
    """Make the directory that asks for this target's place the target from now on."""

    target: TargetId
    incarnation: bytes = b""
    """That of the directory, when several ask; empty for the only one."""
    repeated: bool = False
    """It was asked before, and the answer was lost: whoever has joined since then was meant."""
    force: bool = False
    """Although something is read no more without what the target had."""


class ChangeTarget(Struct, frozen=True, gc=False):
    """Set a target's standing. Refused if saves or what is kept would suffer from it."""

    target: TargetId
    standing: str
    """`in`, `draining`, `out` or `removed`."""
    force: bool = False
    """Overrule all objections, except a process of the target that runs."""
    dry_run: bool = False
    """Change nothing."""


class TargetChanged(Struct, frozen=True, gc=False):
    """Durable, unless nothing was to be changed."""

    target: TargetId
    standing: str
    was: str
    columns: int
    """Columns of kept checkpoints that are named there."""
    bytes: int
    """Bytes of their files."""
    documents: int = 0
    """Copies of indexes and records there that must be on other targets, and are not yet."""
    doubts: tuple[str, ...] = ()
    """The objections."""


class TargetReplaced(Struct, frozen=True, gc=False):
    """Durable: what the old directory holds no longer counts, should it come back."""

    target: TargetId
    incarnation: bytes
    directory: str
    domain: str
