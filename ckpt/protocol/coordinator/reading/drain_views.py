"""What people and tools see of the drain: one record for each object store, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.base.shell_words import quoted
from ckpt.base.units import US_PER_S
from ckpt.protocol.coordinator.keeping.draining import DrainQueue, ServedStore, Unreached
from ckpt.protocol.coordinator.reading.answers import Check, StoreStatus
from ckpt.protocol.coordinator.reading.checks import check

UNSERVED_US = 60_000_000
"""A store that has a backlog and no worker for so long is a fault."""


def store_statuses(queue: DrainQueue, now_us: int) -> tuple[StoreStatus, ...]:
    """All stores, by URL; those that no worker could open yet at the end."""
    known = (_status(queue, store, now_us) for store in queue.stores.values())
    return *known, *(_unreached(url, one) for url, one in sorted(queue.unreached.items()))


def _unreached(url: str, one: Unreached) -> StoreStatus:
    return StoreStatus(url, "unreached", workers=(one.worker,), error=one.error)


def _status(queue: DrainQueue, store: ServedStore, now_us: int) -> StoreStatus:
    waiting = queue.waiting(store)
    jobs = [job for job in store.jobs.values() if job.workers]
    written = sum(sum(job.workers.values()) for job in jobs)
    rate = sum(worker.bytes_per_s for worker in store.workers.values())
    left = sum(one.payload_bytes for one in waiting)
    oldest = waiting[0] if waiting else None
    return StoreStatus(
        url=store.policy.url,
        state=_state(store, bool(waiting), bool(jobs)),
        every=store.policy.every,
        keep=store.policy.keep,
        runs=store.policy.runs,
        conditional=store.conditional,
        workers=tuple(sorted(store.workers)),
        backlog=len(waiting),
        backlog_bytes=left,
        oldest_undrained=f"{oldest.run}@{oldest.step}" if oldest else "",
        oldest_undrained_at_s=oldest.committed_at_s if oldest else 0.0,
        draining=tuple(f"{job.checkpoint.run}@{job.checkpoint.step}" for job in jobs),
        parts_done=sum(len(job.done) for job in jobs),
        parts=sum(job.part_count or 0 for job in jobs),
        written_bytes=written,
        bytes_per_s=rate,
        end_in_s=max(0, left - written) / rate if rate else 0.0,
        last=f"{store.last.run}@{store.last.step}" if store.last else "",
        drained=store.drained_count,
        failed=store.failed_count,
        unserved_s=0.0 if store.workers else (now_us - store.unserved_since_us) / US_PER_S,
        error=store.error,
    )


def _state(store: ServedStore, has_backlog: bool, is_draining: bool) -> str:
    if is_draining:
        return "draining"
    if store.error:
        return "failing"
    return "waiting" if has_backlog else "idle"


def drain_checks(stores: Sequence[StoreStatus], address: str) -> Iterator[Check]:
    """No command forgets a store that may come back: what waits for it could be evicted."""
    for store in stores:
        url = quoted(store.url)
        end = f"end {', '.join(store.workers)}, then " if store.workers else ""
        forget = f"when the store is gone for good: {end}ckpt drain forget {url}"
        if store.error:
            remedy = f"mend it, it is tried again by itself; {forget}"
            yield check("DRAIN_FAILING", f"{store.url}: {store.error}", remedy, "")
        elif store.backlog and store.unserved_s * US_PER_S >= UNSERVED_US:
            waits = (
                "1 checkpoint waits" if store.backlog == 1 else f"{store.backlog} checkpoints wait"
            )
            text = f"{waits} for {store.url}, and no worker serves it"
            command = f"ckptd drain --to {url} --coordinator {address}"
            yield check("DRAIN_STOPPED", text, f"start a worker; {forget}", command)
