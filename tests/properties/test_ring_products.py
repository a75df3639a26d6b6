import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ring
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner


def ends(fmt: RingProductFormat) -> tuple[RingProductOwner, RingProductEvaluator]:
    owner = RingProductOwner(fmt)
    return owner, RingProductEvaluator(owner.public_bytes, fmt)


def product(fmt: RingProductFormat, values: RingArray, matrix: IntArray) -> RingArray:
    owner, evaluator = ends(fmt)
    reply, mask = evaluator.product(owner.encrypt(values), matrix)
    masked = owner.decrypt(reply)
    for words in (masked, mask):
        assert words.shape == (fmt.outputs, fmt.columns)
        assert int(words.max()) < 1 << 59
    return ring.reduced(masked - mask)


def exact(matrix: IntArray, values: RingArray) -> RingArray:
    return np.asarray(matrix.astype(object) @ values.astype(object) % (1 << 59), np.uint64)


@st.composite
def formats(draw: st.DrawFn) -> RingProductFormat:
    short, columns = draw(st.integers(1, 60)), draw(st.sampled_from([1, 2, 7, 20]))
    long = draw(st.one_of(st.integers(1, 100), st.integers(1, 200_000 // (short * columns))))
    inner, outputs = (short, long) if draw(st.booleans()) else (long, short)
    bound = (1 << draw(st.integers(0, 35))) - draw(st.integers(0, 1))
    return RingProductFormat(
        inner, outputs, columns, bound, 20, draw(st.sampled_from([20.0, 1000.0]))
    )


@settings(max_examples=25, deadline=None)
@given(formats(), st.sampled_from([0.0, 0.01, 1.0]), st.integers(0, 2**32))
def test_any_product_is_exact(fmt: RingProductFormat, filled: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    shape, bound = (fmt.outputs, fmt.inner), fmt.matrix_bound
    matrix = generator.integers(-bound, bound, shape, endpoint=True)
    matrix[generator.random(shape) >= filled] = 0
    values = ring.uniform(fmt.inner, fmt.columns)
    assert np.array_equal(product(fmt, values, matrix), exact(matrix, values))


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("inner", "outputs", "columns"), [(8192, 1, 1), (1, 8192, 1), (1, 1, 8192), (8193, 2, 3)]
)
def test_largest_entries_and_residues_are_exact(
    sign: int, inner: int, outputs: int, columns: int
) -> None:
    bound = (1 << 22) - 1
    fmt = RingProductFormat(inner, outputs, columns, bound)
    values = np.full((inner, columns), (1 << 59) - 1, np.uint64)
    matrix = np.full((outputs, inner), sign * bound)
    expected = -sign * bound * inner % (1 << 59)
    assert np.all(product(fmt, values, matrix) == expected)


@pytest.mark.parametrize("bits", [36, 48, 58])
def test_entries_longer_than_a_prime_are_exact(bits: int) -> None:
    bound = (1 << bits) - 1
    values, matrix = ring.uniform(2, 1), np.array([[bound, -bound], [1 - bound, bound]])
    found = product(RingProductFormat(2, 2, 1, bound), values, matrix)
    assert np.array_equal(found, exact(matrix, values))


@pytest.mark.parametrize("entries", [0, 1])
def test_zeros_give_zeros_and_ones_the_values(entries: int) -> None:
    fmt = RingProductFormat(70, 70, 2, 1)
    values = ring.uniform(70, 2)
    found = product(fmt, values, entries * np.eye(70, dtype=np.int64))
    assert np.array_equal(found, entries * values)


def test_shapes_here_have_several_inputs_replies_and_groups() -> None:
    layout = RingLayout.of(RingProductFormat(900, 60, 20, 1 << 20, 20))
    assert min(layout.chunks, layout.sides) > 1
    wide = RingLayout.of(RingProductFormat(60, 50_000, 20, 1 << 14, 20))
    assert min(wide.chunks, wide.sides, wide.groups) > 1
