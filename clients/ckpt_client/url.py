"""What `ckpt.open` is given: a URL, cut into parts and checked.

    ckpt+local:///DIR?targets=7&code=4+2    one machine; the options count when DIR is made
    ckpt://HOST:PORT                        a coordinator
    ckpt://HOST:PORT,HOST:PORT,HOST:PORT    a cluster's coordinators, of which one leads

A `+` stands for itself (codes are written 4+2); everything else may be percent-encoded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final
from urllib.parse import quote, unquote

from ckpt.aio.net.address import TcpAddress, parse_addresses
from ckpt.base.errors import Refused
from ckpt.base.near import did_you_mean
from ckpt.base.units import parse_bytes
from ckpt.erasure.code import Code
from ckpt_client.warn import warn

_EXAMPLE: Final = "such as ckpt+local:///scratch/burst"
TARGET_COUNT_DEFAULT: Final = 7
TARGET_COUNT_MAX: Final = 64
_CODES_BY_TARGETS: Final = ((6, Code(4, 2)), (3, Code(2, 1)), (2, Code(1, 1)), (1, Code(1, 0)))


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What the query says; None where it says nothing. The field names are the options' names."""

    targets: int | None = None
    code: str | None = None
    keep: int | None = None
    """Newest committed steps to keep of each run; None keeps all."""
    restart: str | None = None
    """`always`: a target that died is started again, with backoff; `never`."""
    linger: float | None = None
    """Seconds without a client after which the supervisor stops."""
    capacity: int | None = None
    """Bytes that all targets together may use."""
    pretend_domains: bool | None = None
    """Report each target as a failure domain of its own, although they share a device."""
    unprotected: bool | None = None
    """Needed for a code without parity."""
    cell: int | None = None
    """Bytes of one data cell."""

    def shape(self) -> tuple[int, Code]:
        """Target count and code, with defaults filled in. Raises Refused when they do not fit."""
        code = Code.parse(self.code) if self.code is not None else None
        targets = self.targets
        if targets is None:
            targets = TARGET_COUNT_DEFAULT if code is None else max(TARGET_COUNT_DEFAULT, code.n)
        if not 1 <= targets <= TARGET_COUNT_MAX:
            raise Refused(f"targets={targets}: 1 to {TARGET_COUNT_MAX} are allowed")
        if code is None:
            code = default_code(targets)
        elif code.m == 0 and not self.unprotected:
            raise Refused(
                f"code={code} loses data with the first target that fails",
                hint="add unprotected=1 if that is meant",
            )
        if code.n > targets:
            raise Refused(f"code={code} needs {code.n} targets, there are {targets}")
        return targets, code


@dataclass(frozen=True, slots=True)
class LocalUrl:
    """A cluster on this machine, in one directory."""

    directory: str
    """Absolute."""
    options: LocalOptions

    def __str__(self) -> str:
        return f"ckpt+local://{quote(self.directory)}"


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    """A coordinator elsewhere, or several of one cluster."""

    host: str
    port: int
    others: tuple[TcpAddress, ...] = ()

    @property
    def address(self) -> str:
        """Of all, with commas between them."""
        return ",".join(map(str, (TcpAddress(self.host, self.port), *self.others)))

    def __str__(self) -> str:
        return f"ckpt://{self.address}"


def default_code(targets: int) -> Code:
    """4+2 from 6 targets, 2+1 from 3, 1+1 from 2, 1+0 from one with a warning."""
    code = next(code for least, code in _CODES_BY_TARGETS if targets >= least)
    if code.m == 0:
        warn("one target has no redundancy: a checkpoint is lost with it")
    return code


def parse_url(
    url: str | None = None, environ: Mapping[str, str] = os.environ
) -> LocalUrl | RemoteUrl:
    """The parts of `url`, else of $CKPT_STORE. Raises Refused naming what is wrong
    and what is known.
    """
    if url is None:
        url = environ.get("CKPT_STORE") or None
        if url is None:
            raise Refused(
                "no store is named",
                hint="pass a URL such as ckpt+local:///scratch/burst, or set CKPT_STORE",
            )
    if not isinstance(url, str):
        raise Refused(f"store {url!r} is no URL", hint=_meant(_path_of(url)))
    if url != url.strip() or any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in url):
        raise Refused(
            f"store {url!r} begins or ends with a space, or has a control character",
            hint="percent-encode it if it is meant",
        )
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "ckpt+local":
        return _local(url, rest)
    if separator and scheme == "ckpt":
        return _remote(url, rest)
    raise Refused(
        f"store {url!r} is not of the form ckpt+local:///DIR or ckpt://HOST:PORT", hint=_meant(url)
    )


_ADDRESS: Final = re.compile(r"(?:(?:https?|tcp|ckpt):/{0,2})?([\w.-]+:\d+|\[[\da-fA-F:]+\]:\d+)/?")
"""HOST:PORT, alone or after another scheme."""
_SCHEME: Final = re.compile(r"(\w[\w+.-]*):(?:/(?=/))*")
"""In front of a path: `file:///d`, `ckpt+local:/d`."""
_OF_FILES: Final = ("file", "ckpt", "ckpt+local", "local")
"""Schemes after which a path is a directory of this machine."""
_OBJECT_STORES: Final = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")


def _meant(text: str) -> str:
    """The next step for who wrote this in the place of a store's URL: mostly the URL itself."""
    address = _ADDRESS.fullmatch(text)
    if address:
        return f"did you mean ckpt://{address[1]}?"
    scheme, rest = _SCHEME.match(text), text
    if scheme:
        rest = text[scheme.end() :]
        if scheme[1] in _OBJECT_STORES:
            return "a checkpoint there is read by ckpt.load(URL), or by ckpt.open(..., durable=URL)"
        if scheme[1] not in _OF_FILES:
            return did_you_mean(scheme[1], ("ckpt+local", "ckpt"), _EXAMPLE)
    path, question, query = rest.partition("?")
    if not path.strip("/"):
        return _EXAMPLE
    return f"did you mean ckpt+local://{quote(_absolute(path))}{question}{query}?"


def _path_of(value: object) -> str:
    """Of a pathlib.Path; empty for anything else."""
    return str(value) if isinstance(value, os.PathLike) else ""


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _local(url: str, rest: str) -> LocalUrl:
    path, question, query = rest.partition("?")
    try:
        directory = unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise Refused(f"store {url!r}: the directory's name is not in UTF-8") from None
    if not directory.startswith("/"):
        meant = _absolute(path) if path.startswith((".", "~")) else f"/{path}"
        full = f"did you mean ckpt+local://{meant}{question}{query}, with three slashes?"
        raise Refused(
            f"store {url!r}: the directory must be absolute", hint=full if path else _EXAMPLE
        )
    if "\0" in directory:
        raise Refused(f"store {url!r}: the directory has a zero byte")
    options = LocalOptions(**_parse_query(query))  # type: ignore[arg-type]
    if directory.strip("/") == "":
        raise Refused(f"store {url!r} names no directory")
    return LocalUrl(os.path.normpath(directory), options)


def _remote(url: str, rest: str) -> RemoteUrl:
    authority, question, _ = rest.partition("?")
    if question:
        raise Refused(f"store {url!r}: a coordinator's URL takes no options")
    first, *others = (_coordinator(url, part) for part in authority.rstrip("/").split(","))
    remote = RemoteUrl(first.host, first.port, tuple(others))
    parse_addresses(remote.address)
    return remote


def _coordinator(url: str, part: str) -> TcpAddress:
    host, colon, port = part.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_host = host and not any(mark in host for mark in "[]@")
    if not (colon and is_host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        which = f": {part!r}" if "," in url else ""
        raise Refused(
            f"store {url!r} is not of the form ckpt://HOST:PORT{which}", hint=_missing(url, part)
        )
    return TcpAddress(unquote(host), int(port))


def _missing(url: str, part: str) -> str:
    """The next step for a coordinator that is not HOST:PORT."""
    if url.startswith("ckpt:///"):
        return _meant(url)
    address, slash, _ = part.partition("/")
    if address and not any(mark in address for mark in ":[]@"):
        return f"add the port of its `ckptd coordinator --listen`: ckpt://{address}:7070"
    if slash:
        return f"a store's URL ends with the port: ckpt://{address}"
    return "such as ckpt://node1:7070"


def _parse_query(query: str) -> dict[str, object]:
    known = [one.name for one in fields(LocalOptions)]
    values: dict[str, object] = {}
    for part in query.split("&") if query else ():
        name, _, text = part.partition("=")
        name, text = unquote(name), unquote(text)
        if name not in known:
            raise Refused(
                f"option {name!r} is not known",
                hint=did_you_mean(name, known, f"known are {', '.join(known)}"),
            )
        if name in values:
            raise Refused(f"option {name!r} is given twice")
        values[name] = _parse_option(name, text)
    return values


def _parse_option(name: str, text: str) -> int | float | bool | str:
    match name:
        case "targets":
            return _whole(name, text, 1)
        case "keep":
            return _whole(name, text, 1)
        case "code":
            return str(Code.parse(text))
        case "restart":
            if text not in ("always", "never"):
                raise Refused(f"restart={text!r}: 'always' or 'never'")
            return text
        case "linger":
            return _seconds(name, text)
        case "capacity" | "cell":
            return parse_bytes(text)
        case _:
            if text not in ("0", "1"):
                raise Refused(f"{name}={text!r}: 0 or 1")
            return text == "1"


def _whole(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise Refused(f"{name}={text!r} is not a whole number from {least}")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise Refused(f"{name}={text!r} is not a number of seconds")
    return value
