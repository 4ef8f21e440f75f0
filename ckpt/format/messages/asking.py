"""What people and their tools ask of the coordinator: questions, a deletion, a replacement."""

from __future__ import annotations

from msgspec import Struct

from ckpt.base.ids import RunName, Step, TargetId


class Ask(Struct, frozen=True, gc=False):
    """A question of people and tools; the answer is the JSON that HTTP `/v1/<what>` gives."""

    what: str
    """`status`, `coordinator`, `runs`, `steps`, `show`, `files`, `members`."""
    run: RunName | None = None
    step: Step | None = None


class Answer(Struct, frozen=True, gc=False):
    """Bulk: JSON."""


class DeleteStep(Struct, frozen=True, gc=False):
    """Delete every generation of (run, step): tombstone first, columns when nobody reads them."""

    run: RunName
    step: Step


class StepDeleted(Struct, frozen=True, gc=False):
    """The tombstone is durable; nobody resolves this step any more."""

    bytes_freed: int
    bytes_held: int = 0
    """More, which go when no later checkpoint refers to them."""


class ReplaceTarget(Struct, frozen=True, gc=False):
    """Somebody says: the directory that asks for this target's place is the target from now on."""

    target: TargetId
    incarnation: bytes = b""
    """Of the directory, when several ask; empty for the only one."""


class TargetReplaced(Struct, frozen=True, gc=False):
    """Durable: what the old directory holds counts no more, should it come back."""

    target: TargetId
    incarnation: bytes
    directory: str
    domain: str
