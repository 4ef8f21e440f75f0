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


def paths_of(order: object) -> tuple[str, ...]:
    """The paths that a caller names. Raises Refused for anything else."""
    if isinstance(order, str):
        raise Refused(
            f"order is the text {order!r}, not a list of paths", hint=f"order=[{order!r}]"
        )
    if isinstance(order, bytes) or not isinstance(order, Iterable):
        raise Refused(f"order is of type {type(order).__qualname__}, not a list of paths")
    paths = []
    for path in order:
        if not isinstance(path, str):
            raise Refused(f"order holds {path!r}", hint='a path is text, keys joined by /: "a/b"')
        paths.append(path)
    return tuple(paths)


class LoadOrder:
    """I know the parts of one load, and which of them were handed out, over all its attempts."""

    def __init__(
        self, prefixes: Iterable[str], names: Iterable[str], on_part: OnPart | None = None
    ) -> None:
        """prefixes: paths, each of a leaf or of what lies above leaves; earlier ones first.
        names: of all leaves.
        on_part: hears each prefix when its part is handed out; None: nothing is, before the end.

        Raises Refused for a prefix of nothing, one that is named twice, and as `paths_of`.
        """
        self._prefixes = paths_of(prefixes)
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
        known = list(names) if numbers else []
        for name in known:
            above = [numbers[prefix] for prefix in _prefixes_of(name) if prefix in numbers]
            found.update(above)
            if above:
                self._parts[name] = min(above)
        empty = [prefix for prefix in self._prefixes if numbers[prefix] not in found]
        if empty:
            text = f"order names {listed(empty)}, and the state has nothing there"
            raise Refused(text, hint=_what_there_is(empty[0], known))

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


def _what_there_is(path: str, names: Sequence[str]) -> str:
    """Where the state comes closest to the path."""
    if "" in names:
        return "it is a single leaf"
    above = ""
    for longer in _prefixes_of(path):
        if longer in names:
            return f"{longer} is a leaf"
        if not any(name.startswith(f"{longer}/") for name in names):
            break
        above = longer
    start = len(above) + 1 if above else 0
    inside = [name for name in names if not above or name.startswith(f"{above}/")]
    keys = dict.fromkeys(name[start:].split("/", 1)[0] for name in inside)
    return f"below {above} it has {listed(list(keys))}" if above else f"it has {listed(list(keys))}"
