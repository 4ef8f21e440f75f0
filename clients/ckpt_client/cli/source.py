"""Whose bytes does a command read? The cluster's, or an object store's, by its URL."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from ckpt.objects.source import Source
from ckpt_client.cli.cluster import conversation, parse_which
from ckpt_client.cli.output import Output
from ckpt_client.locate import client_name


@contextmanager
def opened_source(
    arguments: argparse.Namespace, output: Output, checkpoint: str
) -> Iterator[Source]:
    """RUN@STEP, RUN@NAME, or RUN for its newest, in the cluster that the arguments name; or
    RUN[@STEP] in an object store, by its URL. Raises Refused, NotFound, Unavailable, Lost.
    """
    if "://" in checkpoint:
        from ckpt_client.load.from_store import open_url

        stored = open_url(checkpoint)
        try:
            yield stored
        finally:
            stored.close()
        return
    from ckpt.objects.tier_source import TierSource

    wanted = parse_which(checkpoint)
    with conversation(arguments, output) as talk:
        run_name, step, only = talk.which(*wanted)
        secret, address = talk.control.secret, talk.control.locator.address()
        source = TierSource.open(
            address, run_name, step,
            secret=secret, name=client_name(), timeout_s=talk.timeout_s, only=only,
        )  # fmt: skip
        try:
            yield source
        finally:
            source.close()
