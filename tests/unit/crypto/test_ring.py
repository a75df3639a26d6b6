"""The ring of shares against exact quotients, integers and vectors of plain Python."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import RingArray
from securevfl.crypto import ring
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.errors import RangeExceeded


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(1)


def test_numbers_come_back(draw: np.random.Generator) -> None:
    values = draw.uniform(-8, 8, 1000)
    assert np.abs(ring.decode(ring.encode(values, 20, 8, "x"), 20) - values).max() <= 2.0**-21


@pytest.mark.parametrize("value", [8.1, np.nan, np.inf])
def test_what_is_beyond_its_bound_is_refused(value: float) -> None:
    with pytest.raises(RangeExceeded, match="at most 8 allowed"):
        ring.encode([value], 20, 8, "x")


def test_a_bound_beyond_the_ring_is_refused() -> None:
    ring.encode([1.0], 54, 8, "x")
    with pytest.raises(RangeExceeded, match="does not fit"):
        ring.encode([1.0], 55, 8, "x")


def test_truncation_goes_wrong_as_often_as_it_says() -> None:
    value, count = 1 << 50, 1 << 16
    words = ring.uniform(count)
    parts = (
        ring.truncated(words, 20, first=True),
        ring.truncated(np.uint64(value) - words, 20, first=False),
    )
    wrong = np.abs(ring.centred(ring.reduced(parts[0] + parts[1])) - (value >> 20)) > 1
    expected = ring.failure_probability(count, value)
    assert 0.2 * expected < wrong.sum() < expected


@pytest.mark.parametrize("largest", [1, 1 << 13, 1 << 30, 1 << 44])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_products_are_those_of_integers(
    largest: int, columns: tuple[int, ...], draw: np.random.Generator
) -> None:
    matrix = draw.integers(-largest, largest, (5, 70), endpoint=True)
    shares = ring.uniform(70, *columns)
    exact = (matrix.astype(object) @ shares.astype(object)) % (1 << ring.RING_BITS)
    assert np.array_equal(ring.Factor(matrix) @ shares, exact.astype(np.uint64))


def test_words_are_below_the_modulus_and_fresh() -> None:
    words = ring.uniform(4, 1000)
    assert words.max() < 1 << ring.RING_BITS
    assert words.max() > 1 << (ring.RING_BITS - 2)
    assert not np.array_equal(words, ring.uniform(4, 1000))


def test_a_matrix_without_exact_products_is_refused() -> None:
    with pytest.raises(RangeExceeded, match="no exact product"):
        ring.Factor(np.full((2, 70), 1 << 47))


VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "ring.json").read_text("utf-8"))


def words(values: list[Any]) -> RingArray:
    return np.array(values, np.uint64)


def test_the_vectors_are_what_their_script_makes() -> None:
    names: dict[str, Any] = {}
    exec("\n".join(VECTORS["script"]), names)  # noqa: S102  # of our own file
    for part in ("encoded", "centred", "truncated", "products"):
        assert json.loads(json.dumps(names[part])) == VECTORS[part]


@pytest.mark.parametrize("case", VECTORS["encoded"], ids=lambda case: case["fraction_bits"])
def test_numbers_are_encoded(case: dict[str, Any]) -> None:
    found = ring.encode(case["values"], case["fraction_bits"], 8.0, "x")
    np.testing.assert_array_equal(found, words(case["residues"]))


def test_residues_are_centred() -> None:
    found = ring.centred(words([case["residue"] for case in VECTORS["centred"]]))
    assert found.tolist() == [case["integer"] for case in VECTORS["centred"]]


@pytest.mark.parametrize("case", VECTORS["truncated"], ids=lambda case: case["bits"])
def test_shares_are_truncated(case: dict[str, Any]) -> None:
    first = ring.truncated(words(case["shares"]), case["bits"], first=True)
    second = ring.truncated(words(case["others"]), case["bits"], first=False)
    np.testing.assert_array_equal(first, words(case["first"]))
    np.testing.assert_array_equal(second, words(case["second"]))
    assert ring.centred(ring.reduced(first + second)).tolist() == case["sums"]


@pytest.mark.parametrize("case", VECTORS["products"], ids=["signs", "22 bits", "40 bits"])
def test_products_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    matrix, values = np.array(case["matrix"], np.int64), words(case["values"])
    np.testing.assert_array_equal(ring.Factor(matrix) @ values, words(case["product"]))
    (outputs, inner), columns = matrix.shape, values.shape[1]
    fmt = RingProductFormat(inner, outputs, columns, int(np.abs(matrix).max()))
    owner = RingProductOwner(fmt)
    evaluator = RingProductEvaluator(owner.public_bytes, fmt)
    reply, mask = evaluator.product(owner.encrypt(values), matrix)
    found = ring.reduced(owner.decrypt(reply) - mask)
    np.testing.assert_array_equal(found, words(case["product"]))
