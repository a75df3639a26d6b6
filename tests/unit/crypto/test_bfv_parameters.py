from dataclasses import replace
from math import log2, prod, sqrt

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.crypto.bfv import BfvOwner
from securevfl.crypto.bfv_parameters import (
    CARRY_BITS,
    DEGREE,
    FRESH_NOISE,
    LARGEST_MODULUS_BITS,
    LEAST_REVEALED,
    STATISTICAL_BITS,
    BfvParameters,
    ExactSizes,
    _context,
)
from securevfl.crypto.inspection import BfvOpening, owner_secret
from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import RangeExceeded
from tests.ciphertexts import format_of
from tests.weakened import MasksModuloT

BASE = format_of(256, 64, 8.0, (20, 14), rounds=1000)
FORMATS = [
    BASE,
    replace(BASE, matrix_bound=1.0, matrix_fraction_bits=0),
    replace(BASE, rows=1, columns=1, rounds=1),
    replace(BASE, rows=4096, columns=128),
    replace(BASE, rows=20_000, columns=3, vectors=10),
    replace(BASE, rows=64, columns=5000, rounds=100_000),
    replace(BASE, value_fraction_bits=24, matrix_fraction_bits=16, summands=2),
    replace(BASE, bandwidth_mbit=20.0, latency_ms=150.0),
    replace(BASE, rows=1, columns=1, matrix_bound=1.0, matrix_fraction_bits=0),
]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_jobs_roundings_tell_no_noise(fmt: ProductFormat, opened: bool) -> None:
    parameters = BfvParameters.of(replace(fmt, opened=opened))
    kept = prod(parameters.primes()[: parameters.reply_primes])
    modulus = prod(parameters.primes())
    # Mean squares: SEAL's 10.5 a coefficient, at most 1/2 of rounding where v is not 0, that of a
    # fresh encryption, 10.5·(1 + 2·8192) at most, and that of the switch, (1 + 8192)/12.
    columns = min(parameters.columns_per_reply, fmt.columns)
    rows = parameters.inputs * parameters.chunk
    noise = fmt.largest_entry * (sqrt(10.5 * columns * rows) + rows / 2) + 414.7
    in_reply = noise * kept / modulus + (26.2 if kept < modulus else 0)
    numbers = fmt.columns * fmt.rounds * fmt.vectors
    assert (STATISTICAL_BITS, CARRY_BITS) == (40, 20)
    least = log2(numbers * in_reply) + parameters.plain_bits
    assert log2(kept) >= least + (40 if opened else 20)
    # Beyond chance, noise is less than a unit, so that shares are off by one at most.
    largest = 21.5 * columns * rows * fmt.largest_entry + DEGREE
    assert kept >> parameters.plain_bits > largest * kept / modulus + DEGREE
    # Sums of products, doubled for their sign, below guard bits that hold one unit for each.
    assert 2 * fmt.largest_product < 1 << parameters.product_bits
    assert 2 * fmt.summands < 1 << parameters.guard_bits
    assert rows >= fmt.rows


def test_noise_is_what_sizes_suppose() -> None:
    """Of entries at the bound; one input fills its polynomial, values round as they may."""
    fmt = replace(BASE, rows=128, columns=64)
    owner = BfvOwner(fmt)
    evaluator = MasksModuloT(owner.public_bytes, fmt, native=False)  # so that its noise shows
    opening = BfvOpening(fmt, owner_secret(owner))
    generator = np.random.default_rng(3)
    matrix = generator.choice([-fmt.largest_entry, fmt.largest_entry], (128, 64))
    assert (owner._parameters.inputs, owner._parameters.replies(64)) == (1, 1)
    ((plain,),) = evaluator._plaintexts(matrix)
    found = []
    for _ in range(3):
        values = generator.integers(-fmt.largest_value, fmt.largest_value + 1, 128)
        (vector,) = evaluator._take_in(owner.encrypt(values))
        total = evaluator._sum([vector], (plain,))
        reply, _ = evaluator._sealed(total, evaluator._blinder(), np.arange(DEGREE))
        (polynomials,) = opening.replies_at(reply, np.arange(DEGREE))
        found.append(opening.noise_of(polynomials))
    measured = float(np.sqrt(np.mean(np.square(found))))
    assert 0.9 < measured / (fmt.largest_entry * sqrt(10.5 * DEGREE)) < 1.1


@pytest.mark.parametrize("native", [True, False])
def test_a_fresh_encryption_leaves_the_noise_that_sizes_suppose(native: bool) -> None:
    """Where X is 0: e₀ + e₁·s − e·u, of mean square 10.5·(1 + 4/3·DEGREE), or SEAL's rounding."""
    fmt = replace(BASE, rows=8, columns=DEGREE)
    owner = BfvOwner(fmt)
    parameters, opening = owner._parameters, BfvOpening(fmt, owner_secret(owner))
    assert parameters.reply_primes == len(parameters.prime_bits)
    evaluator = MasksModuloT(owner.public_bytes, fmt, native=native)
    nothing = evaluator.prepare(np.zeros((8, DEGREE), np.int64))
    reply = evaluator.masked_product(owner.encrypt(np.zeros(8, np.int64)), nothing)
    found = opening.reply_noise(reply.ciphertext, DEGREE)
    assert found.size == DEGREE
    measured = float(np.sqrt(np.mean(np.square(found))))
    if evaluator.engine == "native":
        assert 0.9 < measured / sqrt(10.5 * (1 + 4 / 3 * DEGREE)) < 1.1
    assert measured < FRESH_NOISE == sqrt(10.5 * (1 + 2 * DEGREE))


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_set_is_at_128_bits(fmt: ProductFormat) -> None:
    parameters = BfvParameters.of(fmt)
    context = parameters.context()
    assert sum(parameters.prime_bits) + 30 <= LARGEST_MODULUS_BITS
    key_moduli = context.key_context_data().parms().coeff_modulus()
    bits = sum(modulus.bit_count() for modulus in key_moduli)
    assert bits <= seal.CoeffModulus.MaxBitCount(DEGREE, seal.SEC_LEVEL_TYPE.TC128)
    qualifiers = context.key_context_data().qualifiers()
    assert qualifiers.sec_level == seal.SEC_LEVEL_TYPE.TC128


@pytest.mark.parametrize("fmt", FORMATS)
def test_both_ends_choose_alike_and_coefficients_do_not_collide(fmt: ProductFormat) -> None:
    parameters = BfvParameters.of(fmt)
    assert parameters == BfvParameters.of(replace(fmt))
    for columns in {1, fmt.columns}:
        positions = parameters.positions(columns)
        assert len(np.unique(positions)) == len(positions) >= LEAST_REVEALED
        assert len(positions) % 2 == 0
        assert positions.max() < DEGREE
        of_columns = positions[: min(columns, parameters.columns_per_reply)]
        assert np.all((of_columns + 1) % parameters.chunk == 0)


def test_exact_features_take_smaller_numbers() -> None:
    dense, binary = (BfvParameters.of(fmt) for fmt in FORMATS[:2])
    assert (dense.plain_bits, dense.prime_bits) == (49, (60, 60))
    assert (binary.plain_bits, binary.prime_bits) == (32, (40, 40))


def test_slow_lines_take_fewer_bytes() -> None:
    def size(fmt: ProductFormat) -> int:
        chosen = BfvParameters.of(fmt)
        replies = chosen.replies(fmt.columns) * DEGREE * sum(chosen.reply_bits) // 8
        return chosen.inputs * chosen.input_bytes + replies

    large = replace(BASE, rows=4096, columns=128)
    assert size(replace(large, bandwidth_mbit=20.0, latency_ms=150.0)) < size(large)


def test_numbers_that_do_not_fit_are_refused_with_their_bounds() -> None:
    wide = replace(BASE, value_fraction_bits=24, matrix_fraction_bits=20, opened=True)
    rounds = [1 << power for power in range(60)]
    fits = [_fits(replace(wide, rounds=each)) for each in rounds]
    most = fits.index(False)
    assert all(fits[:most])
    assert not any(fits[most:])
    assert rounds[most] > 1000
    with pytest.raises(RangeExceeded, match=rf"{rounds[most]} rounds x 1 vectors x 64 columns"):
        BfvParameters.of(replace(wide, rounds=rounds[most]))


def _fits(fmt: ProductFormat) -> bool:
    try:
        BfvParameters.of(fmt)
    except RangeExceeded:
        return False
    return True


@pytest.mark.parametrize(
    ("batching", "refused"),
    [(False, r"bfv: SEAL refuses primes .* with t = 2\^40"), (True, "slots: SEAL refuses primes")],
)
def test_sizes_that_seal_does_not_take_are_refused(batching: bool, refused: str) -> None:
    with pytest.raises(RangeExceeded, match=refused):
        _context((60, 60, 60, 60), 40, batching)


def test_exact_sizes_have_room_for_an_encryption_of_zero_whatever_the_inputs() -> None:
    (least, *_) = ExactSizes.fitting(40, terms=1, entry=0.0, revealed=48)
    assert least.noise > 19 * FRESH_NOISE
