"""Tests of the erasure code."""
