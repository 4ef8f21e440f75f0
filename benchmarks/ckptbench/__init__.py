"""Measures: what each stage costs, and how near a whole burst or restore comes to it."""
