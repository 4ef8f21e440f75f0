"""Who answers first of several that are asked the same counts; nothing of the others is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from ckpt.aio.net.side_by_side import first_found
from ckpt.base.errors import Refused

Try = Callable[[], Coroutine[None, None, str | None]]


class Asked:
    """Some that are asked; each says what became of it in `log`."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.released = asyncio.Event()

    def answers(self, name: str, found: str | None) -> Try:
        async def ask() -> str | None:
            self.log.append(f"{name} begins")
            self.released.set()
            return found

        return ask

    def waits(self, name: str, found: str | None = None) -> Try:
        """Until another one is asked."""

        async def ask() -> str | None:
            self.log.append(f"{name} begins")
            await self.released.wait()
            return found

        return ask

    def hangs(self, name: str) -> Try:
        async def ask() -> str | None:
            self.log.append(f"{name} begins")
            self.released.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.log.append(f"{name} is given up")
            return None

        return ask

    @staticmethod
    def refuses() -> Try:
        async def ask() -> str | None:
            raise Refused("not so")

        return ask


def test_one_that_is_slow_still_counts_when_the_next_one_is_asked_beside_it() -> None:
    async def ask() -> None:
        asked = Asked()
        assert await first_found([asked.waits("a", "of a"), asked.hangs("b")], 0.0) == "of a"
        assert asked.log == ["a begins", "b begins", "b is given up"]

    asyncio.run(ask())


def test_one_that_hangs_is_given_up_when_another_one_has_found_it() -> None:
    async def ask() -> None:
        asked = Asked()
        assert await first_found([asked.hangs("a"), asked.answers("b", "of b")], 0.0) == "of b"
        assert asked.log == ["a begins", "b begins", "a is given up"]

    asyncio.run(ask())


def test_after_one_that_fails_the_next_one_begins_at_once_and_none_later_where_it_finds() -> None:
    async def ask() -> None:
        asked = Asked()
        tries = [asked.answers("a", None), asked.answers("b", "of b"), asked.answers("c", "of c")]
        assert await first_found(tries, None) == "of b"
        assert asked.log == ["a begins", "b begins"]

    asyncio.run(ask())


def test_none_finds_it() -> None:
    async def ask() -> None:
        asked = Asked()
        assert await first_found([asked.waits("a"), asked.answers("b", None)], 0.0) is None
        assert asked.log == ["a begins", "b begins"]

    asyncio.run(ask())


def test_what_one_raises_ends_it_for_all() -> None:
    async def ask() -> None:
        asked = Asked()
        with pytest.raises(Refused, match="not so"):
            await first_found([asked.hangs("a"), asked.refuses()], 0.0)
        assert asked.log == ["a begins", "a is given up"]

    asyncio.run(ask())
