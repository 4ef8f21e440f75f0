"""The target: space, columns, reads, documents. Begin with machine.py."""
