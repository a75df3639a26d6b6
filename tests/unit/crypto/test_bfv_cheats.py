"""What an evaluator of BFV products gets that does not follow the protocol."""

import numpy as np
import pytest

from securevfl.attacks.ciphertexts import secret_from_crafted_queries
from securevfl.crypto import bfv
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.inspection import crafted_replies, owner_secret
from tests.ciphertexts import format_of

ROWS, COLUMNS = 64, 16
FORMAT = format_of(ROWS, COLUMNS, 8.0, (20, 14), rounds=50)


def test_evaluators_that_pool_read_the_key_in_turns() -> None:
    owner = BfvOwner(FORMAT)
    queries = list(crafted_replies(FORMAT, [COLUMNS, COLUMNS // 2]))
    assert [len(places) for _, places in queries[:3]] == [COLUMNS, COLUMNS // 2, COLUMNS]
    secret = secret_from_crafted_queries(queries, owner.decrypt, owner.modulus_bits, DEGREE)
    assert np.array_equal(secret, owner_secret(owner))
    assert len(queries) // 2 < len(list(crafted_replies(FORMAT, [COLUMNS])))


def test_a_value_has_room_for_two_residuals_of_a_cheats_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column of 1 and 2^(value bits + 2), past the evaluator's own check of its entries."""
    monkeypatch.setattr(bfv, "require_matrix", lambda matrix, product_format: None)
    owner, place = BfvOwner(FORMAT), np.arange(COLUMNS)
    values = np.random.default_rng(13).integers(-(1 << 20), 1 << 20, ROWS)
    matrix = np.zeros((ROWS, COLUMNS), np.int64)
    matrix[place, place], matrix[COLUMNS + place, place] = 1, 1 << 22
    evaluator = BfvEvaluator(owner.public_bytes, FORMAT)
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(matrix))
    seen = unmask(owner.decrypt(reply.ciphertext, COLUMNS), reply.mask, owner.modulus_bits)
    upper = (seen + (1 << 21)) >> 22
    assert np.array_equal(seen - (upper << 22), values[:COLUMNS])
    assert np.array_equal(upper, values[COLUMNS : 2 * COLUMNS])
