"""How much memory a read takes besides its destination."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.protocol.reader.stripes import Stripe


class Scratch:
    """I count cells that have no place in the destination, by the stripe that holds them."""

    def __init__(self, bytes_max: int, is_direct: Callable[[int, int], bool]) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._is_direct = is_direct

    def has_room(self, stripe: Stripe, column: int) -> bool:
        """Whether there is room for the stripe's cell of this column."""
        if column in stripe.scratch or self._bytes + stripe.cell_bytes <= self._bytes_max:
            return True
        return self._has_place(stripe, column)

    def take(self, stripe: Stripe, column: int) -> None:
        """Count a cell that is asked for."""
        if column not in stripe.scratch and not self._has_place(stripe, column):
            stripe.scratch.add(column)
            self._bytes += stripe.cell_bytes

    def give_back(self, stripe: Stripe) -> None:
        """Free the cells of a stripe that is done."""
        self._bytes -= len(stripe.scratch) * stripe.cell_bytes

    def _has_place(self, stripe: Stripe, column: int) -> bool:
        found = stripe.direct.get(column)
        if found is None:
            found = stripe.direct[column] = self._is_direct(stripe.number, column)
        return found
