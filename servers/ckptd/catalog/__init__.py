"""The coordinator's stable storage: a SQLite file, its copies, and how it is rebuilt."""
