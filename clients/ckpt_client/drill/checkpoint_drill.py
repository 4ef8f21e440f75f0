"""One checkpoint, drilled: read as it is, then without what is supposed to be lost, and compared.

    plain load ──its digest──┬── without these targets ──> equal, differs, or unreadable
                             ├── from an object store alone
    every column, every copy of the index, each read where it lies ──> whole, or what is wrong

Nothing changes: no target is stopped, no damage is reported, and a read that finds too few columns
is an outcome like any other. The plain load's pin holds the generation until I am closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final, NamedTuple, Self

from msgspec import Struct

from ckpt.base.errors import CkptError, NotFound
from ckpt.base.ids import CheckpointId, Generation, RunName, Step, TargetId
from ckpt.base.units import counted, format_bytes
from ckpt.plan.placement import check_level
from ckpt_client.drill.contents_digest import ContentsDigest, OnBytes, contents_digest
from ckpt_client.drill.losses import Domains, SupposedLoss, at_random, worst_domain
from ckpt_client.load.pin import Pinned
from ckpt_client.load.progress import ProgressTeller
from ckpt_client.load.reader_context import ReaderContext
from ckpt_client.load.reading import Reading
from ckpt_client.load.tier_reading import TierReading
from ckpt_client.load.verify import verify_unreported

NAMED_MAX: Final = 4
"""Most differences, or damaged columns, that one outcome names."""
INDEX_PATIENCE_S: Final = 10.0


class DrillOutcome(Struct, frozen=True):
    """The result of one scenario."""

    scenario: str
    lost: tuple[str, ...]
    """Targets that the reader had to do without."""
    state: str
    """`read` (of the plain load), `equal`, `whole`; `differs`, `unreadable`, `damaged`; `skipped`:
    it was never promised."""
    detail: str
    read_bytes: int
    took_s: float
    rebuilt_bytes: int = 0
    """Bytes that a load decoded from parity."""

    @property
    def passed(self) -> bool:
        return self.state in ("read", "equal", "whole", "skipped")


class CheckpointDrill:
    """I drill one generation. Each method is one scenario, and returns its outcome. Close me."""

    def __init__(
        self,
        context: ReaderContext,
        run: RunName,
        step: Step,
        only: Generation | None,
        timeout_s: float,
        on_bytes: OnBytes,
    ) -> None:
        """Pins it. Raises NotFound, Unavailable, Lost."""
        self._context = context
        self._timeout_s = timeout_s
        self._on_bytes = on_bytes
        self._pinned = Pinned.of_step(context, run, step, only, timeout_s)
        self._plain: ContentsDigest | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pinned.close()

    @property
    def checkpoint(self) -> CheckpointId:
        return self._pinned.record.info.checkpoint

    def plain_load(self) -> DrillOutcome:
        """The load that the others are compared with. It takes bytes from wherever a load here
        finds them, also from a stager's memory, which the others do not use. Raises what loading
        raises.
        """
        begun_s = time.monotonic()
        reading = TierReading(self._pinned, None, ProgressTeller(None))
        self._plain = self._digest(reading)
        size = self._plain.read_bytes
        places = " and ".join(sorted(reading.sources)) or "nowhere"
        detail = f"{format_bytes(size)} from {places}{_mended(reading)}"
        return DrillOutcome("plain load", (), "read", detail, size, time.monotonic() - begun_s)

    def load_without(self, loss: SupposedLoss) -> DrillOutcome:
        """Load as if these targets were gone. Raises when the coordinator does not name the
        generation, which has nothing to do with the loss.
        """
        context = replace(self._context, avoid=loss.targets)
        pinned = Pinned.of_step(context, *self._key, self._timeout_s)

        def load() -> _Load:
            reading = TierReading(pinned, None, ProgressTeller(None))
            digest = self._digest(reading)
            rebuilt = sum(one.rebuilt_bytes for one in reading.tier_statistics)
            detail = f"{format_bytes(rebuilt)} rebuilt from parity{_mended(reading)}"
            return _Load(digest, detail, rebuilt)

        with closing(pinned):
            return self._compared(f"without {loss.what}", _ids(loss), load)

    def load_from_store(self, stores: Sequence[str], targets: Sequence[TargetId]) -> DrillOutcome:
        """Load as if the whole tier were gone: from an object store, without the cluster."""

        def load() -> _Load:
            reading, url = _stored_reading(self.checkpoint, stores)
            return _Load(self._digest(reading), f"from {url}")

        return self._compared("without the tier", tuple(sorted(targets)), load)

    def every_column(self) -> DrillOutcome:
        """Have every target read its columns whole, also those of homes."""
        run, step, only = self._key
        report = verify_unreported(self._context, run, step, timeout_s=self._timeout_s, only=only)
        wrong = [
            f"rank {each.rank} column {each.column} on {each.target or 'no target'} is {each.state}"
            for each in report.columns
            if each.state != "whole"
        ]
        return DrillOutcome(
            "every column where it lies",
            (),
            "damaged" if wrong else "whole",
            _named(wrong) or counted(len(report.columns), "column"),
            report.bytes_read,
            report.seconds,
        )

    def every_index_copy(self) -> DrillOutcome:
        """Read each copy of the index whole, also those of homes."""
        begun_s = time.monotonic()
        wrong, size, count = [], 0, 0
        for source in self._pinned.finder.index_sources():
            copies = source.copies(INDEX_PATIENCE_S)
            found = {target: why for target, why in copies.items() if why}
            step = source.record.info.checkpoint.step
            wrong += [f"step {step} on {target}: {why}" for target, why in found.items()]
            count += len(copies)
            size += source.record.index_bytes * (len(copies) - len(found))
        return DrillOutcome(
            "every copy of the index",
            (),
            "damaged" if wrong else "whole",
            _named(wrong) or f"{count} copies",
            size,
            time.monotonic() - begun_s,
        )

    def promised_losses(self, domains: Domains, seed: int) -> Iterator[DrillOutcome]:
        """Loads without the worst domain, and without as many targets, drawn at random, as the
        commit promised.
        """
        info = self._pinned.record.info
        payloads = [found.columns for found in self._pinned.finder.payloads()]
        worst = worst_domain(payloads, domains, check_level(info.domain_level))
        if info.domains_survivable < 1:
            text = f"the commit promised no {info.domain_level}"
            yield DrillOutcome(f"without {worst.what}", _ids(worst), "skipped", text, 0, 0.0)
        else:
            yield self.load_without(worst)
        held = {target for columns in payloads for target in columns if target is not None}
        drawn = at_random(held, info.targets_survivable, seed)
        if not drawn.targets:
            text = "the commit promised no target"
            yield DrillOutcome(f"without {drawn.what}", (), "skipped", text, 0, 0.0)
        else:
            yield self.load_without(drawn)

    # ----------------------------------------------------------------------- inside

    @property
    def _key(self) -> tuple[RunName, Step, Generation]:
        id = self.checkpoint
        return id.run, id.step, id.generation

    def _digest(self, reading: Reading) -> ContentsDigest:
        try:
            return contents_digest(reading, self._on_bytes)
        finally:
            reading.close()

    def _compared(
        self, scenario: str, lost: tuple[TargetId, ...], load: Callable[[], _Load]
    ) -> DrillOutcome:
        assert self._plain is not None, "the plain load comes first"
        begun_s = time.monotonic()
        try:
            found = load()
        except CkptError as error:
            seconds = time.monotonic() - begun_s
            return DrillOutcome(scenario, lost, "unreadable", error.message, 0, seconds)
        others = self._plain.differences(found.digest)
        return DrillOutcome(
            scenario,
            lost,
            "differs" if others else "equal",
            _named(others) or found.how,
            found.digest.read_bytes,
            time.monotonic() - begun_s,
            found.rebuilt_bytes,
        )


class _Load(NamedTuple):
    """What a load gave."""

    digest: ContentsDigest
    how: str
    """For people."""
    rebuilt_bytes: int = 0


def _ids(loss: SupposedLoss) -> tuple[TargetId, ...]:
    return tuple(sorted(loss.targets))


def _mended(reading: Reading) -> str:
    damaged = sum(one.damaged_bytes for one in reading.tier_statistics)
    return f", {format_bytes(damaged)} damaged and mended" if damaged else ""


def _named(wrong: Sequence[str]) -> str:
    more = f" and {len(wrong) - NAMED_MAX} more" if len(wrong) > NAMED_MAX else ""
    return "; ".join(wrong[:NAMED_MAX]) + more


def _stored_reading(checkpoint: CheckpointId, stores: Sequence[str]) -> tuple[Reading, str]:
    """Raises NotFound where none of the stores has this generation; Corrupt, Unavailable."""
    from ckpt.objects.reader import StoredCheckpoint
    from ckpt.objects.sinks.stores import open_sink
    from ckpt_client.load.stored_reading import StoredReading

    for url in dict.fromkeys(stores):
        with suppress(NotFound):
            stored = StoredCheckpoint.open(
                open_sink(url), checkpoint.run, checkpoint.step, checkpoint.generation
            )
            return StoredReading(stored), stored.url
    named = " or ".join(stores) or "no object store is known"
    raise NotFound(f"{checkpoint} is not drained: {named}")
