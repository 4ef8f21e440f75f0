"""Effects behind small Protocols: clock, sockets, files, worker pools."""
