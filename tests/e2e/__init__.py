"""The issue's API text, claim by claim, against real processes."""
