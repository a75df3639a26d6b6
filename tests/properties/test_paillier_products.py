import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phe.paillier import PaillierPrivateKey, generate_paillier_keypair

from securevfl.arrays import IntArray
from securevfl.crypto.multi_exponentiation import Exponents, products
from securevfl.crypto.paillier import (
    PaillierEvaluator,
    PaillierKeyOwner,
    PaillierKeyPeer,
    PaillierOwner,
)
from securevfl.crypto.paillier_fast import FastPaillierEvaluator, FastPaillierOwner
from securevfl.crypto.scheme import ProductFormat
from tests.ciphertexts import product
from tests.small_keys import insecure

KEYS = {bits: generate_paillier_keypair(n_length=bits)[1] for bits in (256, 512)}
ENGINES: dict[str, tuple[type[PaillierKeyOwner], type[PaillierKeyPeer]]] = {
    "phe": (PaillierOwner, PaillierEvaluator),
    "fast": (FastPaillierOwner, FastPaillierEvaluator),
}


@pytest.mark.parametrize("engine", ["phe", "fast"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_the_masked_product_is_the_clear_integer_product(
    engine: str, key: PaillierPrivateKey, data: st.DataObject
) -> None:
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 7))
    product_format = ProductFormat(
        rows=data.draw(st.integers(rows, 8)),
        value_bound=data.draw(st.sampled_from([0.25, 1.0, 3.5])),
        matrix_bound=data.draw(st.sampled_from([1.0, 12.0])),
        value_fraction_bits=data.draw(st.sampled_from([0, 24])),
        matrix_fraction_bits=data.draw(st.sampled_from([0, 16])),
        summands=data.draw(st.integers(1, 4)),
        columns=columns,
    )
    values = np.array(data.draw(vectors(product_format.largest_value, rows)), np.int64)
    matrix = data.draw(matrices(product_format.largest_entry, rows, columns))
    own, other = ENGINES[engine]
    owner = insecure(own, product_format, key)
    evaluator = insecure(other, owner.public_bytes, product_format)
    np.testing.assert_array_equal(product(owner, evaluator, values, matrix), matrix.T @ values)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_exponentiation_of_many_is_that_of_each(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 12))
    n = gmpy2.mpz(KEYS[256].public_key.n)
    matrix = data.draw(matrices(1 << data.draw(st.integers(0, 40)), rows, columns))
    width, count = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 4))
    units = st.integers(1, int(n**2) - 1).filter(lambda c: gmpy2.gcd(c, n) == 1)
    bases = data.draw(st.lists(units, min_size=rows, max_size=rows))
    found = products(bases, Exponents.of(matrix, width, count), n)
    expected = []
    for first in range(0, columns, count):
        packed = [
            sum(entry << width * slot for slot, entry in enumerate(row))
            for row in matrix[:, first : first + count].tolist()
        ]
        result = gmpy2.mpz(1)
        for base, exponent in zip(bases, packed, strict=True):
            result = result * gmpy2.powmod(base, exponent, n**2) % n**2
        expected.append(result)
    assert [unit * (1 + n * term) % n**2 for unit, term in found] == expected


def matrices(bound: int, rows: int, columns: int) -> st.SearchStrategy[IntArray]:
    """Anything up to the bound, or zeros, ones and one power of two only, as of 0/1 features."""
    one = 1 << (bound.bit_length() - 1)
    size = rows * columns
    binary = st.lists(st.sampled_from([0, one]), min_size=size, max_size=size)
    either = vectors(bound, size) | binary
    return either.map(lambda entries: np.array(entries, np.int64).reshape(rows, columns))


def vectors(bound: int, size: int) -> st.SearchStrategy[list[int]]:
    extremes = st.sampled_from(sorted({-bound, -1, 0, 1, bound}))
    return st.lists(extremes | st.integers(-bound, bound), min_size=size, max_size=size)
