"""What people have said of a committed generation: its names, and whether it is pinned.

A MessagePack map by field name in an envelope (`ckpt.format.envelope`; `CKPL`, version 1, stored).
It lies beside the commit record on as many targets, and is replaced whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import CheckpointId, Generation, Step, check_run_name, check_step, check_text
from ckpt.base.units import KiB
from ckpt.format.checksum import Buffer
from ckpt.format.envelope import Packing, decode_body, unwrap, wrap

LABELS_MAGIC: Final = b"CKPL"
VERSION: Final = 1
NAME_BYTES_MAX: Final = 1024
NAMES_MAX: Final = 32
"""Most names of one generation."""
LABELS_BYTES_MAX: Final = NAMES_MAX * NAME_BYTES_MAX + 4 * KiB
_ASIDE: Final = re.compile(r"aside-\d+(\.\d+)?", re.ASCII)


class Labels(Struct, frozen=True):
    """Of the names of a run no two are equal: where two documents say the same name, as a crash
    between them may leave it, that with the higher version has it.
    """

    cluster: str
    checkpoint: CheckpointId
    version: Generation
    """The coordinator's term and a counter. The highest of one generation counts."""
    names: tuple[str, ...] = ()
    """Ascending."""
    pinned: bool = False
    """Nothing deletes it before it is unpinned."""

    @property
    def keeps(self) -> bool:
        """Neither retention nor room for others takes it away."""
        return self.pinned or bool(self.names)


def check_name(name: str) -> str:
    """The name, or Refused with the rule that it breaks.

    1 to 1024 bytes of UTF-8, no control characters; not a number, which would be read as a step.
    """
    check_text("name", name, NAME_BYTES_MAX)
    if name.lstrip("+-").isdecimal():
        raise Refused(f"name {name!r} would be read as a step", hint="put a letter in it")
    return name


def aside_name(step: Step, number: int = 1) -> str:
    """What sets a generation of the step aside: `aside-300`, of a second one `aside-300.2`."""
    return f"aside-{step}" if number == 1 else f"aside-{step}.{number}"


def is_aside(names: Iterable[str]) -> bool:
    """Whether a generation of this name was set aside by a rollback: it is never the newest, and
    takes no other's place among what stays.
    """
    return any(_ASIDE.fullmatch(name) for name in names)


def check_given(name: str) -> str:
    """A name that people give: the same, or Refused for one that a rollback gives."""
    if is_aside((check_name(name),)):
        hint = "ckpt rollback RUN@STEP sets aside what came after STEP; or take another name"
        raise Refused(f"only a rollback calls a checkpoint {name!r}", hint=hint)
    return name


def check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """All of them, ascending, each once, or Refused."""
    checked = tuple(sorted({check_name(name) for name in names}))
    if len(checked) > NAMES_MAX:
        text = f"{len(checked)} names for one step: {NAMES_MAX} are allowed"
        raise Refused(text, hint="remove some of them")
    return checked


_ENCODER: Final = msgspec.msgpack.Encoder()
_LABELS: Final = msgspec.msgpack.Decoder(Labels)


def encode_labels(labels: Labels) -> bytes:
    """The document, at most LABELS_BYTES_MAX."""
    document = wrap(LABELS_MAGIC, VERSION, _ENCODER.encode(labels), Packing.STORED)
    assert len(document) <= LABELS_BYTES_MAX, "its names are bounded"
    return document


def decode_labels(document: Buffer) -> Labels:
    """The inverse; zeros may follow it. Raises Corrupt."""
    labels = decode_body(_LABELS, unwrap(LABELS_MAGIC, VERSION, document, LABELS_BYTES_MAX))
    id, version = labels.checkpoint, labels.version
    try:
        check_run_name(id.run)
        check_step(id.step)
        if check_names(labels.names) != labels.names:
            raise Refused("they are not in order")
    except Refused as error:
        raise Corrupt(f"labels: {error.message}") from None
    if min(version.term, version.counter, id.generation.term, id.generation.counter) < 0:
        raise Corrupt("labels: a number is negative")
    return labels
