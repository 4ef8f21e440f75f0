"""torch_checkpointing over a store: `CkptStorageConfig` is its storage, `seal` ends a rank's part.

    CheckpointManager(CheckpointManager.Config(
        storage_config=CkptStorageConfig(), pre_finalize_callback=seal, ...))
    manager.save("ckpt://10.0.0.1:7070/gpt/500", {"model": model.state_dict()})

The package writes RUN/tmp_STEP/FILE on every rank, waits for all of them, and rank 0 renames the
folder to RUN/STEP. Here a file is on its targets when it is closed; the rename is one commit of
exactly the files that all ranks have sealed, or is refused and nothing is visible.
"""

from __future__ import annotations

import errno
import io
import threading
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from ckpt.base.errors import Refused
from ckpt.base.extras import needing
from ckpt.format.checksum import Buffer
from ckpt_client.fs import paths
from ckpt_client.fs.filesystem import CkptFileSystem, CkptLocalFileSystem
from ckpt_client.fs.sealing import SealedFolder
from ckpt_client.fs.step_files import CkptFileSystemBase
from ckpt_client.url import LocalUrl, parse_url

with needing("ckpt_torch.torch_checkpointing"):
    from torch_checkpointing.checkpoint_writer import DEFAULT_TEMP_DIR_PREFIX, CallbackArgs
    from torch_checkpointing.storage.base_storage import ReadArgs, Storage, StorageConfig

READ_WORKERS = 1
"""Ranges of one file are read one after another: the reader underneath has all targets busy."""


@dataclass
class CkptStorageConfig(StorageConfig):  # type: ignore[misc]
    """The package's storage_config. It is sent to the package's own process, with this rank's
    place in the default process group.

    store: URL of the store in which a checkpoint id RUN/STEP lies, else $CKPT_STORE; an id may also
        be a whole URL.
    temp_dir_prefix: the CheckpointWriterConfig's.
    """

    store: str | None = None
    temp_dir_prefix: str = DEFAULT_TEMP_DIR_PREFIX

    def __post_init__(self) -> None:
        #: (rank, world size), set once I have left for another process, which has no process group.
        self._seat: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_seat": self._find_seat()}

    def create_storage(self) -> CkptStorage:
        """One storage for each writer and reader."""
        return CkptStorage(self.store, self.temp_dir_prefix, *self._find_seat())

    def _find_seat(self) -> tuple[int, int]:
        """As the package finds it."""
        if self._seat is not None:
            return self._seat
        return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def seal(args: CallbackArgs) -> None:
    """The `pre_finalize_callback`, or a part of one: this rank has written all its files. Raises
    Refused for another storage than CkptStorageConfig's.
    """
    if not isinstance(args.storage, CkptStorage):
        raise Refused(
            f"seal: the storage is a {type(args.storage).__qualname__}",
            hint="storage_config=CkptStorageConfig()",
        )
    args.storage.seal(Path(args.path))


@dataclass(frozen=True, slots=True)
class _Place:
    """What a path of the package means."""

    fs: CkptFileSystemBase
    path: str
    """Inside of the filesystem, below the folder's last name if that is a temporary one."""
    folder: str = ""
    """The checkpoint's, for what lies in a temporary folder or is one; else empty."""

    @property
    def name(self) -> str:
        """Of a file in the temporary folder; empty for the folder itself."""
        return self.path[len(self.folder) + 1 :] if self.folder else ""


class CkptStorage(Storage):  # type: ignore[misc]
    """I am thread safe; my connections end with the process."""

    def __init__(self, store: str | None, temp_dir_prefix: str, rank: int, world_size: int) -> None:
        self._store = store
        self._prefix = temp_dir_prefix
        self._rank = rank
        self._world_size = world_size
        #: Guards changes of what follows.
        self._lock = threading.Lock()
        #: By what names the cluster. Not fsspec's own: those differ from thread to thread.
        self._filesystems: dict[tuple[type[CkptFileSystemBase], str], CkptFileSystemBase] = {}
        #: Folders that this rank has sealed: the next file that it writes there begins them again.
        self._sealed: set[str] = set()

    @property
    def mmap_fill_workers(self) -> int:
        return READ_WORKERS

    # ----------------------------------------------------------------------- writing

    def stream_write(self, path: Path) -> io.IOBase:
        """Open a file that is on its targets once it is closed; a `with` block that raises leaves
        nothing.
        """
        place = self._find(path)
        if not place.name:
            raise Refused(
                f"{path} is not in a folder {self._prefix}STEP: it would have no commit",
                hint="name checkpoints RUN/STEP, keep write_to_temp_dir=True and the prefix",
            )
        folder = SealedFolder(place.fs, place.folder)
        with self._lock:
            if place.folder in self._sealed:
                folder.give_up()
                self._sealed.discard(place.folder)
        return folder.create(place.name)

    def write(self, path: Path, data: Buffer) -> None:
        with self.stream_write(path) as file:
            file.write(data)  # type: ignore[attr-defined]

    def seal(self, path: Path) -> None:
        """Declare that all files of this rank are in the temporary folder."""
        place = self._find(path)
        if not place.folder:
            raise Refused(f"{path} is no folder {self._prefix}STEP", hint="write_to_temp_dir=True")
        with self._lock:
            SealedFolder(place.fs, place.folder).seal(self._rank, self._world_size)
            self._sealed.add(place.folder)

    def rename(
        self,
        src_path: Path,
        dst_path: Path,
        is_directory: bool = False,
        background_cleanup: bool = False,
    ) -> None:
        """The commit: RUN/tmp_STEP becomes RUN/STEP. Raises FileExistsError for a step that is
        there, Refused when the ranks' files are not all there, or for any other rename.
        """
        source, target = self._find(src_path), self._find(dst_path)
        if source.name or not source.folder or target.folder or source.folder != target.path:
            raise Refused(
                f"{src_path} cannot become {dst_path}: only {self._prefix}STEP becomes STEP",
                hint="files are written under their names, and a step is never changed",
            )
        if source.folder not in self._sealed:
            raise Refused(
                f"{dst_path} cannot be committed: nothing says that its ranks have written all",
                hint="pre_finalize_callback=seal of ckpt_torch.torch_checkpointing",
            )
        if target.fs.exists(target.path):
            raise FileExistsError(errno.ENOTEMPTY, f"{dst_path} is committed", str(dst_path))
        SealedFolder(source.fs, source.folder).commit(self._world_size)

    def mkdir(self, path: Path, recursive: bool = True) -> None:
        """Does nothing: folders exist as soon as they have files."""

    def delete(self, path: Path) -> None:
        """A file that waits for its commit, of this process. A committed step goes as a whole."""
        place = self._find(path)
        place.fs.rm_file(place.path)

    def rmdir(self, path: Path) -> None:
        """A whole step; of a temporary folder what this process has written."""
        place = self._find(path)
        if place.folder:
            SealedFolder(place.fs, place.folder).give_up()
        else:
            place.fs.rm(place.path, recursive=True)

    # ----------------------------------------------------------------------- reading

    def stream_read(self, path: Path, read_args: ReadArgs | None = None) -> io.BufferedIOBase:
        """A committed file, verified as it is read."""
        place = self._find(path)
        if place.folder:
            raise Refused(f"{path} is not committed yet: it cannot be read")
        if read_args is not None and not read_args.pre_read_full_file:
            return place.fs.open_stream(place.path)
        return io.BytesIO(place.fs.cat_file(place.path))

    def ls(self, path: Path) -> list[str]:
        """Names, without those of what lies deeper."""
        place = self._find(path)
        if not place.folder:
            found = place.fs.ls(place.path, detail=False)
            return [str(name).rpartition("/")[2] for name in found]
        below = f"{place.name}/" if place.name else ""
        names = {
            name.removeprefix(below).partition("/")[0]
            for name in self._waiting(place)
            if name.startswith(below)
        }
        if not names:
            raise FileNotFoundError(str(path))
        return sorted(names)

    def exists(self, path: Path) -> bool:
        place = self._find(path)
        if not place.folder:
            return place.fs.exists(place.path)
        return place.name in self._waiting(place) or self.isdir(path)

    def getsize(self, path: Path) -> int:
        """Bytes. Raises FileNotFoundError."""
        place = self._find(path)
        if not place.folder:
            return int(place.fs.info(place.path)["size"])
        waiting = self._waiting(place)
        if place.name not in waiting:
            raise FileNotFoundError(str(path))
        return waiting[place.name]

    def isdir(self, path: Path) -> bool:
        place = self._find(path)
        if not place.folder:
            return place.fs.isdir(place.path)
        below = f"{place.name}/" if place.name else ""
        return any(name.startswith(below) for name in self._waiting(place))

    def remap_path(self, path: Path) -> str:
        """The URL."""
        place = self._find(path)
        return place.fs.unstrip_protocol(place.path)

    # ----------------------------------------------------------------------- inside

    def _waiting(self, place: _Place) -> dict[str, int]:
        return SealedFolder(place.fs, place.folder).listed()

    def _find(self, path: Path) -> _Place:
        """Raises Refused when nothing names a store."""
        fs, inside = self._filesystem(str(path))
        parts = inside.split("/")
        for position, part in enumerate(parts):
            if position > 0 and part.startswith(self._prefix):
                final = [*parts[:position], part.removeprefix(self._prefix)]
                folder = "/".join(final)
                found = paths.step_of(folder)
                if found is not None and found[0] == position:
                    return _Place(fs, "/".join([*final, *parts[position + 1 :]]), folder)
        return _Place(fs, inside)

    def _filesystem(self, text: str) -> tuple[CkptFileSystemBase, str]:
        """The cluster, and the path in it."""
        if paths.is_url(paths.REMOTE, text):
            host, inside = paths.split_remote(text)
            return self._made(CkptFileSystem, host), inside
        if paths.is_url(paths.LOCAL, text):
            directory, inside = paths.split_local(text)
            return self._made(CkptLocalFileSystem, directory), inside
        url = parse_url(self._store)
        if isinstance(url, LocalUrl):
            return self._made(CkptLocalFileSystem, url.directory), paths.clean(text)
        return self._made(CkptFileSystem, url.address), paths.clean(text)

    def _made(self, kind: type[CkptFileSystemBase], cluster: str) -> CkptFileSystemBase:
        with self._lock:
            key = (kind, cluster)
            if key not in self._filesystems:
                self._filesystems[key] = kind(cluster, skip_instance_cache=True)
            return self._filesystems[key]
