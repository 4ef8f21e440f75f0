"""Loads into a state dict of torch: what leaves want, in which order, and the way to devices."""
