"""BFV's two ends: what they refuse, and what they share."""

from dataclasses import replace

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.arrays import IntArray
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.bfv_core import pack_reply, reply_bytes, unpack_reply
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.scheme import OpenEvaluator, ProductFormat
from securevfl.crypto.seal_codec import SEED_BYTES, _body, _framed, from_bytes, to_bytes
from securevfl.errors import CryptoError, KeyMismatch, RangeExceeded

ROWS, COLUMNS = 100, 200
FORMAT = ProductFormat(
    rows=ROWS,
    value_bound=1.0,
    matrix_bound=4.0,
    value_fraction_bits=18,
    matrix_fraction_bits=12,
    columns=COLUMNS,
    rounds=100,
)


@pytest.fixture(scope="module")
def owner() -> BfvOwner:
    return BfvOwner(FORMAT)


@pytest.fixture(scope="module")
def evaluator(owner: BfvOwner) -> BfvEvaluator:
    return BfvEvaluator(owner.public_bytes, FORMAT)


@pytest.fixture(scope="module")
def matrix() -> IntArray:
    largest = FORMAT.largest_entry
    return np.random.default_rng(1).integers(-largest, largest + 1, (ROWS, COLUMNS))


@pytest.fixture(scope="module")
def values() -> IntArray:
    largest = FORMAT.largest_value
    return np.random.default_rng(2).integers(-largest, largest + 1, ROWS)


def test_both_ends_fill_the_interfaces(owner: BfvOwner, evaluator: BfvEvaluator) -> None:
    assert isinstance(evaluator, OpenEvaluator)
    assert owner.key_bits is None
    assert len(owner.fingerprint) == 16
    assert owner.fingerprint != BfvOwner(FORMAT).fingerprint
    assert owner.modulus_bits == evaluator.modulus_bits


def test_bytes_are_what_the_parameters_say(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray
) -> None:
    parameters = owner._parameters
    encrypted = owner.encrypt(values)
    assert len(encrypted) == parameters.inputs * (parameters.input_bytes + SEED_BYTES)
    reply = evaluator.masked_product(encrypted, evaluator.prepare(matrix)).ciphertext
    bits = sum(parameters.reply_bits)
    revealed = len(parameters.positions(COLUMNS))
    assert len(reply) == parameters.replies(COLUMNS) * (8192 + revealed) * bits // 8


def test_hundreds_of_honest_replies_are_accepted(
    owner: BfvOwner, evaluator: BfvEvaluator, matrix: IntArray
) -> None:
    extreme = np.full(ROWS, FORMAT.largest_value)
    signs = np.where(matrix < 0, -FORMAT.largest_entry, FORMAT.largest_entry)
    prepared = evaluator.prepare(signs)
    expected = signs.T @ extreme
    for _ in range(100):
        reply = evaluator.masked_product(owner.encrypt(extreme), prepared)
        found = unmask(owner.decrypt(reply.ciphertext, COLUMNS), reply.mask, owner.modulus_bits)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (np.full(ROWS, FORMAT.largest_value + 1), "at most"),
        (np.zeros(ROWS + 1, np.int64), "rows"),
        (np.zeros((ROWS, 1), np.int64), "shape"),
        (np.zeros(ROWS), "int64"),
    ],
)
def test_values_beyond_the_format_are_refused(
    owner: BfvOwner, entries: IntArray, says: str
) -> None:
    with pytest.raises(RangeExceeded, match=says):
        owner.encrypt(entries)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (np.full((ROWS, 1), FORMAT.largest_entry + 1), "at most"),
        (np.zeros((ROWS, COLUMNS + 1), np.int64), "columns"),
        (np.zeros((ROWS + 1, 1), np.int64), "rows"),
    ],
)
def test_a_matrix_beyond_the_format_is_refused(
    evaluator: BfvEvaluator, entries: IntArray, says: str
) -> None:
    with pytest.raises(RangeExceeded, match=says):
        evaluator.prepare(entries)


def test_addends_beyond_the_format_or_the_columns_are_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray
) -> None:
    prepared, encrypted = evaluator.prepare(matrix[:, :2]), owner.encrypt(values)
    with pytest.raises(RangeExceeded, match="addends"):
        evaluator.partly_open_product(encrypted, prepared, np.zeros(3, np.int64))
    too_large = np.array([FORMAT.largest_product + 1])
    with pytest.raises(RangeExceeded, match="addends"):
        evaluator.partly_open_product(encrypted, prepared, too_large)


def test_what_another_scheme_prepared_is_refused(owner: BfvOwner, evaluator: BfvEvaluator) -> None:
    with pytest.raises(CryptoError, match="not BFV polynomials"):
        evaluator.masked_product(b"", object())
    with pytest.raises(CryptoError, match="not BFV polynomials"):
        evaluator.lacks_blinders(object())


@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 0), slice(1, None)])
def test_an_input_of_another_length_is_refused(
    owner: BfvOwner,
    evaluator: BfvEvaluator,
    values: IntArray,
    matrix: IntArray,
    cut: slice,
) -> None:
    with pytest.raises(CryptoError, match="bfv inputs"):
        evaluator.masked_product(owner.encrypt(values)[cut], evaluator.prepare(matrix))


def test_an_input_with_words_that_are_no_residues_is_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray
) -> None:
    encrypted = bytearray(owner.encrypt(values))
    encrypted[:100] = b"\xff" * 100
    with pytest.raises(KeyMismatch):
        evaluator.masked_product(bytes(encrypted), evaluator.prepare(matrix))


def test_an_input_with_a_damaged_seed_header_is_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray
) -> None:
    encrypted = bytearray(owner.encrypt(values))
    encrypted[-SEED_BYTES] ^= 0xFF
    with pytest.raises(KeyMismatch):
        evaluator.masked_product(bytes(encrypted), evaluator.prepare(matrix))


def test_a_reply_to_an_input_under_another_key_is_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray
) -> None:
    foreign = BfvOwner(FORMAT)
    reply = evaluator.masked_product(foreign.encrypt(values), evaluator.prepare(matrix))
    with pytest.raises(KeyMismatch, match="damaged, or was made under another key"):
        owner.decrypt(reply.ciphertext, COLUMNS)
    with pytest.raises(KeyMismatch, match="damaged"):
        foreign.decrypt(reply.ciphertext, COLUMNS)


@pytest.mark.parametrize("columns", [1, 2, 47, COLUMNS])
def test_a_reply_under_another_key_is_refused_however_few_columns_it_has(
    evaluator: BfvEvaluator, owner: BfvOwner, matrix: IntArray, values: IntArray, columns: int
) -> None:
    foreign = BfvOwner(FORMAT)
    prepared = evaluator.prepare(matrix[:, :columns])
    reply = evaluator.masked_product(owner.encrypt(values), prepared).ciphertext
    with pytest.raises(KeyMismatch):
        foreign.decrypt(reply, columns)


def test_a_damaged_c1_is_noticed_in_whichever_reply_it_is() -> None:
    fmt = replace(FORMAT, columns=3000, latency_ms=20.0)
    owner = BfvOwner(fmt)
    evaluator = BfvEvaluator(owner.public_bytes, fmt)
    matrix = np.ones((ROWS, 3000), np.int64)
    reply = evaluator.masked_product(
        owner.encrypt(np.ones(ROWS, np.int64)), evaluator.prepare(matrix)
    ).ciphertext
    count = owner._parameters.replies(3000)
    size = len(reply) // count
    assert count > 4  # more than are tested together
    owner.decrypt(reply, 3000)
    for index in range(count):
        damaged = bytearray(reply)
        damaged[index * size + 100 : index * size + 140] = bytes(40)
        with pytest.raises(KeyMismatch):
            owner.decrypt(bytes(damaged), 3000)


@pytest.mark.parametrize("columns", [0, -1, COLUMNS - 60, COLUMNS + 60])
def test_a_reply_with_another_number_of_columns_is_refused(
    owner: BfvOwner,
    evaluator: BfvEvaluator,
    values: IntArray,
    matrix: IntArray,
    columns: int,
) -> None:
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(matrix)).ciphertext
    with pytest.raises(CryptoError, match="expected"):
        owner.decrypt(reply if columns > 0 else reply[:0], columns)


@pytest.mark.parametrize(
    "material", [b"", b"no key", bytes(1000), b"\x5e\xa1\x10\x04\x03\x02\0\0" + bytes(100)]
)
def test_material_that_is_no_public_key_is_refused(material: bytes) -> None:
    with pytest.raises(CryptoError):
        BfvEvaluator(material, FORMAT)


def test_a_key_of_other_parameters_is_refused(owner: BfvOwner) -> None:
    other = ProductFormat(rows=ROWS, value_bound=1.0, matrix_bound=4.0, columns=COLUMNS)
    with pytest.raises(KeyMismatch):
        BfvEvaluator(owner.public_bytes, other)


def test_a_reply_without_c1_is_refused_although_it_has_no_noise(owner: BfvOwner) -> None:
    parameters = owner._parameters
    revealed = len(parameters.positions(COLUMNS))
    size = reply_bytes(parameters, revealed) * parameters.replies(COLUMNS)
    with pytest.raises(KeyMismatch, match="no c1"):
        owner.decrypt(bytes(size), COLUMNS)


def test_a_public_key_that_hides_nothing_is_refused(owner: BfvOwner) -> None:
    context = owner._context
    key = from_bytes(context, seal.PublicKey(), owner.public_bytes)
    word_bytes = 8 * 8192 * (len(owner._primes) + 1)
    body = bytearray(_body(to_bytes(key)))
    body[-word_bytes:] = bytes(word_bytes)
    transparent = b"".join(bytes(part) for part in _framed([bytes(body)]))
    with pytest.raises(KeyMismatch, match="encrypt nothing"):
        BfvEvaluator(transparent, FORMAT)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5, 9, 15])
def test_a_seed_in_another_frame_is_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray, at: int
) -> None:
    encrypted = bytearray(owner.encrypt(values))
    encrypted[at - SEED_BYTES] ^= 0x81
    with pytest.raises(KeyMismatch):
        evaluator.masked_product(bytes(encrypted), evaluator.prepare(matrix))


@pytest.mark.parametrize("generator", [0, 2, 3, 255])
def test_a_seed_for_another_generator_does_not_pass(
    owner: BfvOwner,
    evaluator: BfvEvaluator,
    values: IntArray,
    matrix: IntArray,
    generator: int,
) -> None:
    encrypted = bytearray(owner.encrypt(values))
    assert encrypted[16 - SEED_BYTES] == 1  # BLAKE2xb; 2 is SHAKE256
    encrypted[16 - SEED_BYTES] = generator
    with pytest.raises(KeyMismatch):
        owner.decrypt(
            evaluator.masked_product(bytes(encrypted), evaluator.prepare(matrix)).ciphertext,
            COLUMNS,
        )


@pytest.mark.parametrize("at", [0, 31, 63])
def test_a_reply_to_an_input_with_another_seed_is_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray, at: int
) -> None:
    encrypted = bytearray(owner.encrypt(values))
    encrypted[at - 64] ^= 1
    reply = evaluator.masked_product(bytes(encrypted), evaluator.prepare(matrix))
    with pytest.raises(KeyMismatch, match="damaged"):
        owner.decrypt(reply.ciphertext, COLUMNS)


def test_a_public_key_of_another_owner_makes_replies_that_are_refused(
    owner: BfvOwner, values: IntArray, matrix: IntArray
) -> None:
    foreign = BfvOwner(FORMAT)
    mixed = BfvEvaluator(foreign.public_bytes, FORMAT)
    reply = mixed.masked_product(owner.encrypt(values), mixed.prepare(matrix)).ciphertext
    for each in (owner, foreign):
        with pytest.raises(KeyMismatch, match="damaged"):
            each.decrypt(reply, COLUMNS)


def test_a_public_key_with_a_word_that_is_no_residue_is_refused(owner: BfvOwner) -> None:
    body = bytearray(_body(owner.public_bytes))
    body[-8:] = b"\xff" * 8
    with pytest.raises(KeyMismatch, match="PublicKey"):
        BfvEvaluator(b"".join(map(bytes, _framed([bytes(body)]))), FORMAT)


def test_a_secret_key_or_a_key_with_more_behind_it_is_refused(owner: BfvOwner) -> None:
    secret = to_bytes(seal.KeyGenerator(owner._context).secret_key())
    with pytest.raises(CryptoError):
        BfvEvaluator(secret, FORMAT)
    with pytest.raises(CryptoError):
        BfvEvaluator(owner.public_bytes + b"\0", FORMAT)


def test_words_of_a_reply_that_are_no_residues_are_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray
) -> None:
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(matrix)).ciphertext
    # c₁ comes first, the revealed c₀ last.
    for cut in (slice(0, 20), slice(-20, None)):
        damaged = bytearray(reply)
        damaged[cut] = b"\xff" * 20
        with pytest.raises(KeyMismatch, match="Ciphertext"):
            owner.decrypt(bytes(damaged), COLUMNS)


def test_other_random_words_in_c1_are_noticed(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray
) -> None:
    """Ten words: each of 40 replies passes less than once in 10^6.

    One bit, or one word, may change values without making noise: lines have to be authentic.
    """
    generator = np.random.default_rng(4)
    parameters, prime = owner._parameters, owner._primes[0]
    positions = parameters.positions(COLUMNS)
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(matrix)).ciphertext
    size = reply_bytes(parameters, len(positions))
    for _ in range(40):
        polynomials = unpack_reply(parameters, reply[:size], positions)
        places = generator.choice(DEGREE, 10, replace=False)
        polynomials[1, 0, places] = generator.integers(0, prime, 10, np.uint64)
        damaged = pack_reply(parameters, polynomials, positions) + reply[size:]
        with pytest.raises(KeyMismatch, match="damaged"):
            owner.decrypt(damaged, COLUMNS)


@pytest.mark.parametrize("odd", [0, 1])
def test_noise_is_noticed_at_every_other_place(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray, odd: int
) -> None:
    """7/16 of what lies between two plaintexts: too little to change what is decrypted."""
    parameters, prime = owner._parameters, owner._primes[0]
    assert parameters.reply_primes == 1
    positions = parameters.positions(COLUMNS)
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(matrix)).ciphertext
    size = reply_bytes(parameters, len(positions))
    polynomials = unpack_reply(parameters, reply[:size], positions)
    noise = (1 - 2 * odd) * (prime * 7 // 16 >> parameters.plain_bits)
    moved = polynomials[0, 0, positions[odd::2]].astype(object) + noise
    polynomials[0, 0, positions[odd::2]] = (moved % prime).astype(np.uint64)
    with pytest.raises(KeyMismatch, match="damaged"):
        owner.decrypt(pack_reply(parameters, polynomials, positions) + reply[size:], COLUMNS)


def test_a_matrix_prepared_for_other_parameters_is_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray
) -> None:
    for other in (replace(FORMAT, value_fraction_bits=22), replace(FORMAT, rows=4000)):
        foreign = BfvEvaluator(BfvOwner(other).public_bytes, other)
        with pytest.raises(CryptoError):
            evaluator.masked_product(owner.encrypt(values), foreign.prepare(matrix))


@pytest.mark.parametrize(
    "addend", [np.array([-(1 << 63)]), np.array([2.5]), np.array([[1, 2]]), np.array([True])]
)
def test_addends_that_are_no_numbers_of_the_ring_are_refused(
    owner: BfvOwner,
    evaluator: BfvEvaluator,
    values: IntArray,
    matrix: IntArray,
    addend: IntArray,
) -> None:
    with pytest.raises(RangeExceeded, match="addends"):
        evaluator.partly_open_product(owner.encrypt(values), evaluator.prepare(matrix), addend)


def test_a_matrix_prepared_for_other_bounds_is_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, values: IntArray, matrix: IntArray
) -> None:
    """The same ring and primes, but entries 16 times as large: flooding would fall short."""
    other = replace(FORMAT, matrix_bound=64.0, value_fraction_bits=14)
    foreign = BfvEvaluator(owner.public_bytes, other)
    with pytest.raises(CryptoError, match="another format"):
        evaluator.masked_product(owner.encrypt(values), foreign.prepare(matrix))
    with pytest.raises(CryptoError, match="another format"):
        evaluator.lacks_blinders(foreign.prepare(matrix))


def test_a_public_key_that_vanishes_in_rounding_is_refused(owner: BfvOwner) -> None:
    """c₁ = 1: of every encryption, c₁ falls with SEAL's own prime."""
    words = 8192 * (len(owner._primes) + 1)
    body = bytearray(_body(owner.public_bytes))
    body[-8 * words :] = np.ones(words, "<u8").tobytes()
    with pytest.raises(KeyMismatch, match="encrypt nothing"):
        BfvEvaluator(b"".join(map(bytes, _framed([bytes(body)]))), FORMAT)
