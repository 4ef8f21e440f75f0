"""Framed, authenticated connections: who dials, who listens, who is let in."""
