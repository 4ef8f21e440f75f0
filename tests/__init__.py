"""Tests doubt: one folder for each room, and the simulator."""
