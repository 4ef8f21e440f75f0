"""Which etcd, and where in it, does a catalog's URL name?

etcd://H:P[,H:P...]/PREFIX?ca=FILE&cert=FILE&key=FILE&user=NAME&password_file=FILE&insecure=1

ca              whose certificates the members have: TLS. Without it plain text, which is for
                loopback alone, unless insecure=1 says that the network is trusted
cert, key       what shows the members who asks
user            of etcd's own authentication, with the password in `password_file`
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from ckpt.aio.net.wire_policy import is_loopback
from ckpt.base.errors import Refused
from ckpt.base.near import did_you_mean
from ckptd.config import host_and_port

SCHEME: Final = "etcd://"
_OPTIONS: Final = ("ca", "cert", "key", "user", "password_file", "insecure")
_SHAPE: Final = "such as etcd://10.0.0.1:2379,10.0.0.2:2379/ckpt/prod?ca=/etc/ckpt/etcd-ca.pem"
PREFIX_BYTES_MAX: Final = 64
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    """What it says; no file of it has been read."""

    members: tuple[str, ...]
    """HOST:PORT of each."""
    prefix: str
    """Of all keys of the catalog, without the colon that ends it."""
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str = ""
    password_file: Path | None = None
    text: str = field(default="", compare=False)
    """As it was given, with its options: no secret is in it."""

    @property
    def scheme(self) -> str:
        """Of each member's own URL."""
        return "https" if self.ca is not None else "http"

    def __str__(self) -> str:
        """For people: which etcd, and where in it."""
        return f"{SCHEME}{','.join(self.members)}/{self.prefix}"


def parse_etcd_url(text: str) -> EtcdUrl:
    """Raises Refused with what is wrong in it."""
    if not text.startswith(SCHEME):
        raise Refused(f"catalog {text!r} is no {SCHEME} URL", hint=_SHAPE)
    place, _, query = text.removeprefix(SCHEME).partition("?")
    named, _, path = place.partition("/")
    prefix = unquote(path).strip("/")
    if not _PREFIX.fullmatch(prefix):
        raise Refused(
            f"prefix {prefix!r} in {text!r}: letters, digits and . _ - between slashes", hint=_SHAPE
        )
    if len(prefix) > PREFIX_BYTES_MAX:
        raise Refused(f"prefix {prefix!r}: at most {PREFIX_BYTES_MAX} characters")
    members = tuple(named.split(","))
    for member in members:
        host_and_port(member)
    if len(set(members)) < len(members):
        raise Refused(f"a member is named twice in {text!r}")
    given = _options(query, text)
    if "ca" not in given:
        _check_plain(members, given, text)
    ca, cert, key, password_file = (
        Path(given[name]) if name in given else None
        for name in ("ca", "cert", "key", "password_file")
    )
    return EtcdUrl(members, prefix, ca, cert, key, given.get("user", ""), password_file, text)


def mending_command(text: str, targets: str = "HOST:PORT ...") -> str:
    """Makes a catalog of what the targets hold, below a prefix beside that of this URL: what is
    there is never replaced.
    """
    place, mark, query = text.partition("?")
    named, _, path = place.removeprefix(SCHEME).partition("/")
    beside = f"{SCHEME}{named}/{_prefix_beside(unquote(path).strip('/'))}{mark}{query}"
    return f"ckpt catalog rebuild {shlex.quote(beside)} --targets '{targets}'"


def _prefix_beside(prefix: str) -> str:
    """Another one, as long as a prefix may be."""
    for ending in ("-2", "-3"):
        other = prefix[: PREFIX_BYTES_MAX - len(ending)].rstrip("/") + ending
        if other != prefix:
            break
    return other


def _options(query: str, text: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    for name, value in pairs:
        if name not in _OPTIONS:
            hint = did_you_mean(name, list(_OPTIONS), f"known are {', '.join(_OPTIONS)}")
            raise Refused(f"option {name!r} in {text!r} is not known", hint=hint)
        if not value:
            raise Refused(f"option {name!r} in {text!r} is empty")
    if len(given) < len(pairs):
        raise Refused(f"an option is given twice in {text!r}")
    for one, other in (("cert", "key"), ("user", "password_file")):
        if (one in given) is not (other in given):
            raise Refused(f"{one} and {other} go together in {text!r}")
    if given.get("insecure", "1") != "1":
        raise Refused(f"insecure={given['insecure']} in {text!r}: 1, or leave it out")
    if "insecure" in given and "ca" in given:
        raise Refused(f"insecure=1 with ca in {text!r}: one says plain text, the other TLS")
    return given


def _check_plain(members: tuple[str, ...], given: dict[str, str], text: str) -> None:
    if "cert" in given:
        raise Refused(f"cert in {text!r} needs ca, the certificate of who signed the members'")
    far = [member for member in members if not is_loopback(host_and_port(member)[0])]
    if far and "insecure" not in given:
        raise Refused(
            f"{far[0]} in {text!r} would be spoken to in plain text",
            hint="give ca=FILE for TLS, or insecure=1 where nobody else is on the network",
        )
