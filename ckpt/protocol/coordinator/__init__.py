"""The coordinator: membership, launches, reservations, attempts, commits, reads, deletion. Begin with machine.py."""
