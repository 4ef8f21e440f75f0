"""Which committed generations may go.

    keep=2   step 100 #1.1   step 200 #1.2   step 200 #1.5   step 300 #1.3
             expired         superseded      newest 2        newest 2

Invariants: a pinned generation stays. The generation that was committed last stays, also when it
belongs to an old step (a run that was set back). The newest step's newest generation stays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpt.base.ids import Generation, Step


def expired(
    committed: Sequence[tuple[Step, Generation]],
    keep: int | None,
    pinned: Collection[tuple[Step, Generation]] = (),
) -> list[tuple[Step, Generation]]:
    """What to delete of one run's committed generations, ascending by (step, generation).

    `keep` is how many steps stay, the highest ones; None keeps all. A generation that a newer one
    of its step replaced goes as soon as nobody pins it, whatever `keep` says. Any order of
    `committed` is accepted.
    """
    assert keep is None or keep >= 1
    if not committed:
        return []
    newest = dict(sorted(committed))
    steps = sorted(newest)
    kept = steps if keep is None else steps[-keep:]
    last = max(committed, key=lambda entry: (entry[1], entry[0]))
    stays = {(step, newest[step]) for step in kept} | {last} | set(pinned)
    return sorted(entry for entry in set(committed) if entry not in stays)
