"""What an owner could read off products in the ring without each protection, and cannot.

The owner knows its secret key and the noise of its inputs, which it may choose.
"""

from math import log2, prod

import numpy as np
import pytest

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ring
from securevfl.crypto.bfv_core import reply_bytes, unpack_reply
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.inspection import Phases, owner_secret, with_noise
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from tests.ciphertexts import is_uniform
from tests.unit.crypto.test_randomness import drawing_from
from tests.weakened import RingMasksModuloT

INNER, OUTPUTS = 24, 6
FORMAT = RingProductFormat(INNER, OUTPUTS, 1, 1 << 12, products=50)
LAYOUT = RingLayout.of(FORMAT)


@pytest.fixture(scope="module")
def owner() -> RingProductOwner:
    return RingProductOwner(FORMAT)


@pytest.fixture(scope="module")
def phases(owner: RingProductOwner) -> Phases:
    return Phases(LAYOUT.sizes, owner_secret(owner))


@pytest.fixture(scope="module")
def matrix() -> IntArray:
    return np.random.default_rng(3).integers(-4096, 4096, (OUTPUTS, INNER), endpoint=True)


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("kind", [RingMasksModuloT, RingProductEvaluator])
def test_noise_of_replies_tells_no_matrix_even_if_its_owner_chose_it(
    owner: RingProductOwner,
    phases: Phases,
    matrix: IntArray,
    kind: type[RingProductEvaluator],
    chosen: bool,
) -> None:
    """The owner knows e and solves noise = M·e + rest for M over 8 queries, least squares.

    With masks modulo t the correlation with M is over 0.99. With those modulo q' it is that of 144
    independent numbers: beyond 0.42 once in a million.
    """
    evaluator = kind(owner.public_bytes, FORMAT)
    positions = LAYOUT.positions()
    row, entry = np.divmod(np.arange(matrix.size), INNER)
    shifts = positions[:, None] - (row * LAYOUT.chunk + LAYOUT.chunk - 1 - entry)[None, :]
    equations, observed = [], []
    for _ in range(8):
        encrypted = owner.encrypt(ring.uniform(INNER, 1))
        if chosen:
            encrypted = with_noise(LAYOUT.sizes, encrypted, 0, 1 << 30)
        (own,) = phases.inputs(encrypted)
        known = phases.noise(own)
        assert chosen or np.abs(known).max() <= 21.5  # uniform values add 1/2 to SEAL's 21
        equations.append(np.where(shifts < 0, -1, 1) * known[shifts % DEGREE])
        reply, _ = evaluator.product(encrypted, matrix)
        seen = phases.noise_of(unpack_reply(LAYOUT.sizes, reply, positions))
        observed.append(seen[positions])
    solved = np.linalg.lstsq(np.vstack(equations), np.concatenate(observed), rcond=None)[0]
    correlation = float(np.corrcoef(solved, matrix.reshape(-1))[0, 1])
    assert correlation > 0.99 if kind is RingMasksModuloT else abs(correlation) < 0.42


def revealed(owner: RingProductOwner, reply: bytes) -> RingArray:
    """Decrypted coefficients at all positions that are sent."""
    positions = LAYOUT.positions()
    assert len(reply) == reply_bytes(LAYOUT.sizes, len(positions))
    return owner._coefficients(unpack_reply(LAYOUT.sizes, reply, positions), positions)


@pytest.mark.parametrize("entry", [0, 1])
def test_every_revealed_coefficient_is_masked_uniformly_and_afresh(
    owner: RingProductOwner, entry: int
) -> None:
    """Of one input and one M, zeros included. Chi-square over 16 bins, false alarm 1e-6 each."""
    evaluator = RingProductEvaluator(owner.public_bytes, FORMAT)
    encrypted = owner.encrypt(ring.uniform(INNER, 1))
    matrix = np.full((OUTPUTS, INNER), entry)
    seen = np.stack([revealed(owner, evaluator.product(encrypted, matrix)[0]) for _ in range(25)])
    assert len(np.unique(seen)) == seen.size
    bins = (seen >> np.uint64(ring.RING_BITS - 4)).astype(np.int64)
    for group in (bins[:, :OUTPUTS], bins[:, OUTPUTS:]):  # of rows, and fillers
        assert is_uniform(group, 16)


def test_masks_are_the_operating_systems_words(owner: RingProductOwner) -> None:
    evaluator = RingProductEvaluator(owner.public_bytes, FORMAT)
    count, modulus = len(LAYOUT.positions()), prod(LAYOUT.sizes.primes())
    with drawing_from(3) as stream:
        evaluator._mask(count)
    assert 8 * stream.drawn >= count * log2(modulus)
