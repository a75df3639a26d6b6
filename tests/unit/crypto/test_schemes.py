"""Schemes by name, and what all do alike: products that just fit are exact, others refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np
import pytest

from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.ckks import CkksEvaluator, CkksOwner
from securevfl.crypto.paillier import PaillierEvaluator, PaillierOwner
from securevfl.crypto.paillier_fast import (
    FastPaillierEvaluator,
    FastPaillierOwner,
    FullPaillierOwner,
)
from securevfl.crypto.scheme import BlinderPool, Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import SCHEMES, make_evaluator, make_owner
from securevfl.errors import ConfigError, CryptoError, KeyMismatch, RangeExceeded
from tests.ciphertexts import product
from tests.small_keys import insecure

FORMAT = ProductFormat(rows=2, value_bound=1.0, matrix_bound=2.0)


def test_every_scheme_is_described_in_one_line() -> None:
    assert list(SCHEMES) == ["bfv", "paillier", "ckks"]
    for scheme in SCHEMES.values():
        assert scheme.description
        assert "\n" not in scheme.description
        assert scheme.engines


@pytest.mark.parametrize(
    ("scheme", "given", "owner", "evaluator", "key_bits"),
    [
        ("paillier", {}, FastPaillierOwner, FastPaillierEvaluator, 3072),
        ("paillier", {"key_bits": 2048, "engine": "fast-full"}, FullPaillierOwner, None, 2048),
        ("bfv", {}, BfvOwner, BfvEvaluator, None),
        ("ckks", {}, CkksOwner, CkksEvaluator, None),
    ],
)
def test_paillier_is_fast_and_3072_bits_unless_told_and_others_have_no_key_size(
    scheme: str,
    given: dict[str, Any],
    owner: type[KeyOwner],
    evaluator: type[Evaluator] | None,
    key_bits: int | None,
) -> None:
    made = make_owner(scheme, FORMAT, **given)
    assert (type(made), made.key_bits) == (owner, key_bits)
    if evaluator is not None:
        assert type(make_evaluator(scheme, made.public_bytes, FORMAT)) is evaluator


def test_bfv_estimates_its_time_and_ckks_is_not_exact() -> None:
    seconds = SCHEMES["bfv"].seconds
    assert seconds is not None
    assert 0 < seconds(FORMAT) < seconds(replace(FORMAT, bandwidth_mbit=1.0))
    assert [name for name, scheme in SCHEMES.items() if scheme.seconds] == ["bfv"]
    assert [name for name, scheme in SCHEMES.items() if not scheme.exact] == ["ckks"]


def test_a_key_of_another_size_than_agreed_is_refused() -> None:
    owner = make_owner("paillier", FORMAT, key_bits=2048, engine="phe")
    make_evaluator("paillier", owner.public_bytes, FORMAT, key_bits=2048)
    with pytest.raises(KeyMismatch, match="2048 bits, 3072 expected"):
        make_evaluator("paillier", owner.public_bytes, FORMAT)


@pytest.mark.parametrize(
    ("scheme", "key_bits", "engine", "message"),
    [
        ("rot13", None, None, "scheme is 'rot13', one of bfv, paillier, ckks"),
        ("paillier", 1024, None, "key_bits is 1024, 3072 or 2048"),
        ("paillier", 0, None, "key_bits is 0, 3072 or 2048"),
        ("ckks", 3072, None, "key_bits is 3072, no choice"),
        ("bfv", 128, None, "key_bits is 128, no choice"),
        ("bfv", None, "phe", "engine is 'phe', one of native, seal, tenseal expected for bfv"),
        ("paillier", None, "quantum", "engine is 'quantum', one of fast, fast-full, phe"),
        ("ckks", None, "phe", "engine is 'phe', one of tenseal"),
    ],
)
def test_unknown_settings_are_refused_and_the_known_named(
    scheme: str, key_bits: int | None, engine: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_owner(scheme, FORMAT, key_bits=key_bits, engine=engine)
    with pytest.raises(ConfigError, match=message):
        make_evaluator(scheme, b"", FORMAT, key_bits=key_bits, engine=engine)


@pytest.mark.parametrize(
    ("scheme", "engine"), [("ckks", None), ("paillier", "phe")], ids=["ckks", "phe"]
)
def test_engines_that_make_nothing_offline_say_so(scheme: str, engine: str | None) -> None:
    fmt = ProductFormat(rows=4, value_bound=1.0, matrix_bound=1.0)
    owner = make_owner(scheme, fmt, key_bits=2048 if engine else None, engine=engine)
    evaluator = make_evaluator(
        scheme, owner.public_bytes, fmt, key_bits=2048 if engine else None, engine=engine
    )
    prepared = evaluator.prepare(np.ones((4, 1), np.int64))
    assert not owner.make_blinder()
    assert not owner.lacks_blinders()
    assert not evaluator.make_blinder()
    assert not evaluator.lacks_blinders(prepared)
    assert evaluator.modulus_bits == owner.modulus_bits


KEY_BITS = 384


def product_of(value: int, entry: int, summands: int = 1) -> ProductFormat:
    """A format of one row whose largest product is value·entry·summands."""
    fmt = ProductFormat(1, value, entry, 0, 0, summands=summands, columns=2)
    assert fmt.largest_product == value * entry * summands
    return fmt


# 2^63 − 1 and 2^56 − 1 as products of factors that float64 holds, and one more.
FITS = {
    64: product_of(92737 * 649657, (2**63 - 1) // (92737 * 649657)),
    57: product_of((2**56 - 1) // 255, 255),
}
TOO_LARGE = {64: product_of(2**32, 2**31), 57: product_of(2**29, 2**27)}
SUMMED = {64: product_of(2**31, 2**31, summands=2), 57: product_of(2**28, 2**27, summands=2)}


@pytest.mark.parametrize("bits", [64, 57])
def test_the_largest_product_stays_under_half_the_plaintext_space(bits: int) -> None:
    assert FITS[bits].largest_product == 2 ** (bits - 1) - 1
    FITS[bits].require_room(bits)
    for fmt in (TOO_LARGE[bits], SUMMED[bits]):
        assert fmt.largest_product == 2 ** (bits - 1)
        with pytest.raises(RangeExceeded, match=f"needs {bits + 1} bits, more than the {bits} "):
            fmt.require_room(bits)
        fmt.require_room(bits + 1)


Ends = tuple[Callable[[ProductFormat], KeyOwner], Callable[[bytes, ProductFormat], Evaluator], int]
ENDS: dict[str, Ends] = {
    "bfv": (BfvOwner, BfvEvaluator, 57),
    "ckks": (CkksOwner, CkksEvaluator, 64),
    "paillier": (
        lambda fmt: insecure(FastPaillierOwner, fmt, KEY_BITS),
        partial(insecure, FastPaillierEvaluator),
        64,
    ),
    "phe": (
        lambda fmt: insecure(PaillierOwner, fmt, KEY_BITS),
        partial(insecure, PaillierEvaluator),
        64,
    ),
}


@pytest.mark.parametrize("scheme", ["bfv", "paillier", "phe"])
def test_the_largest_products_that_fit_come_out_right(scheme: str) -> None:
    owner_of, evaluator_of, bits = ENDS[scheme]
    fmt = FITS[bits]
    owner = owner_of(fmt)
    evaluator = evaluator_of(owner.public_bytes, fmt)
    matrix = np.array([[fmt.largest_entry, -fmt.largest_entry]])
    for value in (fmt.largest_value, -fmt.largest_value):
        expected = [value * fmt.largest_entry, -value * fmt.largest_entry]
        assert product(owner, evaluator, np.array([value]), matrix).tolist() == expected


@pytest.mark.parametrize("scheme", ENDS)
def test_both_ends_refuse_products_that_just_do_not_fit(scheme: str) -> None:
    owner_of, evaluator_of, bits = ENDS[scheme]
    public = owner_of(FITS[bits]).public_bytes
    evaluator_of(public, FITS[bits])
    for fmt in (TOO_LARGE[bits], SUMMED[bits]):
        # Sums of two products take a third guard bit.
        left = bits - (scheme == "bfv" and fmt.summands == 2)
        with pytest.raises(RangeExceeded, match=f"more than the {left} of the plaintext space"):
            owner_of(fmt)
        # Sums of two products take a third guard bit.
        left = bits - (scheme == "bfv" and fmt.summands == 2)
        with pytest.raises(RangeExceeded, match=f"more than the {left} of the plaintext space"):
            evaluator_of(public, fmt)


SMALL = ProductFormat(rows=4, value_bound=1.0, matrix_bound=2.0, columns=3)


@pytest.fixture(params=ENDS)
def ends(request: pytest.FixtureRequest) -> tuple[KeyOwner, Evaluator]:
    owner_of, evaluator_of, _ = ENDS[request.param]
    owner = owner_of(SMALL)
    return owner, evaluator_of(owner.public_bytes, SMALL)


def test_values_and_entries_beyond_the_format_are_refused(ends: tuple[KeyOwner, Evaluator]) -> None:
    owner, evaluator = ends
    with pytest.raises(RangeExceeded, match="value"):
        owner.encrypt(np.array([SMALL.largest_value + 1]))
    with pytest.raises(RangeExceeded, match="matrix entry"):
        evaluator.prepare(np.array([[SMALL.largest_entry + 1]]))
    with pytest.raises(RangeExceeded, match="5 rows"):
        owner.encrypt(np.ones(5, np.int64))
    with pytest.raises(RangeExceeded, match="5 rows"):
        evaluator.prepare(np.ones((5, 1), np.int64))


def test_the_same_inputs_give_new_ciphertexts_and_masks(ends: tuple[KeyOwner, Evaluator]) -> None:
    owner, evaluator = ends
    values, prepared = np.array([1, 2, -3, 0]), evaluator.prepare(np.ones((4, 3), np.int64))
    assert len({owner.encrypt(values) for _ in range(3)}) == 3
    encrypted = owner.encrypt(values)
    replies = [evaluator.masked_product(encrypted, prepared) for _ in range(3)]
    assert len({reply.ciphertext for reply in replies}) == 3
    # Of 2^48 or more, nine coincide once in 2^42.
    assert len({mask for reply in replies for mask in reply.mask.tolist()}) == 9


def test_a_matrix_that_another_scheme_prepared_is_refused(ends: tuple[KeyOwner, Evaluator]) -> None:
    owner, evaluator = ends
    with pytest.raises(CryptoError, match="prepared is a list, not "):
        evaluator.masked_product(owner.encrypt(np.array([1])), [[1]])


def test_keys_are_named_by_their_bytes(ends: tuple[KeyOwner, Evaluator]) -> None:
    owner, _ = ends
    assert owner.fingerprint == sha256(owner.public_bytes).hexdigest()[:16]


def test_a_pool_fills_to_its_capacity_and_gives_every_item_once() -> None:
    numbers = count()
    pool = BlinderPool(lambda: next(numbers), 2)
    assert [pool.make_one() for _ in range(3)] == [True, True, False]
    assert len(pool) == 2
    # The oldest first; what is not in stock is made.
    assert [pool.take() for _ in range(4)] == [0, 1, 2, 3]
    assert len(pool) == 0
    assert pool.make_one()
    assert pool.take() == 4
