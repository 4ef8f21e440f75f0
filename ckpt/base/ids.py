"""What things are called: the identifiers that messages, files and logs share.

The compound ones are keys of every table of the machines: msgspec's Structs, which are made, hashed
and compared without a Python frame.
"""

from __future__ import annotations

from functools import lru_cache
from operator import index
from typing import Final, NewType, SupportsIndex

from msgspec import Struct

from ckpt.base.errors import Refused
from ckpt.base.limits import RUN_NAME_BYTES_MAX
from ckpt.base.printable import UTF_8_HINT

RunName = NewType("RunName", str)
"""1 to 255 bytes of UTF-8; see `check_run_name`."""
Step = NewType("Step", int)
Rank = NewType("Rank", int)
LaunchNumber = NewType("LaunchNumber", int)
"""(term << 32) | counter: grows across coordinator restarts without being durable itself."""
TargetId = NewType("TargetId", str)
BootId = NewType("BootId", int)
"""One process of a target, 64 random bits, never 0."""
Epoch = NewType("Epoch", int)
"""(term << 32) | version of the cluster map."""
ColumnNumber = NewType("ColumnNumber", int)
"""Position in the stripe: 0 .. k-1 carry data, k .. n-1 carry parity."""
ReservationId = NewType("ReservationId", int)


class Generation(Struct, frozen=True, order=True, gc=False):
    """One attempt to write (run, step) by one launch. Only grows."""

    term: int
    counter: int

    def __str__(self) -> str:
        return f"{self.term}.{self.counter}"

    @classmethod
    def parse(cls, text: str) -> Generation:
        """The inverse of `str`; raises Refused when the text is not `TERM.COUNTER`."""
        term, dot, counter = text.partition(".")
        if not (
            dot and term.isascii() and term.isdigit() and counter.isascii() and counter.isdigit()
        ):
            raise Refused(f"generation {text!r} is not of the form TERM.COUNTER")
        return cls(int(term), int(counter))


class CatalogPosition(Struct, frozen=True, order=True, gc=False):
    """How far a catalog had come: the newest ticket of a coordinator that was durable."""

    term: int
    ticket: int

    def __str__(self) -> str:
        return f"{self.term}.{self.ticket}"


class CheckpointId(Struct, frozen=True, order=True, gc=False):
    """One generation of one step of one run."""

    run: RunName
    step: Step
    generation: Generation

    def __str__(self) -> str:
        return f"{self.run}@{self.step}#{self.generation}"


class Home(Struct, frozen=True, order=True, gc=False):
    """An earlier generation of the same run that holds bytes of a later one."""

    step: Step
    generation: Generation

    @classmethod
    def of(cls, checkpoint: CheckpointId) -> Home:
        """The same generation, as those of its run name it."""
        return cls(checkpoint.step, checkpoint.generation)

    def id(self, run: RunName) -> CheckpointId:
        """Which checkpoint it is."""
        return CheckpointId(run, self.step, self.generation)

    def __str__(self) -> str:
        return f"{self.step}#{self.generation}"


class PayloadId(Struct, frozen=True, order=True, gc=False):
    """The bytes that one rank hands over in one save."""

    checkpoint: CheckpointId
    rank: Rank

    def __str__(self) -> str:
        return f"{self.checkpoint} rank {self.rank}"


class ColumnId(Struct, frozen=True, order=True, gc=False):
    """All fragments of one payload at one stripe position: one file on one target."""

    payload: PayloadId
    column: ColumnNumber

    def __str__(self) -> str:
        return f"{self.payload} column {self.column}"


class Domain(Struct, frozen=True, order=True, gc=False):
    """The failure domains that a target stands in, widest first."""

    power: str
    rack: str
    host: str
    device: str

    def __str__(self) -> str:
        return f"{self.power}/{self.rack}/{self.host}/{self.device}"

    @classmethod
    def parse(cls, text: str) -> Domain:
        """`POWER/RACK/HOST/DEVICE`; raises Refused when a level is missing or empty."""
        parts = text.split("/")
        if len(parts) != 4 or not all(parts):
            raise Refused(f"failure domain {text!r} is not of the form POWER/RACK/HOST/DEVICE")
        return cls(*parts)


def check_text(what: str, text: str, bytes_max: int) -> None:
    """Raises Refused unless it is 1 to bytes_max bytes of UTF-8 without control characters."""
    if not isinstance(text, str):
        raise Refused(f"{what} {text!r} is no text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Refused(f"{what} {text!r} is not valid Unicode", hint=UTF_8_HINT) from None
    if not 1 <= size <= bytes_max:
        raise Refused(f"{what} of {size} bytes: 1 to {bytes_max} are allowed")
    if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in text):
        raise Refused(f"{what} {text!r} has a control character")


def check_run_name(name: str) -> RunName:
    """The name as a RunName, or Refused with the rule that it breaks.

    1 to 255 bytes of UTF-8, no control characters, no `@` (RUN@STEP), no `.` or `..` segments.
    """
    if not isinstance(name, str):
        raise Refused(f"run name {_briefly(name)} is no text", hint=_ORDER)
    return _checked_run_name(name)


@lru_cache(maxsize=1024)
def _checked_run_name(name: str) -> RunName:
    check_text("run name", name, RUN_NAME_BYTES_MAX)
    if "@" in name:
        raise Refused(
            f"run name {name!r} has an '@', which separates RUN@STEP",
            hint="name the run alone, and the step apart",
        )
    if any(segment in (".", "..") for segment in name.split("/")):
        raise Refused(f"run name {name!r} has a '.' or '..' segment")
    return RunName(name)


def whole_number(value: SupportsIndex) -> int | None:
    """Of an int or what is one in all but its type, such as numpy's; None for anything else."""
    # A truth of numpy's is an index before numpy 2.
    if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", None) == "b":
        return None
    try:
        return index(value)
    except TypeError:
        return None


def check_step(step: SupportsIndex) -> Step:
    """The step as a Step, or Refused: 0 <= step < 2**63."""
    number = whole_number(step)
    if number is None or not 0 <= number < 1 << 63:
        raise Refused(
            f"step {_briefly(step)} is not an integer from 0 to 2**63 - 1", hint=_step_hint(step)
        )
    return Step(number)


_ORDER: Final = "the order is run, step, state: save(RUN, STEP, STATE), load(RUN, STEP)"


def _step_hint(step: object) -> str:
    if isinstance(step, bool):
        return ""
    if isinstance(step, str | float):
        return f"write int({step!r})" if str(step).removesuffix(".0").isdecimal() else ""
    if isinstance(step, int):
        return "a load without a step takes the newest" if step < 0 else ""
    return _ORDER


def _briefly(value: object) -> str:
    """A plain value as it is written; anything else by its type: it may be a whole state."""
    if value is None or isinstance(value, str | bytes | int | float):
        return f"{value!r:.300}"
    return f"of type {type(value).__qualname__}"


def check_checkpoint(id: CheckpointId) -> CheckpointId:
    """The same, or Refused for one that no coordinator can have begun: a catalog has no room for
    it.
    """
    check_run_name(id.run)
    check_step(id.step)
    term, counter = id.generation.term, id.generation.counter
    if not (0 <= term < 1 << 63 and 0 <= counter < 1 << 63):
        raise Refused(f"{id.generation} is no generation")
    return id
