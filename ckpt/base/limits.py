"""Every bound that two rooms rely on, and the relations that must hold between them."""

from __future__ import annotations

from ckpt.base.units import GiB, KiB, MiB

# Names and counts.
RUN_NAME_BYTES_MAX = 255
WORLD_SIZE_MAX = 1 << 20
CODE_COLUMNS_MAX = 32
CODE_PARITY_MAX = 4
TARGET_ID_BYTES_MAX = 64
INCARNATION_BYTES = 16

HOMES_MAX = 4
"""Earlier generations that one checkpoint may refer to for bytes that did not change."""

# Layout.
PAGE_BYTES = 4 * KiB
"""O_DIRECT's unit here; every offset and length in a column file is a multiple of it."""
BLOCK_BYTES = 128 * KiB
"""Checksum block: the size of damage. A cell has one or several; its last may be shorter."""
CELL_BYTES_DEFAULT = 4 * MiB
"""Few, large frames: docs/decisions/0005. Small payloads get smaller cells. 0.1.0 knows no larger
ones."""
CELL_BYTES_MAX = 8 * MiB
"""Of large payloads, where no client of 0.1.0 may come any more."""
LARGE_STRIPES_MIN = 4
"""A payload has cells of CELL_BYTES_MAX only if it fills so many stripes of them: while one is
encoded others are sent and written."""
LARGE_STRIPE_BYTES_MAX = 64 * MiB
"""Of such a stripe: rings, windows and what repair holds grow with it."""
PAYLOAD_BYTES_MAX = 1 << 44

# Frames.
FRAME_META_BYTES_MAX = 64 * KiB
FRAME_BULK_BYTES_MAX = 8 * MiB
UNAUTHENTICATED_BYTES_MAX = 4 * KiB
UNAUTHENTICATED_PEERS_MAX = 2048
"""Each of these seats takes 4 KiB. They also take at most an eighth of the descriptors."""
UNAUTHENTICATED_LIFE_US = 5_000_000
DESCRIPTORS_REMEDY = "raise its limit (LimitNOFILE= of its service, ulimit -Hn) and start it again"
"""The remedy for a daemon that has as many connections as it may."""
READ_BYTES = 4 * MiB
"""Of a column, asked for, read and sent as one: with less of it the frames cost more than the
bytes (docs/decisions/0050)."""
READ_RANGES_MAX = 4096
"""Most entries of a question."""
READ_RUNS_MAX = 1 << 17
"""Most runs that the entries of a question stand for."""

# Documents.
COMMIT_RECORD_BYTES_MAX = 4 * KiB
MANIFEST_BYTES_MAX = 64 * MiB
TABLE_BYTES_MAX = 256 * MiB
"""Most bytes of a rank's tensor table, and of its tree document."""
INDEX_BYTES_MAX = 4 * GiB
TREE_DEPTH_MAX = 64
TENSOR_NAME_BYTES_MAX = 4 * KiB
TENSOR_DIMS_MAX = 64
INDEX_PAGE_BYTES_MAX = 64 * KiB
"""Raw size of one page of the index: what a reader fetches to learn of one tensor."""

# Leases and deadlines.
LEASE_US = 3_000_000
RENEW_US = 1_000_000
STANDSTILL_US = 1_000_000
"""A coordinator that did not tick for this long was stopped itself: the time counts for no
lease.
"""
HEDGE_US = 2_000_000
"""A target that is silent for this long, while it owes something, loses its column to a spare."""
BEAT_US = 500_000
"""A target says at least this often that it lives, to whoever waits for it."""
SEAL_WAIT_US = 5_000_000
"""What lies on a target counts only when it says so. What is on the disk's way then holds that up
for at most so long."""
RESOLVE_WAIT_US = 10_000_000
STAGER_AWAY_US = 2_000_000
"""A stager that is away for longer was killed: readers do not wait for its attempt."""

# Targets.
RESERVE_FRACTION = 0.05
"""Share of each device that is never given to a reservation."""
SCRUB_PERCENT = 5
"""Most of a device's time, in percent, that reading what lies on it may take."""
DEVICE_FAILURES_MAX = 3
"""A device fails when it has refused so many operations since it was last proved well: then its
target gets no new columns. A single one may be a bad sector, which costs one column.
"""
DEVICE_PROBE_US = 2_000_000
"""The first probe of a failing device comes after this; each further one after twice as long."""
DEVICE_PROBE_LAST_US = 300_000_000
"""The longest pause between two probes of a failing device."""
DEVICE_CALM_US = 600_000_000
"""After so long without a failure, earlier failures of a device are forgotten."""

assert PAGE_BYTES <= BLOCK_BYTES <= CELL_BYTES_DEFAULT <= CELL_BYTES_MAX
assert BLOCK_BYTES & (BLOCK_BYTES - 1) == 0, "blocks of a cell are found by shifting"
assert CELL_BYTES_DEFAULT % BLOCK_BYTES == 0
assert CELL_BYTES_MAX <= FRAME_BULK_BYTES_MAX, "one fragment travels in one frame"
assert READ_BYTES <= FRAME_BULK_BYTES_MAX
assert CODE_PARITY_MAX < CODE_COLUMNS_MAX
assert 3 * BEAT_US < HEDGE_US, "two lost or late words must not cost a place"
assert 2 * RENEW_US < LEASE_US, "one lost renewal must not cost the lease"
assert DEVICE_PROBE_US < DEVICE_PROBE_LAST_US < DEVICE_CALM_US, "a relapse is known"
assert STANDSTILL_US <= RENEW_US, "what is not excused costs no more than one renewal"
