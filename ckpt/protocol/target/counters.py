"""What a target counts of itself, for whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    """Cumulative since boot, but for those in LEVELS; RenewLease carries them."""

    sessions_opened: int = 0
    """Sessions that stagers, readers and other clients opened."""
    fragments: int = 0
    """Fragments written to columns."""
    bytes_written: int = 0
    """Fragment bytes written to columns."""
    bytes_read: int = 0
    """Bytes from the disk: whole blocks, also those that are only verified."""
    bytes_given: int = 0
    """Bytes of columns sent to readers, or that these read from lent files."""
    columns_lent: int = 0
    """Columns whose files were lent to readers of this host."""
    columns_sealed: int = 0
    """Columns put on stable storage, and proved to their stagers."""
    columns_refused: int = 0
    """Columns that had begun and were refused; their stagers take a spare."""
    columns_verified: int = 0
    """Columns read whole and compared, as `ckpt verify` asks for."""
    files_scrubbed: int = 0
    """Columns and documents read whole and compared at rest, by itself or for `ckpt scrub`."""
    bytes_scrubbed: int = 0
    """Bytes that were read from the disk to scrub."""
    rot: int = 0
    """Damaged parts of files that a scrub has found, now."""
    scrub_late_seconds: int = 0
    """By how much the scrub of the most overdue file is late; 0: of none."""
    scrub_ended_timestamp_seconds: int = 0
    """When the last scrub of all files ended; 0: none has."""
    blocks_damaged: int = 0
    """Blocks of columns and documents that are not what their checksums say, or cannot be read."""
    documents_stored: int = 0
    """Indexes, commit records and tombstones put on stable storage."""
    documents_read: int = 0
    """Indexes, commit records and tombstones sent to peers."""
    reservations: int = 0
    """Reservations of space that are held now."""
    streams: int = 0
    """Columns that are being written now."""
    streams_begun: int = 0
    """Columns that stagers began to write."""
    reads: int = 0
    """Requests of readers that were accepted."""
    disk_failures: int = 0
    """Disk operations that failed, also for lack of space."""
    set_aside: int = 0
    """Files that are not what their names say; they are kept in `aside/`."""
    connections_full: int = 0
    """1 while it turns trainers and readers away for lack of descriptors or connections."""
    descriptor_limit: int = 0
    """How many descriptors its process may have."""
    peers_turned_away: int = 0
    """Authenticated peers that were turned away because there was no room."""
    strangers_evicted: int = 0
    """Unauthenticated connections that were closed to make room for others."""
    usable_bytes: int = 0
    """Space that the target may use: its capacity or the whole device, less the reserve of 5%."""
    reserved_bytes: int = 0
    """Space that is held for saves under way and for the next ones."""
    device_used_bytes: int = 0
    """Used space of the file system, whoever uses it."""
    inodes_out: int = 0
    """1 while the file system has too few inodes left for more columns, whatever bytes are free."""
    room_refused: int = 0
    """1 while it refuses a column the space that it says is free, as a quota does."""

    def as_dict(self) -> dict[str, int]:
        """Field name to value."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


LEVELS = frozenset(
    {
        "reservations", "streams", "connections_full", "descriptor_limit", "usable_bytes",
        "reserved_bytes", "device_used_bytes", "rot", "scrub_late_seconds",
        "scrub_ended_timestamp_seconds", "inodes_out", "room_refused",
    }
)  # fmt: skip
"""Counters that also fall."""
