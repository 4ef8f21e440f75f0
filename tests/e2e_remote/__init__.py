"""Separate daemons behind a HOST:PORT, as many machines would run them."""
