"""Plans: every byte has one place, and no domain holds too much."""
