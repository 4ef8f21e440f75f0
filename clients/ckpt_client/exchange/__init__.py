"""Checkpoints in other programs' formats: export and import, a few MiB at a time, without a GPU."""
