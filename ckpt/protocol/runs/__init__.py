"""Sets of byte positions: as machines work with them, as messages and frames carry them."""
