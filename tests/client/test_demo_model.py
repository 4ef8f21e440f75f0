"""The demo's model learns by right gradients; sharded Adam does exactly what one Adam would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from ckpt_client.demo.adam import AdamRates, Moments, take_step
from ckpt_client.demo.corpus import CORPUS_BYTES_MIN, VOCABULARY_SIZE, draw_batch, read_corpus
from ckpt_client.demo.mesh import Mesh, PeerGone, socket_mesh
from ckpt_client.demo.model import ModelShape, initialize, loss_and_gradient, name_views

RANKS = 4
TINY = ModelShape(width=8, heads=2, blocks=2, context=6, vocabulary=11)
Answer = TypeVar("Answer")


@pytest.fixture
def meshes() -> Iterator[list[Mesh]]:
    made = [Mesh(rank, sockets) for rank, sockets in enumerate(socket_mesh(RANKS))]
    yield made
    for mesh in made:
        mesh.close()


def on_all(meshes: list[Mesh], act: Callable[[Mesh], Answer]) -> list[Answer]:
    with ThreadPoolExecutor(len(meshes)) as pool:
        return list(pool.map(act, meshes))


def vectors(length: int, seed: int = 0) -> list[NDArray[np.float32]]:
    """One for each rank, of magnitudes that make float sums depend on their order."""
    random = np.random.default_rng(seed)
    scale = 10.0 ** random.integers(-6, 6, (RANKS, length))
    return list((random.standard_normal((RANKS, length)) * scale).astype(np.float32))


def test_gradients_are_those_of_finite_differences() -> None:
    random = np.random.default_rng(0)
    flat = random.standard_normal(TINY.parameter_count) * 0.3
    gradient, other = np.zeros_like(flat), np.zeros_like(flat)
    parameters = name_views(TINY, flat)
    inputs, targets = random.integers(0, 11, (3, 6)), random.integers(0, 11, (3, 6))
    loss_and_gradient(TINY, parameters, name_views(TINY, gradient), inputs, targets)

    scratch, slopes = name_views(TINY, other), np.zeros_like(flat)
    for index, value in enumerate(flat):
        losses = []
        for shift in (1e-5, -1e-5):
            flat[index] = value + shift
            losses.append(loss_and_gradient(TINY, parameters, scratch, inputs, targets))
        flat[index] = value
        slopes[index] = (losses[0] - losses[1]) / 2e-5

    assert np.abs(gradient).max() > 0.01
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-8)


def test_every_parameter_gets_a_gradient_and_old_ones_are_overwritten() -> None:
    random = np.random.default_rng(1)
    flat = random.standard_normal(TINY.parameter_count).astype(np.float32)
    first, second = np.zeros_like(flat), np.full_like(flat, 7)
    batch = np.tile(np.arange(6), (2, 1)), np.tile(np.arange(1, 7), (2, 1))
    for gradient in (first, second):
        loss_and_gradient(TINY, name_views(TINY, flat), name_views(TINY, gradient), *batch)
    np.testing.assert_array_equal(first, second)
    for name, view in name_views(TINY, first).items():
        assert np.any(view != 0), name


def test_it_learns_the_text() -> None:
    shape = ModelShape(width=32, heads=2, blocks=1, context=16)
    flat = np.zeros(shape.parameter_count, np.float32)
    gradient = np.zeros_like(flat)
    parameters, gradients = name_views(shape, flat), name_views(shape, gradient)
    random = np.random.default_rng(2)
    initialize(shape, parameters, random)
    moments = Moments(np.zeros_like(flat), np.zeros_like(flat))
    losses = []
    for step in range(1, 61):
        inputs, targets = draw_batch(read_corpus(), random, 8, shape.context)
        losses.append(loss_and_gradient(shape, parameters, gradients, inputs, targets))
        take_step(AdamRates(), flat, gradient, moments, step)
    assert losses[0] == pytest.approx(np.log(VOCABULARY_SIZE), abs=0.1)
    assert np.mean(losses[-5:]) < 3.9


def test_targets_are_the_inputs_one_byte_later() -> None:
    corpus = read_corpus()
    assert len(corpus) >= CORPUS_BYTES_MIN
    inputs, targets = draw_batch(corpus, np.random.default_rng(3), 5, 12)
    assert inputs.shape == targets.shape == (5, 12)
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    assert bytes(inputs[0].astype(np.uint8)) in corpus.tobytes()


def test_gradients_are_summed_in_rank_order_whatever_arrives_first(meshes: list[Mesh]) -> None:
    length = RANKS * 100_000  # More than a socket holds: sends and receives interleave.
    each = vectors(length)
    expected = each[0].copy()
    for vector in each[1:]:
        expected += vector
    assert not np.array_equal(expected, np.sum(np.stack(each[::-1]), axis=0)), "order must matter"
    for _ in range(3):
        slices = on_all(meshes, lambda mesh: mesh.scatter_sum(each[mesh.rank]))
        np.testing.assert_array_equal(np.concatenate(slices), expected)


def test_every_rank_gathers_the_same_vector(meshes: list[Mesh]) -> None:
    each = vectors(RANKS * 1000)
    expected = np.concatenate(
        [vector[meshes[0].slice_of(len(vector), rank)] for rank, vector in enumerate(each)]
    )
    on_all(meshes, lambda mesh: mesh.gather(each[mesh.rank]))
    for vector in each:
        np.testing.assert_array_equal(vector, expected)


def test_the_mean_loss_has_the_same_bits_on_all_ranks(meshes: list[Mesh]) -> None:
    values = [0.1, 0.2, 0.3, 1e9]
    means = on_all(meshes, lambda mesh: mesh.mean(values[mesh.rank]))
    assert means == [(((0.1 + 0.2) + 0.3) + 1e9) / 4] * RANKS


def test_a_rank_that_ends_is_noticed_by_the_others(meshes: list[Mesh]) -> None:
    meshes[2].close()
    for mesh in (meshes[0], meshes[1], meshes[3]):
        with pytest.raises(PeerGone, match="rank 2"):
            mesh.scatter_sum(np.zeros(RANKS * 10, np.float32))


def test_adam_in_quarters_is_adam_in_one_piece_bit_for_bit(meshes: list[Mesh]) -> None:
    length = RANKS * 2503  # No multiple of any vector register.
    random = np.random.default_rng(4)
    start = random.standard_normal(length).astype(np.float32)
    gradients = random.standard_normal((5, length)).astype(np.float32)

    whole = start.copy()
    whole_moments = Moments(np.zeros(length, np.float32), np.zeros(length, np.float32))
    for step, gradient in enumerate(gradients, start=1):
        take_step(AdamRates(), whole, gradient, whole_moments, step)

    def train(mesh: Mesh) -> tuple[NDArray[np.float32], Moments]:
        mine = mesh.slice_of(length, mesh.rank)
        flat, part = start.copy(), length // RANKS
        moments = Moments(np.zeros(part, np.float32), np.zeros(part, np.float32))
        for step, gradient in enumerate(gradients, start=1):
            take_step(AdamRates(), flat[mine], gradient[mine], moments, step)
            mesh.gather(flat)
        return flat, moments

    parts = on_all(meshes, train)
    for flat, _ in parts:
        np.testing.assert_array_equal(flat, whole)
    means = np.concatenate([moments.mean for _, moments in parts])
    squares = np.concatenate([moments.square for _, moments in parts])
    np.testing.assert_array_equal(means, whole_moments.mean)
    np.testing.assert_array_equal(squares, whole_moments.square)
