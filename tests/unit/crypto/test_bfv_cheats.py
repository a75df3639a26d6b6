"""What an evaluator of BFV products gets that does not follow the protocol."""

from dataclasses import replace

import numpy as np
import pytest

from securevfl.attacks.ciphertexts import secret_from_crafted_queries
from securevfl.crypto import bfv
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.inspection import BfvOpening, crafted_replies, owner_secret
from securevfl.crypto.scheme import ProductFormat

ROWS, COLUMNS = 64, 16
FORMAT = ProductFormat(
    rows=ROWS,
    value_bound=1.0,
    matrix_bound=8.0,
    value_fraction_bits=20,
    matrix_fraction_bits=14,
    columns=COLUMNS,
    rounds=50,
)


@pytest.fixture(scope="module")
def owner() -> BfvOwner:
    return BfvOwner(FORMAT)


@pytest.mark.parametrize(("columns", "rounds"), [(1, 293), (15, 21), (64, 5), (400, 1)])
def test_crafted_queries_read_the_key_and_with_it_every_input(columns: int, rounds: int) -> None:
    """What semi-honest means: an owner decrypts whatever has the form of a reply."""
    values = np.random.default_rng(11).integers(-(1 << 20), 1 << 20, ROWS)
    fmt = replace(FORMAT, columns=columns)
    owner = BfvOwner(fmt)
    queries = list(crafted_replies(fmt, [columns]))
    assert len(queries) == rounds
    secret = secret_from_crafted_queries(queries, owner.decrypt, owner.modulus_bits, DEGREE)
    assert np.array_equal(secret, owner_secret(owner))
    assert np.array_equal(BfvOpening(fmt, secret).decrypted(owner.encrypt(values)), values)
    wrong = BfvOpening(fmt, np.roll(secret, 1)).decrypted(owner.encrypt(values))
    assert not np.any(wrong == values)


def test_a_crafted_query_reads_its_share_of_the_key_in_one_round(owner: BfvOwner) -> None:
    query = next(crafted_replies(FORMAT, [COLUMNS]))
    digits = int(np.log(2) / np.log(3) * owner.modulus_bits)
    assert query[1].shape == (COLUMNS, digits)
    found = secret_from_crafted_queries([query], owner.decrypt, owner.modulus_bits, DEGREE)
    revealed = np.unique(query[1] % DEGREE)
    assert len(revealed) == COLUMNS * digits
    assert np.array_equal(found[revealed], owner_secret(owner)[revealed])


def test_evaluators_that_pool_read_the_key_in_turns(owner: BfvOwner) -> None:
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
