"""A checkpoint of a cluster by its URL, as frameworks and fsspec name it, in place of RUN@STEP.

    ckpt+local:///DIR/RUN/STEP    ckpt://HOST:PORT/RUN/STEP    either also with RUN@STEP

It says what `--store` and RUN@STEP say. The URL of an object store is its command's own.
"""

from __future__ import annotations

import argparse
from typing import Final
from urllib.parse import quote

from ckpt.base.errors import Refused

_NAMES: Final = ("checkpoint", "run_name", "tensor", "before", "after", "what")
"""Arguments that take a run, a checkpoint or what is in one."""
_HEADS: Final = ("ckpt:", "ckpt+local:")


def name_store(arguments: argparse.Namespace) -> None:
    """Put RUN@STEP in the place of such URLs, and their store into `store`. Raises Refused for two
    stores, and for a URL that names no run; `ls` takes one of a store alone.
    """
    for name in _NAMES:
        text = getattr(arguments, name, None)
        if not isinstance(text, str) or not text.startswith(_HEADS):
            continue
        from ckpt_client.url import parse_url  # It loads sockets, which help does without.

        store, inside = _split(text)
        if arguments.store is not None and str(parse_url(arguments.store)) != store:
            raise Refused(f"{text} and {arguments.store} both name a store")
        if not inside and arguments.verb != "ls":
            raise Refused(f"{text} names no run", hint=f"{text.rstrip('/')}/RUN/STEP")
        arguments.store = store
        setattr(arguments, name, inside or None)


def _split(text: str) -> tuple[str, str]:
    """The store's URL; RUN, RUN@STEP or RUN@STEP/NAME."""
    from ckpt_client.fs import paths

    if paths.is_url(paths.LOCAL, text):
        directory, path = paths.split_local(text)
        store = f"ckpt+local://{quote(directory)}"
    else:
        address, path = paths.split_remote(text)
        store = f"ckpt://{address}"
    found = None if "@" in path else paths.step_of(path)
    if found is None:
        return store, path
    position, step = found
    segments = path.split("/")
    return store, "/".join([f"{'/'.join(segments[:position])}@{step}", *segments[position + 1 :]])
