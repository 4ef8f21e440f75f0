"""What is committed, and what becomes of it: documents, drains, eviction, deletion, loss."""
