"""The coordinator: members, launches, space, attempts, commits, reads, deletion: machine.py."""
