"""Reading one payload from its columns. Begin with payload_reader.py."""
