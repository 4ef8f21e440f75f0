"""Moves fragments: a column writer and a column reader, for stager, restore and rebuild alike."""
