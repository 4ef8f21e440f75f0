"""Writing one payload onto its targets. Begin with payload_writer.py."""
