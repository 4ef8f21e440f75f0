"""Commands that advice names, as a person types them in a shell."""

from __future__ import annotations

from ipaddress import ip_address


def at_host(address: str, command: str) -> str:
    """The command for a process of the host where this is listened at: its number may be that of
    another process where somebody reads the advice. What only its own host reaches is read there.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_here = ip_address(host).is_loopback
    except ValueError:
        is_here = host in ("", "localhost")
    return command if is_here else f"ssh {quoted(host)} {command}"


def quoted(word: str) -> str:
    """As a shell takes it for one word."""
    plain = word.isascii() and all(letter.isalnum() or letter in "@%+=:,./-_" for letter in word)
    return word if plain and word else "'" + word.replace("'", "'\"'\"'") + "'"
