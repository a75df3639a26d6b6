"""What a ckks reply and a released result would give away without each protection, and do not."""

from math import prod
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.arrays import RingArray
from securevfl.auditing.figures import shared_values
from securevfl.crypto import ckks
from securevfl.crypto.ckks import CkksEvaluator, CkksOwner
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.inspection import (
    CHECKED,
    PRODUCT_SCALE_BITS,
    ckks_key,
    ckks_key_guess,
    ckks_matrix,
    ckks_ratio,
    ckks_slots,
    ckks_with_noise,
    key_of,
)
from securevfl.crypto.residues import uniform_mask
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.seal_codec import (
    ciphertext_of,
    coefficient_ciphertext,
    from_bytes,
    polynomials_of,
    to_bytes,
)
from tests.ciphertexts import is_uniform
from tests.weakened import narrow_ckks_mask

ROWS = 64
FORMAT = ProductFormat(ROWS, value_bound=1.0, matrix_bound=1.0)
VALUES = np.linspace(-FORMAT.largest_value, FORMAT.largest_value, ROWS).astype(np.int64)
# 64 columns fill every slot with its largest product
MATRIX = np.full((ROWS, 64), FORMAT.largest_entry)

CONTEXT, PRIMES = ckks._context()[0], ckks._data_primes()


@pytest.fixture(scope="module")
def owner() -> CkksOwner:
    return CkksOwner(FORMAT)


@pytest.fixture(scope="module")
def evaluator(owner: CkksOwner) -> CkksEvaluator:
    return CkksEvaluator(owner.public_bytes, FORMAT)


def decrypted(owner: CkksOwner, reply: bytes) -> np.ndarray:
    plain = seal.Plaintext()
    owner._decryptor.decrypt(from_bytes(ckks._context()[0], seal.Ciphertext(), reply), plain)
    return np.array(ckks._context()[1].decode_complex(plain))


def test_c1_of_a_reply_is_not_the_matrix_times_c1_of_the_input(
    owner: CkksOwner, evaluator: CkksEvaluator
) -> None:
    encrypted = owner.encrypt(VALUES)
    prepared = evaluator.prepare(MATRIX)
    (plaintext,) = prepared.plaintexts[0]
    assert plaintext is not None
    secret = ckks_matrix(prepared)
    vector = ckks._load(encrypted, ckks.VALUE_SCALE_BITS)

    # masked, but without a fresh encryption: everybody reads X
    bare = seal.Ciphertext()
    operations = seal.Evaluator(ckks._context()[0])
    operations.multiply_plain(vector, plaintext, bare)
    residues, _ = uniform_mask(ckks._data_primes(), 64, ckks.DEGREE)
    operations.transform_from_ntt_inplace(bare)
    bare.scale = 1.0
    operations.add_inplace(bare, coefficient_ciphertext(ckks._context()[0], residues))
    operations.transform_to_ntt_inplace(bare)
    bare.scale = 2.0**PRODUCT_SCALE_BITS
    assert ckks_ratio(to_bytes(bare), encrypted) == secret

    # the product's reply: a coincidence once in 2^52
    reply = evaluator.masked_product(encrypted, prepared).ciphertext
    got = ckks_ratio(reply, encrypted)
    assert not any(a == b for a, b in zip(got, secret, strict=True))
    # nor does a second reply cancel the first's encryption of zero
    reply = evaluator.masked_product(encrypted, prepared).ciphertext
    again = ckks_ratio(reply, encrypted)
    assert not any(a == b for a, b in zip(got, again, strict=True))


@pytest.mark.parametrize("narrow", [True, False])
def test_noise_that_the_owner_chose_reads_the_matrix_only_above_narrow_ckks_masks(
    owner: CkksOwner, evaluator: CkksEvaluator, monkeypatch: pytest.MonkeyPatch, narrow: bool
) -> None:
    if narrow:
        monkeypatch.setattr(ckks, "uniform_mask", narrow_ckks_mask)
    largest = FORMAT.largest_entry
    matrix = np.random.default_rng(3).integers(-largest, largest + 1, (ROWS, 64))
    encrypted = ckks_with_noise(owner.encrypt(VALUES), 1 << 92)
    reply = evaluator.masked_product(encrypted, evaluator.prepare(matrix)).ciphertext
    read = decrypted(owner, reply).real.reshape(64, ROWS)
    correlation = abs(np.corrcoef(read.ravel(), matrix.T.ravel())[0, 1])
    # Of 4096 entries, by chance: 6 standard deviations.
    assert correlation > 0.999 if narrow else correlation < 6 / 64


@pytest.mark.parametrize("entry", [0, FORMAT.largest_entry])
def test_every_coefficient_that_the_owner_decrypts_is_uniform(
    owner: CkksOwner, evaluator: CkksEvaluator, monkeypatch: pytest.MonkeyPatch, entry: int
) -> None:
    prepared = evaluator.prepare(np.full((ROWS, 64), entry))
    encrypted = owner.encrypt(VALUES)

    def words() -> RingArray:
        return owner._words(evaluator.masked_product(encrypted, prepared).ciphertext)

    for drawn in (words(), words()):
        assert is_uniform(drawn >> np.uint64(60), 16)
        assert is_uniform(drawn & np.uint64(15), 16)
    monkeypatch.setattr(ckks, "uniform_mask", narrow_ckks_mask)
    assert not is_uniform(words() >> np.uint64(60), 16)


def test_words_are_shares_of_a_products_coefficients_within_a_unit(
    owner: CkksOwner, evaluator: CkksEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = []

    def kept(*arguments: Any) -> tuple[RingArray, RingArray]:  # noqa: ANN401
        shares.append(uniform_mask(*arguments))
        return shares[-1]

    monkeypatch.setattr(ckks, "uniform_mask", kept)
    encrypted, nothing = owner.encrypt(VALUES), evaluator.prepare(np.zeros((ROWS, 64), np.int64))
    reply = evaluator.masked_product(encrypted, nothing).ciphertext
    difference = (owner._words(reply) - shares[0][1]).view(np.int64)
    assert set(difference.tolist()) <= {-1, 0, 1}


def test_released_sums_are_flooded_afresh_and_rounded(
    owner: CkksOwner, evaluator: CkksEvaluator
) -> None:
    reply = evaluator.masked_product(owner.encrypt(VALUES), evaluator.prepare(MATRIX))
    released = [owner.decrypt(reply.ciphertext, 64) for _ in range(20)]
    layout = owner._layout
    assert layout.flood_bits == 8 + layout.unit_bits - ckks.QUANTUM_BITS
    assert layout.unit_bits == 56  # 64 slots of 1 are 2^62
    grid = 1 << layout.flood_bits
    assert not np.any(np.stack(released) % np.uint64(grid))
    changes = [unmask(again, released[0]) / grid for again in released[1:]]
    # flooding of ±1 grid steps, then rounding: steps of −2 to 2, of variance 2/3 + 1/6
    assert set(np.unique(changes)) <= {-2.0, -1.0, 0.0, 1.0, 2.0}
    # 1216 changes; the reply decides how each sum sits on the grid: a wide margin
    assert 0.5 < np.std(changes) < 1.2


def test_the_reencoded_decryption_is_the_key_and_what_is_released_is_not() -> None:
    """Li and Micciancio, EUROCRYPT 2021: m + e gives s = (m + e − c₀) / c₁."""
    context, encoder = ckks._context()
    # the textbook: 2^40, and all decrypted slots handed back in float64
    generator = seal.KeyGenerator(context)
    secret_key = generator.secret_key()
    plain = seal.Plaintext()
    values = np.random.default_rng(5).uniform(-1, 1, ckks.SLOTS)
    encoder.encode(values.tolist(), 2.0**40, plain)
    ciphertext, back, again = seal.Ciphertext(), seal.Plaintext(), seal.Plaintext()
    seal.Encryptor(context, secret_key).encrypt_symmetric(plain, ciphertext)
    seal.Decryptor(context, secret_key).decrypt(ciphertext, back)
    encoder.encode(encoder.decode_complex(back), 2.0**40, again)
    key = [secret_key.data()[at] for at in range(CHECKED)]
    assert key_of(ciphertext, again) == key

    # what we release, at its most generous: one row, so that every slot is a result
    one_row = ProductFormat(1, value_bound=1.0, matrix_bound=1.0)
    owner = CkksOwner(one_row)
    evaluator = CkksEvaluator(owner.public_bytes, one_row)
    encrypted = owner.encrypt(np.array([one_row.largest_value // 3]))
    ones = np.full((1, ckks.SLOTS), one_row.largest_entry)
    reply = evaluator.masked_product(encrypted, evaluator.prepare(ones))
    masked = owner.decrypt(reply.ciphertext, ckks.SLOTS)
    sums = unmask(masked, reply.mask, owner.modulus_bits)
    slots = sums / (one_row.largest_value * one_row.largest_entry)
    np.testing.assert_allclose(slots, 1 / 3, atol=1e-5)
    # float64 at 2^56 alone would spoil the guess too, so the flooding has a test of its own
    guess, key = ckks_key_guess(encrypted, slots), ckks_key(owner, encrypted)
    assert shared_values(guess, key) == 0
    believed = ckks_slots(one_row, np.array([one_row.largest_value // 3]))
    np.testing.assert_allclose(believed, slots, atol=1e-5)


# An evaluator that does not follow the protocol


def transformed(coefficients: list[int]) -> RingArray:
    """A polynomial in NTT form, (primes, DEGREE)."""
    residues = [np.array([c % prime for c in coefficients], np.uint64) for prime in PRIMES]
    carrier = ciphertext_of(CONTEXT, CONTEXT.first_parms_id(), np.stack([residues, residues]))
    seal.Evaluator(CONTEXT).transform_to_ntt_inplace(carrier)
    found: RingArray = polynomials_of(carrier)[0]
    return found


def crafted(c1: RingArray) -> bytes:
    """The reply (0, c1)."""
    both = np.stack([np.zeros_like(c1), c1])
    reply = ciphertext_of(CONTEXT, CONTEXT.first_parms_id(), both, ntt=True)
    reply.scale = 2.0**PRODUCT_SCALE_BITS
    return to_bytes(reply)


def test_a_crafted_reply_reads_fifteen_digits_of_the_key(owner: CkksOwner) -> None:
    """Not protected. A column's sum is Σ w_j·(c₁·s)_j/q modulo 1, so Σ 3^i·s_i for the right c₁.

    With w(1/x) = Σ w_j·x^−j, the sum is the constant coefficient of w(1/x)·c₁·s: the cheat divides
    what it wants, Σ 3^i·x^−i, by w(1/x).
    """
    layout, modulus = owner._layout, prod(PRIMES)
    weights = ckks._weights(layout.block, layout.unit_bits - ckks.WORD_BITS)[: ckks.DEGREE]
    bits, digits = 64 - layout.flood_bits - 2, 15
    assert 3**digits < 1 << bits
    wanted = np.zeros(ckks.DEGREE, object)
    wanted[:digits] = [(modulus * 3**i + (1 << bits - 1)) >> bits for i in range(digits)]
    inverses = [transformed([int(v[0]), *(-v[:0:-1]).tolist()]) for v in (wanted, weights)]
    c1 = [
        [int(top) * pow(int(bottom), -1, prime) % prime for top, bottom in zip(*both, strict=True)]
        for *both, prime in zip(*inverses, PRIMES, strict=True)
    ]
    (released,) = owner.decrypt(crafted(np.array(c1, np.uint64)), 1)
    value = int(np.uint64((int(released) + (1 << 63 - bits)) % (1 << 64)).view(np.int64))
    value >>= 64 - bits
    read = []
    for _ in range(digits):
        read.append((value + 1) % 3 - 1)
        value = (value - read[-1]) // 3
    words = owner._words(crafted(transformed([1 << 60, *[0] * (ckks.DEGREE - 1)])))
    secret = np.rint(words.view(np.int64) * (modulus / 2.0**124))
    assert set(secret) == {-1, 0, 1}
    assert read == secret[:digits].tolist()
