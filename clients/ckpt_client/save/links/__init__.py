"""A trainer's links to its stagers: asked, granted, handed over, and what comes back."""
