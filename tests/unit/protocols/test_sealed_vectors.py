"""Sealed replies and their checks against vectors that plain integers make."""

import json
import os
from hashlib import sha256, shake_256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import RingArray
from securevfl.crypto import ring
from securevfl.crypto.equality import EqualityTest
from securevfl.crypto.residues import exact_mask, pack, unpack
from securevfl.protocols.blind.checks import Combinations

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "sealed.json").read_text("utf-8"))
CHECK = VECTORS["check"]


def words(values: list[Any]) -> RingArray:
    return np.array(values, np.uint64)


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec("\n".join(VECTORS["script"]), names)  # noqa: S102  # of our own file
    return names


def test_the_vectors_are_what_their_script_makes(made: dict[str, Any]) -> None:
    for part in ("masks", "check", "equality"):
        assert json.loads(json.dumps(made[part])) == VECTORS[part]


@pytest.mark.parametrize("case", VECTORS["masks"], ids=lambda case: case["stream"])
def test_masks_shares_and_bytes_are_those_of_the_vectors(
    case: dict[str, Any], made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, at = shake_256(case["stream"].encode()).digest(4096), 0

    def drawn(count: int) -> bytes:
        nonlocal at
        at += count
        return data[at - count : at]

    monkeypatch.setattr(os, "urandom", drawn)
    residues, share = exact_mask(made["PRIMES"], case["plain"], made["EDGE"], made["COUNT"])
    np.testing.assert_array_equal(residues, words(case["residues"]))
    np.testing.assert_array_equal(share, words(case["share"]))
    for row, wire in zip(residues, case["wire"], strict=True):
        assert pack(row, 48).hex() == wire
        np.testing.assert_array_equal(unpack(bytes.fromhex(wire), len(row), 48), row)
    assert prod(made["PRIMES"]) == made["Q"]


def test_combinations_and_what_is_compared_are_those_of_the_vectors() -> None:
    count, seed = CHECK["checks"], bytes.fromhex(CHECK["seed"])
    holder, owner = Combinations(count, seed), Combinations(count, seed)
    for each in CHECK["products"]:
        columns, masks = words(each["columns"]), words(each["masks"])
        both = holder.extended(columns)
        np.testing.assert_array_equal(both[:, columns.shape[1] :], words(each["combined"]))
        # With the identity for a matrix, in as many rows as both have.
        rows = min(len(both), len(masks))
        replies = masks.copy()
        replies[:rows] = ring.reduced(replies[:rows] + both[:rows])
        holder.take(replies)
        owner.take_mask(masks, columns.shape[1])
    assert owner._digest.hexdigest() == holder._digest.hexdigest() == CHECK["compared"]


def test_a_run_of_the_equality_test_is_that_of_the_vectors() -> None:
    run = VECTORS["equality"]
    secret, context = bytes.fromhex(CHECK["compared"]), run["context"].encode()
    with pytest.MonkeyPatch.context() as patch:
        exponents = iter(int(each, 16) for each in run["exponents"])
        patch.setattr("secrets.randbits", lambda _: next(exponents))
        first, second = (EqualityTest(secret, context) for _ in range(2))
    assert [sha256(each.point).hexdigest() for each in (first, second)] == run["points"]
    assert second.tag(first.point).hex() == run["tag"]
    assert first.confirmation(second.point).hex() == run["confirmation"]
