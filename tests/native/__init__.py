"""Tests of the C library and of what binds it."""
