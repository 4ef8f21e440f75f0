"""The HTTP plane that only reads: page, health, metrics."""
