"""By what does etcd know a coordinator, and the coordinator etcd? The files that the URL names: the
authority, a certificate with its key, a password.

People renew them while coordinators run, in etcd and here one after the other. So they are read
again once they have changed, when something has failed; what cannot be read then, since it is just
being written, leaves what was read before.
"""

from __future__ import annotations

import ssl
import stat
from contextlib import suppress
from pathlib import Path

from ckpt.base.errors import Refused
from ckptd.catalog.etcd.url import EtcdUrl

_Seen = tuple[int, int, int]
"""Inode, size and time of change."""


class Credentials:
    """Of one URL. Raises Refused naming a file that cannot be used."""

    def __init__(self, url: EtcdUrl) -> None:
        self._url = url
        self._files = [
            file for file in (url.ca, url.cert, url.key, url.password_file) if file is not None
        ]
        self._seen = self._look()
        self.tls: ssl.SSLContext | bool = _tls_of(url)
        """True where there is none."""
        self.password = _password_of(url)

    def renew(self) -> bool:
        """Read them again if any has changed; whether all of them are as they should be then."""
        seen = self._look()
        if seen == self._seen:
            return False
        with suppress(Refused):
            tls, password = _tls_of(self._url), _password_of(self._url)
            self.tls, self.password, self._seen = tls, password, seen
            return True
        return False

    def _look(self) -> list[_Seen | None]:
        return [_seen(file) for file in self._files]


def _seen(file: Path) -> _Seen | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def why_broken(error: BaseException, url: EtcdUrl, *, was_let_in: bool) -> str:
    """What people are to hear of a connection that broke. `was_let_in`: it was good before."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    # The first one says which check failed.
    for each in reversed(causes):
        if isinstance(each, ssl.SSLCertVerificationError):
            return f"TLS fails: {_why_not_trusted(each, url)}"
        if isinstance(each, ssl.SSLError):
            return f"TLS fails: {_why_not_taken(each, url)}"
    # Of one that never stood, aiohttp says why.
    if url.ca is not None and isinstance(getattr(error, "os_error", None), ConnectionResetError):
        return "it ends the connection as TLS begins: if it speaks plain text, leave ca= out"
    if str(error) == "Server disconnected" and url.ca is None and not was_let_in:
        return "it ends the connection without an answer: if it speaks TLS, give ca="
    return str(error) or "no answer in time"


def _why_not_trusted(error: ssl.SSLCertVerificationError, url: EtcdUrl) -> str:
    match error.verify_code:
        case 9:
            return "its certificate is not valid yet: compare its clock with this one"
        case 10:
            return "its certificate has expired: renew it"
        case 2 | 18 | 19 | 20 | 21:
            return f"its certificate is not signed by ca={url.ca}"
    return error.verify_message


def _why_not_taken(error: ssl.SSLError, url: EtcdUrl) -> str:
    if "CERTIFICATE" not in (error.reason or "") and "UNKNOWN_CA" not in (error.reason or ""):
        return str(error)
    if url.cert is None:
        return "it wants a certificate: give cert= and key="
    look = f"openssl x509 -noout -dates -issuer -in {url.cert}"
    return f"it does not take cert={url.cert} ({error.reason}): see {look}"


def _tls_of(url: EtcdUrl) -> ssl.SSLContext | bool:
    if url.ca is None:
        return True
    _read(url.ca, "ca")
    try:
        context = ssl.create_default_context(cafile=url.ca)
    except ssl.SSLError as error:
        raise Refused(f"ca={url.ca} is no certificate: {error.reason or error}") from None
    # From Python 3.13 on it is set: it refuses authorities that etcd's members take.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if url.cert is not None and url.key is not None:
        _read(url.cert, "cert")
        _read(url.key, "key")
        try:
            context.load_cert_chain(url.cert, url.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            text = getattr(error, "reason", None) or error
            raise Refused(f"cert={url.cert} with key={url.key} cannot be used: {text}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password, and nobody is here to type it")


def _password_of(url: EtcdUrl) -> str:
    if url.password_file is None:
        return ""
    path = url.password_file
    password = _read(path, "password_file").decode(errors="replace").strip()
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Refused(f"others can read password_file={path}", hint=f"chmod 600 {path}")
    if not password:
        raise Refused(f"password_file={path} is empty")
    return password


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"cannot read {option}={path}: {error.strerror}") from None
