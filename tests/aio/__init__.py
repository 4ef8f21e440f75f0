"""Sockets, sessions, slots and disks: the real ones, on this machine alone."""
