"""The demo's language model: a byte-level transformer in numpy, with its gradients written out.

All parameters lie in one flat vector, so that a rank's share of the optimizer state is a slice of
it. Every operation has a fixed order and shape, so the same batch gives the same bits in every run.

    x = tokens[input] + positions
    for each block:  x += attention(norm(x)) ;  x += expand(norm(x)) -> gelu -> contract
    logits = norm(x) @ head
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ckpt_client.demo.corpus import VOCABULARY_SIZE

Floats = NDArray[np.floating]
Integers = NDArray[np.int64]
Parameters = dict[str, Floats]
"""Name -> view into the flat vector."""

NORM_EPSILON: Final = 1e-5
GELU_SCALE: Final = sqrt(2.0 / np.pi)
GELU_CUBIC: Final = 0.044715
MASKED: Final = -1e9


@dataclass(frozen=True, slots=True)
class ModelShape:
    """How large the model is."""

    width: int = 256
    heads: int = 4
    blocks: int = 4
    context: int = 64
    """Bytes that it sees at once."""
    vocabulary: int = VOCABULARY_SIZE

    def __post_init__(self) -> None:
        assert self.width % self.heads == 0

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes, in the order in which they lie in the flat vector."""
        width = self.width
        shapes: dict[str, tuple[int, ...]] = {
            "tokens": (self.vocabulary, width),
            "positions": (self.context, width),
        }
        for block in range(self.blocks):
            shapes[f"block{block}.norm1"] = (2, width)
            shapes[f"block{block}.query_key_value"] = (width, 3 * width)
            shapes[f"block{block}.project"] = (width, width)
            shapes[f"block{block}.norm2"] = (2, width)
            shapes[f"block{block}.expand"] = (width, 4 * width)
            shapes[f"block{block}.contract"] = (4 * width, width)
        shapes["norm"] = (2, width)
        shapes["head"] = (width, self.vocabulary)
        return shapes

    @property
    def parameter_count(self) -> int:
        return sum(prod(shape) for shape in self.tensors().values())


def name_views(shape: ModelShape, flat: Floats) -> Parameters:
    """The flat vector's tensors by name; what lies after the last one is padding."""
    views: Parameters = {}
    start = 0
    for name, extents in shape.tensors().items():
        end = start + prod(extents)
        views[name] = flat[start:end].reshape(extents)
        start = end
    return views


def initialize(shape: ModelShape, parameters: Parameters, random: np.random.Generator) -> None:
    """Fill in the start values: norms are the identity, all else is small and normal."""
    for name, view in parameters.items():
        if "norm" in name:
            view[0], view[1] = 1.0, 0.0
            continue
        scale = 0.02 / sqrt(2 * shape.blocks) if name.endswith(("project", "contract")) else 0.02
        view[...] = (random.standard_normal(view.shape) * scale).astype(view.dtype)


def loss_and_gradient(
    shape: ModelShape,
    parameters: Parameters,
    gradients: Parameters,
    inputs: Integers,
    targets: Integers,
) -> float:
    """Mean cross entropy in nats per byte; every tensor of `gradients` is overwritten.

    inputs, targets: [batch, time].
    """
    batch, time = inputs.shape
    embedded = parameters["tokens"][inputs] + parameters["positions"][:time]
    stream: Floats = embedded.reshape(batch * time, shape.width)
    tapes = []
    for number in range(shape.blocks):
        stream, tape = _block(shape, parameters, f"block{number}.", stream, batch)
        tapes.append(tape)
    normed, norm_tape = _norm(stream, parameters["norm"])
    loss, slope = _cross_entropy(normed @ parameters["head"], targets.reshape(-1))

    np.matmul(normed.T, slope, out=gradients["head"])
    back = _norm_back(
        slope @ parameters["head"].T, norm_tape, parameters["norm"], gradients["norm"]
    )
    for number in reversed(range(shape.blocks)):
        back = _block_back(shape, parameters, gradients, f"block{number}.", back, tapes[number])
    gradients["tokens"][...] = 0.0
    np.add.at(gradients["tokens"], inputs.reshape(-1), back)
    gradients["positions"][...] = 0.0
    gradients["positions"][:time] = back.reshape(batch, time, -1).sum(axis=0)
    return loss


# --------------------------------------------------------------------------- a block


@dataclass(slots=True)
class _NormTape:
    normed: Floats
    inverse: Floats


@dataclass(slots=True)
class _BlockTape:
    """What the way back needs of the way there."""

    norm1: _NormTape
    input1: Floats
    query: Floats
    key: Floats
    value: Floats
    weights: Floats
    mixed: Floats
    norm2: _NormTape
    input2: Floats
    hidden: Floats
    bent: Floats
    active: Floats


def _block(
    shape: ModelShape, parameters: Parameters, prefix: str, stream: Floats, batch: int
) -> tuple[Floats, _BlockTape]:
    input1, norm1 = _norm(stream, parameters[f"{prefix}norm1"])
    fused = input1 @ parameters[f"{prefix}query_key_value"]
    query, key, value = (_split_heads(shape, part, batch) for part in np.split(fused, 3, axis=1))
    weights = _attend(query, key)
    mixed = _join_heads(weights @ value)
    stream = stream + mixed @ parameters[f"{prefix}project"]
    input2, norm2 = _norm(stream, parameters[f"{prefix}norm2"])
    hidden = input2 @ parameters[f"{prefix}expand"]
    bent = np.tanh(GELU_SCALE * (hidden + GELU_CUBIC * (hidden * hidden * hidden)))
    active = 0.5 * hidden * (1.0 + bent)
    stream = stream + active @ parameters[f"{prefix}contract"]
    return stream, _BlockTape(
        norm1, input1, query, key, value, weights, mixed, norm2, input2, hidden, bent, active
    )


def _block_back(
    shape: ModelShape,
    parameters: Parameters,
    gradients: Parameters,
    prefix: str,
    back: Floats,
    tape: _BlockTape,
) -> Floats:
    np.matmul(tape.active.T, back, out=gradients[f"{prefix}contract"])
    slope = back @ parameters[f"{prefix}contract"].T
    inner = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * (tape.hidden * tape.hidden))
    bend = 0.5 * tape.hidden * (1.0 - tape.bent * tape.bent) * inner
    slope *= 0.5 * (1.0 + tape.bent) + bend
    np.matmul(tape.input2.T, slope, out=gradients[f"{prefix}expand"])
    back = back + _norm_back(
        slope @ parameters[f"{prefix}expand"].T,
        tape.norm2,
        parameters[f"{prefix}norm2"],
        gradients[f"{prefix}norm2"],
    )

    np.matmul(tape.mixed.T, back, out=gradients[f"{prefix}project"])
    batch = tape.query.shape[0]
    mixed = _split_heads(shape, back @ parameters[f"{prefix}project"].T, batch)
    fused = np.concatenate([_join_heads(one) for one in _attend_back(tape, mixed)], axis=1)
    np.matmul(tape.input1.T, fused, out=gradients[f"{prefix}query_key_value"])
    return back + _norm_back(
        fused @ parameters[f"{prefix}query_key_value"].T,
        tape.norm1,
        parameters[f"{prefix}norm1"],
        gradients[f"{prefix}norm1"],
    )


# --------------------------------------------------------------------------- its parts


def _split_heads(shape: ModelShape, rows: Floats, batch: int) -> Floats:
    """[batch * time, width] -> [batch, heads, time, width / heads], contiguous."""
    parts = rows.reshape(batch, -1, shape.heads, shape.width // shape.heads)
    return np.ascontiguousarray(parts.transpose(0, 2, 1, 3))


def _join_heads(parts: Floats) -> Floats:
    """The way back."""
    batch, heads, time, depth = parts.shape
    return np.ascontiguousarray(parts.transpose(0, 2, 1, 3)).reshape(batch * time, heads * depth)


def _attend(query: Floats, key: Floats) -> Floats:
    """[batch, heads, time, time]: how much each byte looks at each earlier one; rows sum to 1."""
    time, depth = query.shape[-2:]
    scores = (query @ key.transpose(0, 1, 3, 2)) * (1.0 / sqrt(depth))
    scores += np.triu(np.full((time, time), MASKED, query.dtype), 1)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _attend_back(tape: _BlockTape, mixed: Floats) -> tuple[Floats, Floats, Floats]:
    weights = tape.weights
    slope = mixed @ tape.value.transpose(0, 1, 3, 2)
    slope -= (slope * weights).sum(axis=-1, keepdims=True)
    slope *= weights
    slope *= 1.0 / sqrt(tape.query.shape[-1])
    turned = np.ascontiguousarray(slope.transpose(0, 1, 3, 2))
    value = np.ascontiguousarray(weights.transpose(0, 1, 3, 2)) @ mixed
    return slope @ tape.key, turned @ tape.query, value


def _norm(stream: Floats, scale_shift: Floats) -> tuple[Floats, _NormTape]:
    centered = stream - stream.mean(axis=1, keepdims=True)
    variance = (centered * centered).mean(axis=1, keepdims=True)
    inverse = 1.0 / np.sqrt(variance + NORM_EPSILON)
    normed = centered * inverse
    return normed * scale_shift[0] + scale_shift[1], _NormTape(normed, inverse)


def _norm_back(back: Floats, tape: _NormTape, scale_shift: Floats, gradient: Floats) -> Floats:
    gradient[0] = (back * tape.normed).sum(axis=0)
    gradient[1] = back.sum(axis=0)
    slope = back * scale_shift[0]
    along = (slope * tape.normed).mean(axis=1, keepdims=True)
    result: Floats = slope - slope.mean(axis=1, keepdims=True) - tape.normed * along
    result *= tape.inverse
    return result


def _cross_entropy(logits: Floats, targets: Integers) -> tuple[float, Floats]:
    """The mean loss, and its slope by the logits (which are overwritten)."""
    count = len(targets)
    rows = np.arange(count)
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[rows, targets]
    np.exp(logits, out=logits)
    sums = logits.sum(axis=1)
    loss = float((np.log(sums) - chosen).mean())
    logits /= sums[:, None]
    logits[rows, targets] -= 1.0
    logits *= 1.0 / count
    return loss, logits
