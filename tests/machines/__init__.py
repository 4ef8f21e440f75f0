"""Real daemons on machines that fail: power that goes, clocks that jump, no descriptor left."""
