"""How fast does lost redundancy come back, and what does that cost whoever saves meanwhile?"""
