from dataclasses import replace
from math import prod

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.crypto.bfv_parameters import (
    DEGREE,
    LARGEST_MODULUS_BITS,
    LARGEST_NOISE,
    LEAST_REVEALED,
    STATISTICAL_BITS,
    BfvParameters,
    _context,
)
from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import RangeExceeded
from tests.ciphertexts import format_of

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


@pytest.mark.parametrize("fmt", FORMATS)
def test_flooding_covers_the_job_and_leaves_room_to_decrypt(fmt: ProductFormat) -> None:
    parameters = BfvParameters.of(fmt)
    modulus = prod(parameters.primes())
    flooding = 1 << parameters.flood_bits
    columns = min(parameters.columns_per_reply, fmt.columns)
    norm = columns * parameters.inputs * parameters.chunk * fmt.largest_entry
    revealed = parameters.replies(fmt.columns) * len(parameters.positions(fmt.columns))
    over_job = revealed * fmt.rounds * fmt.vectors
    assert (STATISTICAL_BITS, LARGEST_NOISE) == (40, 21 + 1 / 2)
    assert 2 * flooding >= (43 * norm + 2 * DEGREE << 40) * over_job
    # E <= q/(4t) is what decrypting takes. The owner's test of four replies' noise, each at most
    # E/2, leaves them q/(16t): E <= q/(32t), but for what primes are short of a power of two.
    assert modulus >= 31 * flooding << parameters.plain_bits
    reply_modulus = prod(parameters.primes()[: parameters.reply_primes])
    assert reply_modulus >> parameters.plain_bits >= 2**11
    assert 2 * fmt.largest_product < 1 << parameters.plain_bits
    assert parameters.inputs * parameters.chunk >= fmt.rows


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
    assert (dense.plain_bits, len(dense.prime_bits)) == (47, 3)
    assert (binary.plain_bits, len(binary.prime_bits)) == (30, 2)


def test_slow_lines_take_fewer_bytes() -> None:
    def size(fmt: ProductFormat) -> int:
        chosen = BfvParameters.of(fmt)
        replies = chosen.replies(fmt.columns) * DEGREE * sum(chosen.reply_bits) // 8
        return chosen.inputs * chosen.input_bytes + replies

    large = replace(BASE, rows=4096, columns=128)
    assert size(replace(large, bandwidth_mbit=20.0, latency_ms=150.0)) < size(large)


def test_flooding_that_does_not_fit_is_refused_with_its_numbers() -> None:
    wide = replace(BASE, value_fraction_bits=24, matrix_fraction_bits=20, matrix_bound=8.0)
    rounds = [1 << power for power in range(60)]
    fits = [_fits(replace(wide, rounds=each)) for each in rounds]
    most = fits.index(False)
    assert all(fits[:most])
    assert not any(fits[most:])
    assert rounds[most] > 1000
    with pytest.raises(RangeExceeded, match=rf"\({rounds[most]} rounds x 1 vectors x 64 columns\)"):
        BfvParameters.of(replace(wide, rounds=rounds[most]))


def _fits(fmt: ProductFormat) -> bool:
    try:
        BfvParameters.of(fmt)
    except RangeExceeded:
        return False
    return True


def test_more_rounds_take_more_flooding() -> None:
    more = BfvParameters.of(replace(BASE, rounds=2000))
    assert more.flood_bits == BfvParameters.of(BASE).flood_bits + 1


@pytest.mark.parametrize(
    ("batching", "refused"),
    [(False, r"bfv: SEAL refuses primes .* with t = 2\^40"), (True, "slots: SEAL refuses primes")],
)
def test_sizes_that_seal_does_not_take_are_refused(batching: bool, refused: str) -> None:
    with pytest.raises(RangeExceeded, match=refused):
        _context((60, 60, 60, 60), 40, batching)
