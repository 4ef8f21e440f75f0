"""Seeded fakes of every effect, and contract suites that the real ones pass too."""
