"""The options of `ckpt demo`."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.base.errors import Refused
from ckpt.erasure.code import Code


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`ckpt demo`'s flags. Raises Refused when they do not fit together."""

    directory: str | None = None
    """Work below this directory; else below the system's directory for temporary files."""
    json: bool = False
    """JSON lines; the last one is the summary."""
    keep: bool = False
    """Leave the directory for a look at it."""
    seed: int = 1
    steps: int = 32
    save_every: int = 4
    ranks: int = 4
    targets: int = 7
    code: str = "4+2"
    width: int = 256
    """Of the model; the checkpoint's size grows with its square."""

    def __post_init__(self) -> None:
        code = Code.parse(self.code)
        if code.m < 2:
            raise Refused(f"code={self.code}: the demo kills two targets", hint="use 4+2")
        if self.targets < code.n or self.targets - 2 < code.floor:
            raise Refused(
                f"targets={self.targets}: {code} needs {code.n} at first and "
                f"{code.floor} when two are dead"
            )
        if not 1 <= self.ranks <= 64:
            raise Refused(f"ranks={self.ranks}: 1 to 64")
        if self.save_every < 1 or self.steps < 4 * self.save_every:
            raise Refused(
                f"steps={self.steps}: at least 4 saves are needed, "
                f"one every {self.save_every} steps"
            )
        if self.width < 8 or self.width % 4:
            raise Refused(f"width={self.width}: a multiple of 4 from 8")
