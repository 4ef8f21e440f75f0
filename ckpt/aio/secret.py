"""Where the secret lies: $CKPT_SECRET_FILE, else what a flag names, DIR/secret,
~/.config/ckpt/secret.

The secret is 32 random bytes, written as hex in a file that only its owner can read. It is read
where it is needed and never travels: not over a socket, not in an argument, not in the environment.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ckpt.aio.durable import sync_directory
from ckpt.base.errors import Refused, Unauthorized
from ckpt.base.system_errors import system_error

SECRET_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 4096
_KINDS: Final = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
_HINT: Final = f"`openssl rand -hex {SECRET_BYTES}` makes one; all hosts need a copy of the same"


def find_secret_file(
    directory: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    named: Path | None = None,
) -> Path:
    """The file that counts here; it need not exist yet.

    `directory` is a local cluster's DIR, `named` what a flag says. The variable stands before both.
    Raises Refused when nothing names one and the user has no home.
    """
    from_environment = environ.get("CKPT_SECRET_FILE")
    if from_environment:
        return Path(from_environment)
    if named is not None:
        return named
    if directory is not None:
        return directory / "secret"
    home = environ.get("XDG_CONFIG_HOME")
    try:
        config = Path(home) if home else Path.home() / ".config"
    except RuntimeError:  # A container's user whom no list of users knows.
        raise Refused(
            "this user has no home directory, in which the cluster's secret would be",
            hint="set CKPT_SECRET_FILE to a copy of it",
        ) from None
    return config / "ckpt" / "secret"


def read_secret(path: Path) -> bytes:
    """Its bytes. Raises Unauthorized when it is absent, Refused when it is exposed or malformed,
    Scarce where nothing can be opened now.
    """
    try:
        _check_is_file(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        what = f"cannot read the cluster's secret {path}"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise system_error(what, error) from None
        raise Unauthorized(
            f"{what}: {error.strerror}",
            hint="set CKPT_SECRET_FILE to a copy of it; if the cluster is new, "
            f"`openssl rand -hex {SECRET_BYTES}` makes one",
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Refused(f"others can read the secret {path}", hint=f"chmod 600 {path}")
        text = file.read(_FILE_BYTES_MAX)
    try:
        secret = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        raise Refused(f"the secret {path} is not written in hex", hint=_HINT) from None
    if len(secret) < SECRET_BYTES:
        raise Refused(
            f"the secret {path} has {len(secret)} bytes, {SECRET_BYTES} are needed", hint=_HINT
        )
    return secret


def _check_is_file(path: Path) -> None:
    """Raises Refused, before it is opened: a pipe would be waited for, and gives its bytes once."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        what = _KINDS.get(kind, "device")
        raise Refused(
            f"the secret {path} is a {what}, not a file",
            hint="write the secret into a file of mode 600, and set CKPT_SECRET_FILE to it",
        )


def make_secret(path: Path) -> None:
    """Write a new secret, readable by the owner alone; an existing one stays. Durable on return."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(SECRET_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(aside, path)  # Fails when another was faster: theirs counts.
        except FileExistsError:
            return
    finally:
        os.unlink(aside)
    sync_directory(path.parent)
