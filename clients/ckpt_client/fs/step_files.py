"""What both filesystems have: files of committed steps are looked at and read, new ones are written
and committed, steps are deleted.

Directories are what files have in common, as in an object store: an empty one does not exist.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from ckpt.aio.durable import is_there
from ckpt.base.errors import Busy, NotFound, Refused
from ckpt.base.ids import Generation, RunName, check_step
from ckpt.format.messages.asking import DeleteStep, StepDeleted
from ckpt.protocol.coordinator.reading.answers import FilesView
from ckpt_client.exchange.whole_file import WholeFile
from ckpt_client.fs import paths
from ckpt_client.fs.files import STREAM_BUFFER_BYTES, RangeStream, ReadFile, WriteFile
from ckpt_client.fs.layers import TextOptions, above
from ckpt_client.fs.metadata_names import DATA_FILE, METADATA, METADATA_TMP, RANK_METADATA
from ckpt_client.fs.paths import Spot, spot_of, step_of
from ckpt_client.fs.putting import PuttingFileSystem
from ckpt_client.fs.spool import Spool
from ckpt_client.fs.steps import HeldStep
from ckpt_client.fs.together import are_many, check_alone, check_opened, move, one_commit
from ckpt_client.fs.transaction import StepTransaction

DELETE_TIMEOUT_S: Final = 120.0
Paths = str | list[str]
Info = dict[str, str | int | float]
"""As fsspec has it: name, size, type, and of files `generation`, `created`."""


class CkptFileSystemBase(PuttingFileSystem):
    """What both filesystems have. Files are immutable; what a step holds changes by whole commits.

    Raises FileNotFoundError, FileExistsError and IsADirectoryError as files do, and CkptErrors:
    Refused for what cannot be (its hint says what can), Unavailable, NoSpace, Lost.
    """

    transaction_type = StepTransaction

    # ----------------------------------------------------------------------- looking

    def info(self, path: str, **_: object) -> Info:
        path = self._strip_protocol(path)
        found = self._file_info(path)
        if found is not None:
            return found
        if path == "" or self._is_directory(path):
            return _directory(path)
        raise FileNotFoundError(path)

    def exists(self, path: str, **_: object) -> bool:
        """Whether a committed file or folder has that path. Raises when the cluster cannot be
        reached: that does not count as missing.
        """
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Info] | list[str]:
        path = self._strip_protocol(path)
        entries = {str(info["name"]): info for info in self._entries(path)}
        if not entries:
            found = self._file_info(path)
            if found is not None:
                entries = {path: found}
            elif path:
                raise FileNotFoundError(path)
        return [entries[name] for name in sorted(entries)] if detail else sorted(entries)

    def created(self, path: str) -> datetime:
        """When it was committed, by the coordinator's wall clock."""
        return datetime.fromtimestamp(float(self.info(path)["created"]), tz=UTC)

    modified = created

    def _file_info(self, path: str) -> Info | None:
        if not path:
            return None
        try:
            spot = spot_of(path)
        except Refused:
            return None
        view = self.live.steps.newest(spot.run, spot.step)
        if view is None:
            return None
        size = self.live.steps.files(view).get(spot.name)
        return None if size is None else _file(path, size, view)

    def _is_directory(self, path: str) -> bool:
        return any(True for _ in self._entries(path))

    def _entries(self, path: str) -> Iterable[Info]:
        """What lies directly in a directory."""
        steps = self.live.steps
        prefix = f"{path}/" if path else ""
        found = step_of(path)
        run = paths.run_of(path)
        for view in steps.below(run):
            if found is not None and (view.run, view.step) != (run, found[1]):
                continue
            names = self._paths_of(view)
            for name, size in names.items():
                if name.startswith(prefix):
                    child, slash, _ = name[len(prefix) :].partition("/")
                    yield _directory(prefix + child) if slash else _file(name, size, view)

    def _paths_of(self, view: FilesView) -> Mapping[str, int]:
        """All files of a generation, by their whole path."""
        files = self.live.steps.files(view)
        # The one file of a loose checkpoint is named as the last part of its own path.
        return {
            view.run if "/" not in name else f"{view.run}/{name}": size
            for name, size in files.items()
        }

    # ----------------------------------------------------------------------- reading

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, object] | None = None,
        compression: str | None = None,
        **options: object,
    ) -> io.IOBase:
        """As fsspec's. What stands above a file that is written ends it with itself (layers.py)."""
        if "r" in mode or ("b" in mode and compression is None):
            found = super().open(path, mode, block_size, cache_options, compression, **options)
        else:
            text = TextOptions.taken_from(options)
            binary = mode.replace("t", "").replace("b", "") + "b"
            file = super().open(path, binary, block_size, cache_options, **options)
            found = above(file, mode, compression, text)
        assert isinstance(found, io.IOBase)
        return found

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, object] | None = None,
        cache_type: str | None = None,
        **_: object,
    ) -> ReadFile | WriteFile:
        match mode:
            case "rb":
                hold, name, size = self._hold(path)
                return ReadFile(
                    self, path, hold, name, size,
                    block_size=block_size, cache_type=cache_type, cache_options=cache_options,
                )  # fmt: skip
            case "wb" | "xb":
                if mode == "xb" and self.exists(path):
                    raise FileExistsError(path)
                return self._create(path, autocommit)
            case _:
                raise Refused(
                    f"{path}: mode {mode!r}; files are read (rb) or written whole (wb, xb)"
                )

    def _hold(self, path: str) -> tuple[HeldStep, str, int]:
        """The step of a file, resolved; its name there, and its length."""
        try:
            spot = spot_of(path)
        except Refused:
            if self._is_directory(path):
                raise IsADirectoryError(path) from None
            raise FileNotFoundError(path) from None
        steps = self.live.steps
        view = steps.newest(spot.run, spot.step)
        if view is not None:
            # Data files come from the generation whose metadata was read, never from a newer one.
            same = None if DATA_FILE.match(spot.base) else Generation.parse(view.generation)
            try:
                hold = steps.hold(spot.run, spot.step, same)
            except NotFound:
                raise FileNotFoundError(path) from None
            if spot.name in hold.names:
                return hold, spot.name, hold.names[spot.name]
            hold.close()
        if self._is_directory(path):
            raise IsADirectoryError(path)
        raise FileNotFoundError(f"{path}: no committed checkpoint holds it; see `ckpt ls`")

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: object
    ) -> bytes:
        """One ranged read, without a cache."""
        path = self._strip_protocol(path)
        hold, name, size = self._hold(path)
        try:
            first, last = slice(start, end).indices(size)[:2]
            return hold.read(name, first, max(first, last))
        finally:
            hold.close()

    def open_stream(self, path: str) -> io.BufferedReader:
        """Open a file for reading from beginning to end, or in large ranges: nothing is cached, and
        large reads go straight into the caller's memory.
        """
        stream = RangeStream(*self._hold(self._strip_protocol(path)))
        return io.BufferedReader(stream, buffer_size=STREAM_BUFFER_BYTES)

    def get_file(
        self, rpath: str, lpath: object = None, callback: Callback = DEFAULT_CALLBACK,
        outfile: object = None, **options: object,
    ) -> None:  # fmt: skip
        """As fsspec's; but a local file is there whole, or is as it was."""
        with ExitStack() as stack:
            whole: WholeFile | None = None
            if outfile is None and isinstance(lpath, str | os.PathLike) and not self.isdir(rpath):
                local = Path(lpath)
                # Of processes that get one file to one place at once, the first does it so.
                with suppress(Busy):
                    if local.is_file() or not is_there(local):
                        whole = stack.enter_context(WholeFile(local))
            if whole is None:
                super().get_file(rpath, lpath, callback=callback, outfile=outfile, **options)
                return
            # A file that it did not open itself fsspec closes, or not, from version to version.
            file = stack.enter_context(self.open(rpath, "rb", **options))  # type: ignore[arg-type]
            callback.set_size(getattr(file, "size", None))
            while data := file.read(self.blocksize):
                whole.write(data)
                callback.relative_update(len(data))
            whole.complete()

    # ----------------------------------------------------------------------- writing

    def stage(self, path: str) -> WriteFile:
        """Open a new file of a step. It is on its targets once it is closed, and waits for whoever
        commits the step (sealing.SealedFolder).
        """
        return self._create(self._strip_protocol(path), autocommit=False)

    def _create(self, path: str, autocommit: bool) -> WriteFile:
        spot = self._checked_spot(path)
        writing = self.live.writing

        def deliver(file: WriteFile, spool: Spool) -> None:
            if writing.get(path) is file:
                del writing[path]
            self._deliver(path, spot, spool, autocommit)

        file = writing[path] = WriteFile(path, deliver)
        if autocommit and not spot.loose and not _waits_for_metadata(spot):
            check_opened(self, file, spot)
        return file

    def _checked_spot(self, path: str) -> Spot:
        """Where a new file goes. Raises what its close would raise, before a byte is written."""
        if step_of(path) is None and self._is_directory(path):
            raise IsADirectoryError(path)
        spot = spot_of(path)
        if spot.loose:
            return spot
        if RANK_METADATA.match(spot.base):
            raise Refused(
                f"{path}: one metadata file for each rank cannot close a step",
                hint="save with use_collectives=True, or with ckpt_torch.CkptWriter",
            )
        return spot

    def _deliver(self, path: str, spot: Spot, spool: Spool, autocommit: bool) -> None:
        publisher = self.live.publisher
        if not spot.loose and spot.base == METADATA_TMP and autocommit:
            publisher.park(path, spool)
        elif not autocommit or _waits_for_metadata(spot):
            publisher.stage(path, spot, spool)
        else:
            publisher.publish_alone(spot, spool, lambda: check_alone(self, path, spot))

    def cp_file(self, path1: str, path2: str, **_: object) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            return  # Directories are what their files make them.
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while block := source.read(STREAM_BUFFER_BYTES):
                target.write(block)

    def copy(self, path1: Paths, path2: Paths, recursive: bool = False, **options: object) -> None:
        """As fsspec's; files of a step are one commit (together.py)."""
        with one_commit(self, are_many(path1, recursive)):
            super().copy(path1, path2, recursive=recursive, **options)

    def pipe(self, path: str | dict[str, bytes], *value: bytes, **options: object) -> None:
        """As `copy`, of bytes."""
        with one_commit(self, isinstance(path, dict)):
            super().pipe(path, *value, **options)

    def mv(
        self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None,
        **_: object,
    ) -> None:  # fmt: skip
        """Copy, then delete; of `.metadata.tmp` to `.metadata`: the commit of a step's files."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if maxdepth is not None:
            raise Refused("mv takes no maxdepth here: what lies deeper would be deleted uncopied")
        if self.live.publisher.has_parked(source):
            if target != source.removesuffix(METADATA_TMP) + METADATA:
                raise Refused(f"{source} can only become {METADATA} of the same step")
            self.live.publisher.commit_metadata(source, spot_of(source))
        elif self.live.publisher.waiting_below(source):
            raise Refused(
                f"{source} is not committed yet: it cannot be renamed",
                hint="write it under its name",
            )
        else:
            move(self, path1, path2, recursive)

    rename = mv

    def mkdir(self, path: str, create_parents: bool = True, **_: object) -> None:
        """Directories need no making."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Directories need no making."""

    # ----------------------------------------------------------------------- deleting

    def rm(
        self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        """Files by their literal names; with `recursive`, everything below. A committed step goes
        as a whole.
        """
        if maxdepth is not None:
            raise Refused("rm takes no maxdepth here: a step goes as a whole")
        for one in path if isinstance(path, list) else [path]:
            text = self._strip_protocol(one)
            if self._file_info(text) is None and recursive:
                self._rm_below(text)
            else:
                self.rm_file(text)

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        live = self.live
        writing = live.writing.pop(path, None)
        if writing is not None:
            writing.discard()
            return
        if live.publisher.discard(path):
            return
        found = self._file_info(path)
        if found is None:
            raise FileNotFoundError(path)
        spot = spot_of(path)
        if spot.loose:
            self._delete(spot.run, spot.step)
        else:
            self._check_replaced(path, spot)

    _rm = rm_file

    def rmdir(self, path: str) -> None:
        """Empty directories do not exist."""
        path = self._strip_protocol(path)
        if self._is_directory(path):
            raise OSError(f"{path} is not empty")
        raise FileNotFoundError(path)

    def _rm_below(self, path: str) -> None:
        live = self.live
        found = step_of(path)
        part = found is not None and found[0] < path.count("/")
        doomed = {
            (view.run, view.step)
            for view in live.steps.below(paths.run_of(path))
            if any(name.startswith(f"{path}/") for name in self._paths_of(view))
        }
        waiting = live.publisher.waiting_below(path)
        if not doomed and not waiting:
            raise FileNotFoundError(path)
        if part and doomed:
            self._check_replaced(path, spot_of(path))
        for one in waiting:
            live.publisher.discard(one)
        for run, step in sorted(() if part else doomed):
            self._delete(RunName(run), step)

    def _check_replaced(self, path: str, spot: Spot) -> None:
        """Raises Refused for a part of a step that no commit of this process will replace."""
        if not self.live.publisher.writes_to(spot.run, spot.step):
            raise Refused(
                f"{path} is part of a committed checkpoint, which goes as a whole",
                hint=f"rm({spot.folder!r}, recursive=True)",
            )

    def _delete(self, run: RunName, step: int) -> None:
        question = DeleteStep(run, check_step(step))
        try:
            self.live.connection.control.call(question, StepDeleted, timeout_s=DELETE_TIMEOUT_S)
        except NotFound:
            raise FileNotFoundError(f"{run}@{step}") from None
        finally:
            self.live.steps.forget(run, question.step)


def _waits_for_metadata(spot: Spot) -> bool:
    return not spot.loose and (spot.base == METADATA_TMP or DATA_FILE.match(spot.base) is not None)


def _directory(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory"}


def _file(path: str, size: int, view: FilesView) -> Info:
    return {
        "name": path,
        "size": size,
        "type": "file",
        "generation": view.generation,
        "created": view.committed_at_s,
    }
