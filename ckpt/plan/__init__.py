"""Where bytes go: placement, coverage, replica shares, reads and retention. Pure functions."""
