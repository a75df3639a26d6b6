"""The ring against vectors of plain Python, and products in it under encryption."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import RingArray
from securevfl.crypto import ring
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner

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
def test_products_are_those_of_the_ring(case: dict[str, Any]) -> None:
    matrix, values = np.array(case["matrix"], np.int64), words(case["values"])
    np.testing.assert_array_equal(ring.Factor(matrix) @ values, words(case["product"]))
    (outputs, inner), columns = matrix.shape, values.shape[1]
    fmt = RingProductFormat(inner, outputs, columns, int(np.abs(matrix).max()))
    owner = RingProductOwner(fmt)
    evaluator = RingProductEvaluator(owner.public_bytes, fmt)
    reply, mask = evaluator.product(owner.encrypt(values), matrix)
    found = ring.reduced(owner.decrypt(reply) - mask)
    np.testing.assert_array_equal(found, words(case["product"]))
