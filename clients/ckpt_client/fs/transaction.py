"""`with fs.transaction:`: what is written in the block becomes visible at its end, or never."""

from __future__ import annotations

from fsspec.transaction import Transaction

from ckpt_client.fs.base import LiveFileSystem
from ckpt_client.fs.files import WriteFile


class StepTransaction(Transaction):  # type: ignore[misc]  # fsspec ships no types.
    """All files of a step that were written in it are committed at once, in one commit."""

    fs: LiveFileSystem

    def complete(self, commit: bool = True) -> None:
        """End: commit, or take everything back."""
        files: list[WriteFile] = list(self.files)
        self.files.clear()
        fs = self.fs
        try:
            for file in files:
                file.commit() if commit else file.discard()
            if commit:
                _check_delivered(files)
                fs.live.publisher.commit_paths(file.path for file in files)
        finally:
            for file in files:
                fs.live.publisher.discard(file.path)  # Those that no commit has taken.
            fs._intrans = False
            fs._transaction = None
            self.fs = None  # type: ignore[assignment]  # As fsspec's own does.


def _check_delivered(files: list[WriteFile]) -> None:
    """Raises what kept a file from its targets, unless it was written again."""
    for file in {file.path: file for file in files}.values():
        if file.failure is not None:
            raise file.failure
