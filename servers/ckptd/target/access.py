"""May this user use what lies in a target's directory? Asked before its target begins."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ckpt.aio.private import user_name
from ckpt.base.errors import Refused
from ckpt.base.shell_words import quoted
from ckpt.protocol.target.at_rest.scrub_note import SCRUB_FILE
from ckpt.protocol.target.core import DIRECTORIES, DOCUMENTS
from ckpt.protocol.target.notes.catalog_note import CATALOG_FILE
from ckpt.protocol.target.notes.map_note import MAP_FILE
from ckpt.protocol.target.term import COORDINATOR_FILE, PROTOCOL_FILE, TERM_FILE

_NOTES: Final = (TERM_FILE, COORDINATOR_FILE, PROTOCOL_FILE, CATALOG_FILE, MAP_FILE, SCRUB_FILE)


def check_access(directory: Path) -> None:
    """Raises Refused, before anything is changed, where rights keep this user from a folder, a note
    or a document.

    A note that cannot be read would count as none, and the target would obey a coordinator that it
    has left, or vouch for an old catalog; a document would be set aside. A column is another
    matter: it stays where it is, and the target serves the others.
    """
    for path in (directory, *(directory / name for name in DIRECTORIES)):
        _check_folder(path, directory)
    for path in (*(directory / name for name in _NOTES), *_documents(directory)):
        try:
            # A pipe is not waited for.
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except PermissionError:
            raise _kept_out(path, directory) from None
        except OSError:  # It is not there, or its device is not well: the start sees to that.
            continue


def _check_folder(path: Path, directory: Path) -> None:
    """What takes no writes at all is read all the same."""
    if not path.is_dir():
        return
    read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    wanted = os.R_OK | os.X_OK | (0 if read_only else os.W_OK)
    # As effective ones older C libraries guess by the mode, where a file system may say otherwise.
    is_changed = os.geteuid() != os.getuid()
    if not os.access(path, wanted, effective_ids=is_changed):
        raise _kept_out(path, directory)


def _documents(directory: Path) -> Iterator[Path]:
    folder = directory / DOCUMENTS
    return iter(sorted(folder.iterdir())) if folder.is_dir() else iter(())


def _kept_out(path: Path, directory: Path) -> Refused:
    found, user = path.lstat(), os.geteuid()
    name = user_name(user)
    if found.st_uid != user:
        owner = user_name(found.st_uid)
        return Refused(
            f"{path} belongs to user {owner}, this is {name}",
            hint=f"chown -R {quoted(name)} {quoted(str(directory))}",
        )
    own = stat.S_IRUSR | stat.S_IWUSR | (stat.S_IXUSR if stat.S_ISDIR(found.st_mode) else 0)
    if found.st_mode & own != own:
        hint = f"chmod -R u+rwX {quoted(str(directory))}"
    else:
        hint = "a rule of this host does, such as SELinux's or AppArmor's: its log says which"
    return Refused(f"something keeps user {name} from {path}", hint=hint)
