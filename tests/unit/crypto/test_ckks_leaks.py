"""What a ckks reply and a released result would give away without each protection, and do not."""

import numpy as np
import pytest
import tenseal.sealapi as seal

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
    key_of,
)
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.seal_codec import coefficient_ciphertext, from_bytes, to_bytes

ROWS = 64
FORMAT = ProductFormat(ROWS, value_bound=1.0, matrix_bound=1.0)
VALUES = np.linspace(-FORMAT.largest_value, FORMAT.largest_value, ROWS).astype(np.int64)
# 64 columns fill every slot with its largest product
MATRIX = np.full((ROWS, 64), FORMAT.largest_entry)


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
    primes = [m.value() for m in ckks._parameters().coeff_modulus()][: ckks._DATA_PRIMES]
    mask = ckks._mask_coefficients()
    residues = np.stack([(mask % prime).astype(np.uint64) for prime in primes])
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


def test_every_coefficient_of_a_mask_is_uniform_to_its_last_bit() -> None:
    low = ckks._mask_coefficients() + ckks._MASK_WIDTH
    bits = (2 * ckks._MASK_WIDTH - 1).bit_length()
    shares = [float(np.mean((low >> bit & 1).astype(np.float64))) for bit in range(bits)]
    assert bits == 113
    # 8192 flips for each of 113 bits, 6 standard deviations: false alarm 2.3e-7
    assert np.max(np.abs(np.array(shares) - 0.5)) < 6 * 0.5 / ckks.DEGREE**0.5


@pytest.mark.parametrize("columns", [1, 64])
@pytest.mark.parametrize("entry", [0, FORMAT.largest_entry])
def test_every_slot_of_a_reply_is_masked_whatever_it_holds(
    owner: CkksOwner, evaluator: CkksEvaluator, columns: int, entry: int
) -> None:
    matrix = np.full((ROWS, columns), entry)
    encrypted = owner.encrypt(VALUES)
    reply = evaluator.masked_product(encrypted, evaluator.prepare(matrix)).ciphertext
    slots = decrypted(owner, reply)
    expected = 2.0**ckks.MASK_BITS * (ckks.DEGREE / 2 / 3) ** 0.5
    for part in (slots.real, slots.imag):
        for half in (part[:2048], part[2048:]):
            # 6 standard deviations of each statistic, 4 x 2 x 4 of them: false alarm 7e-8
            assert abs(half.std() / expected - 1) < 6 / (2 * 2048) ** 0.5
            products = np.resize(VALUES / FORMAT.largest_value, 2048)
            correlation = np.corrcoef(half, products)[0, 1]
            assert abs(correlation) < 6 / 2048**0.5


def test_released_sums_are_flooded_afresh_and_rounded(
    owner: CkksOwner, evaluator: CkksEvaluator
) -> None:
    reply = evaluator.masked_product(owner.encrypt(VALUES), evaluator.prepare(MATRIX))
    released = [owner.decrypt(reply.ciphertext, 64) for _ in range(20)]
    layout = owner._layout
    assert layout.flood_bits == 8
    grid = 1 << (layout.flood_bits + layout.exponent - ckks.QUANTUM_BITS)
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
    sums = unmask(owner.decrypt(reply.ciphertext, ckks.SLOTS), reply.mask)
    slots = sums / (one_row.largest_value * one_row.largest_entry)
    np.testing.assert_allclose(slots, 1 / 3, atol=1e-5)
    # float64 at 2^56 alone would spoil the guess too, so the flooding has a test of its own
    guess, key = ckks_key_guess(encrypted, slots), ckks_key(owner, encrypted)
    assert shared_values(guess, key) == 0
    believed = ckks_slots(one_row, np.array([one_row.largest_value // 3]))
    np.testing.assert_allclose(believed, slots, atol=1e-5)
