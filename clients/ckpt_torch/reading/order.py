"""Which part of a state is read first, and when may it be used?

A part is all that lies below one prefix, and below none before it; the last part is the rest. Parts
that are handed out are final: whoever waited for them may compute with them, while the rest is
still read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ckpt.base.errors import Lost, Refused
from ckpt.base.ids import CheckpointId
from ckpt_client.load.trees import listed

OnPart = Callable[[str], None]


class LoadOrder:
    """I know the parts of one load, and which of them were handed out, over all its attempts."""

    def __init__(
        self, prefixes: Sequence[str], names: Iterable[str], on_part: OnPart | None = None
    ) -> None:
        """prefixes: paths, each of a leaf or of what lies above leaves; earlier ones first.
        names: of all leaves.
        on_part: hears each prefix when its part is handed out; None: nothing is, before the end.

        Raises Refused for a prefix of nothing, or one that is named twice.
        """
        self._prefixes = tuple(prefixes)
        self._on_part = on_part
        #: Of whose parts the first `_handed_count` are in the caller's hands.
        self._handed: CheckpointId | None = None
        self._handed_count = 0
        if len(set(self._prefixes)) < len(self._prefixes):
            raise Refused("order names a prefix twice")
        numbers = {prefix: number for number, prefix in enumerate(self._prefixes)}
        found: set[int] = set()
        #: Of each leaf below a prefix, by name.
        self._parts: dict[str, int] = {}
        for name in names if numbers else ():
            above = [numbers[prefix] for prefix in _prefixes_of(name) if prefix in numbers]
            found.update(above)
            if above:
                self._parts[name] = min(above)
        empty = [prefix for prefix in self._prefixes if numbers[prefix] not in found]
        if empty:
            raise Refused(f"order names {listed(empty)}, and the state has nothing there")

    @property
    def part_count(self) -> int:
        """How many parts there are, with the rest."""
        return len(self._prefixes) + 1

    def part_of(self, name: str) -> int:
        """The number of the part that the leaf belongs to; parts are read as they ascend."""
        return self._parts.get(name, len(self._prefixes))

    def begin(self, checkpoint: CheckpointId) -> None:
        """Note that this checkpoint is read from now on. Raises Lost when parts of another were
        handed out: those are not changed.
        """
        if self._handed is not None and self._handed != checkpoint:
            parts = listed(self._prefixes[: self._handed_count])
            raise Lost(
                f"{parts} of {self._handed} are in use, but {checkpoint} is to be loaded now",
                hint="load again from the beginning",
            )

    def is_handed_out(self, part: int) -> bool:
        """Whether its tensors belong to the caller already: then they are not written again."""
        return part < self._handed_count

    @property
    def hands_out(self) -> bool:
        """Whether anybody waits for parts."""
        return self._on_part is not None

    def hand_out(self, part: int, checkpoint: CheckpointId) -> None:
        """Hand out the part: all its bytes are in place, and verified."""
        if self._on_part is None or part >= len(self._prefixes) or self.is_handed_out(part):
            return
        self._handed, self._handed_count = checkpoint, part + 1
        self._on_part(self._prefixes[part])


def _prefixes_of(name: str) -> Iterator[str]:
    """The leaf's own path and all above it."""
    steps = name.split("/")
    return ("/".join(steps[:count]) for count in range(1, len(steps) + 1))
