"""A trainer's command line, and what it says on its standard output."""

from __future__ import annotations

from typing import Final

import msgspec

RUN_NAME: Final = "demo"


class TrainerPlan(msgspec.Struct, frozen=True):
    """One rank's part in the run."""

    rank: int
    world_size: int
    peers: dict[int, int]
    """Rank -> descriptor of the socket to it."""
    seed: int
    steps: int
    save_every: int
    width: int
    url: str
    """Empty: nothing is saved and nothing is loaded."""
    launch: str
    hold_from: int
    """Before each save from this step on, the rank says so and waits for a line; 0: never."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Connected, parameters ready; `step` is the last one that is done."""

    step: int


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """A checkpoint was loaded."""

    step: int
    bytes: int
    """Read from targets, parity included."""
    rebuilt_bytes: int
    seconds: float
    source: str
    redundancy: str


class StepDone(msgspec.Struct, frozen=True, tag="step"):
    """One training step of this rank; the loss is the mean over all ranks."""

    step: int
    loss: float


class SaveHeld(msgspec.Struct, frozen=True, tag="held"):
    """The next thing is the save of this step, once there is a line on standard input."""

    step: int


class SaveReturned(msgspec.Struct, frozen=True, tag="saved"):
    """`save` has returned: so long did the training stand still."""

    step: int
    bytes: int
    stall_s: float
    fault_in_s: float


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The run's end on this rank. Floats are `float.hex`: equal text means equal bits."""

    parameters: str
    """Digest of all parameters."""
    moments: str
    """Digest of this rank's part of the optimizer state."""
    losses: list[str]
    """The final history, from step 1: the mean over all ranks."""
    own_losses: list[str]
    """The same of this rank's part of each batch."""


Word = Started | Resumed | StepDone | SaveHeld | SaveReturned | Finished
_encoder = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Word]] = msgspec.json.Decoder(Word)


def encode_word(word: Word) -> bytes:
    """One line, with its end."""
    return _encoder.encode(word) + b"\n"


def decode_word(line: bytes) -> Word:
    """Raises msgspec.MsgspecError."""
    return _decoder.decode(line)
