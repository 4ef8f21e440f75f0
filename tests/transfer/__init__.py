"""Payloads over real sockets, to and from targets that behave, stop, lie and die."""
