"""Effects, each a small Protocol: clock, sockets, files, worker pools."""
