"""The end-to-end tests' real cluster, for the drain."""

from __future__ import annotations

from tests.e2e.conftest import cluster, cluster_options, mark, runtime, store

__all__ = ["cluster", "cluster_options", "mark", "runtime", "store"]
