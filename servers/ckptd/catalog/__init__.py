"""The coordinator's stable storage: a SQLite file or etcd, its copies, and how it is rebuilt."""
