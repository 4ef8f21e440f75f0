"""A directory of torch's own DCP, written and read by torch itself, one tensor at a time.

Planning sees tensors without memory (the meta device); each is read from its source when it is
written, and let go after that. Needs torch, but never a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ml_dtypes
import numpy as np

from ckpt.aio.durable import is_there
from ckpt.base.errors import CkptError, Corrupt, NotFound, Refused
from ckpt.base.extras import needing
from ckpt.format.dtypes import dtype_name, dtype_of
from ckpt.objects.source import Array, Source, Wish
from ckpt_client.exchange.arrays import HeldArray
from ckpt_client.exchange.claims import FOLDER, FolderClaim
from ckpt_client.exchange.seen_file import SeenFile, check_all
from ckpt_client.exchange.tensors import NamedArray

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import WriteItem

METADATA: Final = ".metadata"
"""What torch writes last, and renames into its place."""


def write_dcp(source: Source, arrays: Sequence[NamedArray], folder: Path) -> int:
    """Write the directory; returns the bytes of its tensors.

    Raises NotInstalled without torch; Refused names the array whose type torch has not, or says
    that the directory is not empty; Busy while another export writes there. What an export that was
    killed left is no obstacle; one that fails leaves nothing.
    """
    with needing("--format dcp"):
        from torch.distributed import checkpoint as dcp
        from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
    before = _names(folder)
    if before and FOLDER not in before:
        raise _not_empty(folder)  # Before it is claimed: what is refused changes nothing.
    by_name = {array.name: array for array in arrays}
    empty = {array.name: _without_memory(array) for array in arrays}

    class Planner(DefaultSavePlanner):  # type: ignore[misc]  # torch is an extra
        """Gives each tensor its bytes when they are written."""

        def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
            return _filled(source, by_name[write_item.index.fqn])

    with warnings.catch_warnings(), FolderClaim(folder) as claim:
        warnings.filterwarnings("ignore", message=".*torch.distributed.*single process.*")
        if claim.is_marked:
            _clear(folder)
        if _names(folder) != {claim.path.name}:
            raise _not_empty(folder)
        claim.mark()
        try:
            writer = FileSystemWriter(folder, thread_count=1, single_file_per_rank=False)
            planner = Planner(flatten_state_dict=False)
            dcp.save(empty, storage_writer=writer, planner=planner, no_dist=True)
        except BaseException as error:
            _clear(folder)
            claim.settle()
            raise _cause(error) from None
        claim.settle()
    return sum(array.byte_count for array in arrays)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if is_there(folder) else set()


def _not_empty(folder: Path) -> Refused:
    return Refused(f"{folder} is not empty", hint="remove it, or name a new directory")


def _clear(folder: Path) -> None:
    """What an export wrote that did not end; a folder with metadata is whole."""
    if not is_there(folder / METADATA):
        for path in [*folder.glob("*.distcp"), folder / f"{METADATA}.tmp"]:
            path.unlink(missing_ok=True)


def _cause(error: BaseException) -> BaseException:
    """What torch says of the rank, this one, that raised: Ctrl-C and a full disk as well, of which
    its own writer then complains that its file ends early.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    if not isinstance(error, CheckpointException) or not error.failures:
        return error
    raised: BaseException = next(iter(error.failures.values()))[0]
    found: BaseException | None = raised
    while found is not None and not isinstance(found, CkptError | KeyboardInterrupt | OSError):
        found = found.__context__
    return found or raised


def read_dcp(folder: Path) -> Sequence[HeldArray]:
    """Every tensor of a directory that `dcp.save` wrote; other values are left out.

    torch unpickles the metadata, as its own `dcp.load` does: only for a folder that the user
    trusts. Raises NotFound, Corrupt, Refused, ChangedMeanwhile.
    """
    with needing("--format dcp"):
        import torch
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    if not is_there(folder / METADATA):
        raise NotFound(f"{folder} has no .metadata: it is no DCP directory")
    seen = SeenFile.see(folder / METADATA)
    try:
        metadata = FileSystemReader(folder).read_metadata()
        entries = metadata.state_dict_metadata
    except Exception as error:  # Whatever pickle raises for other bytes.
        seen.check()
        raise Corrupt(f"{folder / METADATA} cannot be read: {error!r:.200}") from None
    files = _files_of(metadata, folder)
    seen.check()
    reader = _reader_with(metadata, folder)
    found = []
    for name, entry in sorted(entries.items()):
        if isinstance(entry, TensorStorageMetadata):
            dtype = entry.properties.dtype
            ours = _our_dtype(folder, name, dtype)
            shape = tuple(int(n) for n in entry.size)
            load = partial(
                _tensor, reader, name, torch.Size(shape), dtype, ours, files.get(name, ())
            )
            found.append(HeldArray(name, ours, shape, load))
    if not found:
        raise NotFound(f"{folder} has no tensors")
    return found


def _files_of(metadata: Metadata, folder: Path) -> Mapping[str, Sequence[SeenFile]]:
    """What holds each tensor, as it is now. Raises NotFound."""
    seen: dict[str, SeenFile] = {}
    found: dict[str, dict[str, SeenFile]] = {}
    for index, place in metadata.storage_data.items():
        file = str(place.relative_path)
        if file not in seen:
            seen[file] = SeenFile.see(folder / file)
        found.setdefault(index.fqn, {})[file] = seen[file]
    return {name: tuple(files.values()) for name, files in found.items()}


def _reader_with(metadata: Metadata, folder: Path) -> FileSystemReader:
    """One that has its metadata: it is unpickled once, not again for each tensor."""
    from torch.distributed.checkpoint import FileSystemReader

    class KnowingReader(FileSystemReader):
        def read_metadata(self, *_args: object, **_kwargs: object) -> Metadata:
            return metadata

    return KnowingReader(folder)


def _tensor(
    reader: FileSystemReader, name: str, shape: torch.Size, dtype: torch.dtype, ours: str,
    files: Sequence[SeenFile],
) -> Array:  # fmt: skip
    import torch
    from torch.distributed import checkpoint as dcp

    tensor = torch.empty(shape, dtype=dtype)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.distributed.*single process.*")
            planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
            dcp.load({name: tensor}, storage_reader=reader, planner=planner, no_dist=True)
    except (Exception, dcp.api.CheckpointException) as error:  # The latter is no Exception.
        cause = _cause(error)
        if not isinstance(cause, Exception):
            raise cause from None
        check_all(files)
        raise Corrupt(f"{reader.path}: {name}: {cause!r:.200}") from None
    check_all(files)
    if not tensor.numel():
        return np.empty(tuple(shape), dtype_of(ours))
    raw: Array = tensor.reshape(-1).view(torch.uint8).numpy()
    return raw.view(dtype_of(ours)).reshape(tuple(shape))


def _our_dtype(folder: Path, name: str, dtype: torch.dtype) -> str:
    word = str(dtype).removeprefix("torch.")
    try:
        return dtype_name(np.dtype(getattr(ml_dtypes, word, word)))
    except (TypeError, CkptError):
        raise Refused(f"{folder}: {name}: there is no {word} here") from None


def _without_memory(array: NamedArray) -> torch.Tensor:
    import torch

    return torch.empty(array.shape, dtype=_torch_dtype(array), device="meta")


def _filled(source: Source, array: NamedArray) -> torch.Tensor:
    import torch

    memory = np.empty(array.shape, array.dtype)
    source.read([Wish(array.tensor, array.rank, (0,) * memory.ndim, memory)])
    if not memory.size:
        return torch.empty(array.shape, dtype=_torch_dtype(array))
    raw = torch.from_numpy(memory.reshape(-1).view(np.uint8))
    return raw.view(_torch_dtype(array)).reshape(array.shape)


def _torch_dtype(array: NamedArray) -> torch.dtype:
    import torch

    name = array.dtype.name if array.dtype.isnative else ""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Refused(
            f"{array.name}: torch has no {array.tensor.dtype}",
            hint="export a part without it by --prefix",
        )
    return found
