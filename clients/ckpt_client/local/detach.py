"""How a process is started that outlives this one: own session, not our child,
nothing inherited but what is named.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.base.errors import CkptError, Refused, Unavailable
from ckpt.base.system_errors import system_error

#: Forks once and leaves: the started process is nobody's child, so nobody has to wait for it.
#: It says the process's id, or the negative errno with which the system refused it. The process's
#: stdout becomes the log, since our pipe must end when the relay does.
#: Slurm sends SIGUSR1 to every process of a job and means the training: what runs beside it ignores
#: the two signals that are nobody's, as do all whom it starts.
_RELAY: Final = """
import os, signal, sys
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
try:
    child = os.fork()
except OSError as error:
    child = -error.errno
if child:
    print(child)
    sys.exit()
os.dup2(2, 1)
os.execv(sys.argv[1], sys.argv[1:])
"""
_RELAY_TIMEOUT_S: Final = 60.0
LOG_BYTES_MAX: Final = 1 << 20


def start_detached(arguments: Sequence[str], *, log: Path, pass_fds: Sequence[int] = ()) -> int:
    """Run `python ARGUMENTS` on its own; its output is appended to `log`. What had grown above
    LOG_BYTES_MAX there becomes NAME.old.log: each training of years adds some lines.

    Returns the process id.
    """
    if not sys.executable:
        raise Refused(
            "this Python is part of another program, which does not say by what it is started",
            hint="set sys.executable to the path of a Python that has ckpt",
        )
    command = [sys.executable, "-I", "-S", "-c", _RELAY, sys.executable, "-P", *arguments]
    what = f"cannot start {arguments[1]}"
    try:
        _put_aside_if_large(log)
        log_descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise system_error(f"{what}: {log}", error) from None
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_descriptor,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
            cwd="/",
            env=child_environment(),
            timeout=_RELAY_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        # Of the program, or of what the system gives this user: processes, descriptors, memory.
        is_program = error.errno in (errno.ENOENT, errno.EACCES)
        hint = "that is sys.executable" if is_program else ""
        raise system_error(f"{what} by {sys.executable!r}", error, hint=hint) from None
    except subprocess.TimeoutExpired:
        ended = f"it did not begin in {_RELAY_TIMEOUT_S:g} s"
        raise Unavailable(f"{what}: {ended}", hint=f"see {log}") from None
    finally:
        os.close(log_descriptor)
    return _started(what, done, log)


def _put_aside_if_large(log: Path) -> None:
    if is_there(log) and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".old.log"))


def _started(what: str, relay: subprocess.CompletedProcess[bytes], log: Path) -> int:
    """The process id, as the relay said it. Raises what kept it from being there."""
    try:
        said = int(relay.stdout)
    except ValueError:
        code = relay.returncode
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise CkptError(f"{what}: its start ended with {ended}", hint=f"see {log}") from None
    if said < 0:
        raise system_error(what, OSError(-said, os.strerror(-said)))
    return said


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][:1] in ("T", "t")


def child_environment() -> dict[str, str]:
    """This process's environment, so that the child finds the same packages from any directory, and
    without thread pools that nobody asked for.
    """
    # By name: the facade `ckpt` stands above this module, which cannot import it.
    roots = [str(Path(sys.modules[name].__path__[0]).parent) for name in ("ckpt", "ckpt_client")]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    try:
        here = os.getcwd()
    except FileNotFoundError:  # It was removed: what is relative to it leads nowhere.
        here, known = "/", [one for one in known if os.path.isabs(one)]
    paths = dict.fromkeys(
        os.path.normpath(os.path.join(here, one)) for one in [*known, *roots] if one
    )
    pools = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **pools, "PYTHONPATH": os.pathsep.join(paths)}
