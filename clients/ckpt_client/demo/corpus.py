"""What does the demo's model read? The language reference that every interpreter brings along."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

VOCABULARY_SIZE = 256
"""Bytes."""
CORPUS_BYTES_MIN = 4096


def read_corpus() -> NDArray[np.uint8]:
    """The text as bytes, the same for every process of one interpreter.

    It is what `help("lists")` shows (pydoc's topics, some 450 KB); an interpreter without them
    reads its builtins' documentation instead.
    """
    chapters: Mapping[str, str]
    try:
        from pydoc_data import topics
    except ImportError:
        chapters = {name: str(each.__doc__) for name, each in vars(builtins).items()}
    else:
        chapters = topics.topics
    text = "\n\n".join(chapters[name] for name in sorted(chapters)).encode()
    assert len(text) >= CORPUS_BYTES_MIN
    return np.frombuffer(text, np.uint8)


def draw_batch(
    corpus: NDArray[np.uint8], random: np.random.Generator, sequences: int, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random windows of the text and the same windows one byte later, each [sequences, length]."""
    starts = random.integers(0, len(corpus) - length, sequences)
    windows = corpus[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return windows[:, :-1], windows[:, 1:]
