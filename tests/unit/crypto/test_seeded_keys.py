"""Public keys of SEAL from a seed: both halves, their noise, and what a chosen p₁ would read."""

from hashlib import sha256
from math import prod

import numpy as np
import pytest
import tenseal.sealapi as seal
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ckks, seeded_keys
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.bfv_core import inputs_of, unpack_reply
from securevfl.crypto.bfv_parameters import DEGREE, BfvParameters
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.masks import WordStream
from securevfl.crypto.native_key import fresh_blinder
from securevfl.crypto.residues import uniform_below
from securevfl.crypto.scheme import KEY_SEED_BYTES
from securevfl.crypto.seal_codec import ciphertext_of, coefficients_of, plaintext, polynomials_of
from securevfl.crypto.seeded_keys import expanded, make_public_bytes, public_key
from securevfl.errors import CryptoError, KeyMismatch
from tests.ciphertexts import drawn, format_of, is_centred_binomial, is_uniform

ROWS, COLUMNS = 64, 16
FORMAT = format_of(ROWS, COLUMNS, 8.0, (16, 8), rounds=50)
CONTEXTS = {"bfv": BfvParameters.of(FORMAT).context(), "ckks": ckks._context()[0]}
SEED = bytes(range(KEY_SEED_BYTES))


@pytest.fixture(params=CONTEXTS)
def context(request: pytest.FixtureRequest) -> seal.SEALContext:
    return CONTEXTS[request.param]


def primes_of(context: seal.SEALContext) -> list[int]:
    return [each.value() for each in context.key_context_data().parms().coeff_modulus()]


def test_the_expansion_is_the_documented_one_for_ever() -> None:
    """A prime for which about half of the words are replaced, and those of ckks."""
    primes, degree = [(1 << 32) + 15, *primes_of(CONTEXTS["ckks"])], 100
    cipher = Cipher(ChaCha20(SEED, bytes(16)), mode=None).encryptor()

    def words(count: int) -> list[int]:
        return list(np.frombuffer(cipher.update(bytes(8 * count)), "<u8").tolist())

    by_hand = []
    for prime in primes:
        cut = 1 << prime.bit_length()
        row = [word % cut for word in words(degree)]
        while beyond := [at for at, word in enumerate(row) if word >= prime]:
            for at, word in zip(beyond, words(len(beyond)), strict=True):
                row[at] = word % cut
        by_hand.append(row)
    assert expanded(SEED, primes, degree).tolist() == by_hand
    digest = sha256(expanded(SEED, primes, DEGREE).astype("<u8").tobytes()).hexdigest()
    assert digest == "3902241072c9e7ec80a7ed22092883c2d3ed88f2ed4142867382d207c56d8e4d"


def test_residues_are_uniform_to_both_ends() -> None:
    stream = WordStream(SEED)
    for modulus in (3, 5):
        assert is_uniform(uniform_below(modulus, 30_000, stream.words), modulus)
    prime = (1 << 32) + 15  # of 33 bits: without rejection the lower half would be hit twice
    (found,) = expanded(SEED, [prime], 1 << 16)
    assert found.max() < prime
    assert is_uniform(found * np.uint64(64) // np.uint64(prime), 64)


@pytest.mark.parametrize("seed", [b"", SEED[1:], SEED + b"\0"])
def test_seeds_of_another_length_are_refused(seed: bytes) -> None:
    with pytest.raises(CryptoError, match=r"a seed of \d+ bytes, 32"):
        BfvOwner(FORMAT, seed)


def noise_of(context: seal.SEALContext, key: seal.PublicKey, secret: seal.SecretKey) -> IntArray:
    """p₀ + p₁·s, the same modulo every prime."""
    around, level = seeded_keys._with_key_level(context), context.key_parms_id()
    evaluator = seal.Evaluator(around)
    first, second = (
        ciphertext_of(around, level, np.stack([np.zeros_like(each), each]), ntt=True)
        for each in polynomials_of(key.data())
    )
    evaluator.multiply_plain_inplace(second, secret.data())
    evaluator.add_inplace(second, first)
    evaluator.transform_from_ntt_inplace(second)
    rows = zip(polynomials_of(second)[1].astype(np.int64), primes_of(context), strict=True)
    first_row: IntArray
    first_row, *others = [np.where(row > prime // 2, row - prime, row) for row, prime in rows]
    assert all(np.array_equal(first_row, row) for row in others)
    return first_row


@pytest.mark.parametrize("made_by_seal", [True, False])
def test_a_key_fits_its_secret_with_seals_noise(
    context: seal.SEALContext, made_by_seal: bool
) -> None:
    generator = seal.KeyGenerator(context)
    if made_by_seal:
        key = seal.PublicKey()
        generator.create_public_key(key)
    else:
        key = public_key(context, make_public_bytes(context, generator.secret_key(), SEED))
        p1 = expanded(SEED, primes_of(context), DEGREE)
        assert np.array_equal(polynomials_of(key.data())[1], p1)
    noise = noise_of(context, key, generator.secret_key())
    assert np.abs(noise).max() <= 21
    assert is_centred_binomial(noise)
    foreign = seal.KeyGenerator(context).secret_key()
    with pytest.raises(AssertionError):
        noise_of(context, key, foreign)


def test_seal_decrypts_what_was_encrypted_under_it() -> None:
    context, plain = CONTEXTS["bfv"], seal.Plaintext()
    generator = seal.KeyGenerator(context)
    decryptor = seal.Decryptor(context, generator.secret_key())
    seals, numbers = seal.PublicKey(), np.arange(DEGREE, dtype=np.uint64)
    generator.create_public_key(seals)
    own = public_key(context, make_public_bytes(context, generator.secret_key()))
    budgets = []
    for key in (own, seals):
        encrypted = seal.Ciphertext()
        seal.Encryptor(context, key).encrypt(plaintext(context, numbers), encrypted)
        budgets.append(decryptor.invariant_noise_budget(encrypted))
        decryptor.decrypt(encrypted, plain)
        assert np.array_equal(coefficients_of(plain, np.arange(DEGREE)), numbers)
    assert abs(budgets[0] - budgets[1]) <= 1


def test_a_key_has_fresh_noise_and_by_default_a_seed_of_its_own() -> None:
    one, other, *rest = (BfvOwner(FORMAT, seed).public_bytes for seed in (SEED, SEED, None, None))
    assert one[:KEY_SEED_BYTES] == other[:KEY_SEED_BYTES] == SEED
    assert one[KEY_SEED_BYTES:] != other[KEY_SEED_BYTES:]
    assert len({each[:KEY_SEED_BYTES] for each in (one, *rest)}) == 3


def test_keys_of_other_parameters_are_refused_even_with_the_same_primes() -> None:
    sizes = BfvParameters.of(FORMAT)
    other = sizes.context(sizes.plain_bits - 1)
    data = make_public_bytes(other, seal.KeyGenerator(other).secret_key())
    with pytest.raises(KeyMismatch, match="PublicKey of these parameters expected"):
        BfvEvaluator(data, FORMAT)


@pytest.mark.parametrize(("chosen", "engine"), [(True, "seal"), (False, "seal"), (True, "native")])
def test_an_owner_that_chose_p1_would_read_the_matrix_from_one_reply(
    chosen: bool, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p₁ a multiple of SEAL's special prime, zero in all places but one of its transform.

    Of every c₁ = p₁·u + e₁ + a·X of SEAL's, e₁ is rounded away with the special prime, and p₁·u has
    one place. The owner divides by a in all others, and finds the number in this one as it knows a
    coefficient where X is 0. Products in C have no special prime, and keep e₁.
    """
    if chosen:

        def one_place(_: bytes, primes: list[int], degree: int) -> RingArray:
            p1 = np.zeros((len(primes), degree), np.uint64)
            p1[:-1, 0] = 1
            return p1

        monkeypatch.setattr(seeded_keys, "expanded", one_place)
    owner = BfvOwner(FORMAT)
    evaluator = BfvEvaluator(owner.public_bytes, FORMAT, native=engine == "native")
    if evaluator.engine != engine:
        pytest.skip("not compiled")
    values, matrix = drawn(FORMAT, ROWS, COLUMNS, 3)
    encrypted, sizes = owner.encrypt(values), owner._parameters
    assert sizes.reply_primes == len(owner._primes)
    assert sizes.columns_per_reply > COLUMNS
    reply = evaluator.masked_product(encrypted, evaluator.prepare(matrix))
    masked = owner.decrypt(reply.ciphertext, COLUMNS)
    # Nobody notices: the product is what it is with an honest key.
    assert np.array_equal(unmask(masked, reply.mask, owner.modulus_bits), matrix.T @ values)

    (sent,) = inputs_of(sizes, owner._context, encrypted)
    c1 = unpack_reply(sizes, reply.ciphertext, sizes.positions(COLUMNS))[1]
    read = divided(owner, c1, polynomials_of(sent)[1])
    side = sizes.chunk * COLUMNS
    found = read[:side].reshape(COLUMNS, sizes.chunk)[:, ::-1][:, :ROWS].T
    assert np.count_nonzero(found == matrix) == (matrix.size if chosen and engine == "seal" else 0)


def divided(owner: BfvOwner, c1: RingArray, a: RingArray) -> IntArray:
    """c₁/a but for place 0 of the transform, with 0 as the last coefficient."""
    context, (prime, *_) = owner._context, owner._primes
    evaluator, level = seal.Evaluator(context), context.first_parms_id()
    both = ciphertext_of(context, level, np.stack([c1, a]))
    evaluator.transform_to_ntt_inplace(both)
    above, below = (row.tolist() for row in polynomials_of(both)[:, 0])
    ratio = np.zeros((2, *c1.shape), np.uint64)
    ratio[0, 0] = [y * pow(x, -1, prime) % prime for x, y in zip(below, above, strict=True)]
    ratio[:, 0, 0] = 0, 1  # the unknown place is left out, and is a polynomial by itself
    found = ciphertext_of(context, level, ratio, ntt=True)
    evaluator.transform_from_ntt_inplace(found)
    rest, unknown = polynomials_of(found)[:, 0].astype(object)
    factor = -rest[-1] * pow(int(unknown[-1]), -1, prime)
    numbers = ((rest + factor * unknown) % prime).astype(np.int64)
    signed: IntArray = np.where(numbers > prime // 2, numbers - prime, numbers)
    return signed


@pytest.mark.parametrize("learns", [True, False])
def test_an_owner_that_chose_p0_reads_u_of_products_that_it_learns(
    learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """e = Σ 3ⁱxⁱ, scaled to plaintexts: a product of 0 is −e·u, whose digits are those of u."""
    fmt = format_of(8, 1024, 8.0, (16, 8), opened=True)
    sizes = BfvParameters.of(fmt)
    powers = [3**i << (sizes.plain_bits - 16) for i in range(sizes.chunk)]
    assert (sizes.chunk, sizes.replies(1024)) == (8, 1)

    def noise(primes: list[int], degree: int) -> RingArray:
        unit = prod(sizes.primes()) >> sizes.plain_bits
        own = [[unit * each % p for each in powers] for p in primes]
        return np.pad(np.array(own, np.uint64), ((0, 0), (0, degree - sizes.chunk)))

    monkeypatch.setattr(seeded_keys, "_noise", noise)
    owner = BfvOwner(fmt)
    evaluator = BfvEvaluator(owner.public_bytes, fmt)
    if evaluator.engine == "seal":
        pytest.skip("u is SEAL's")
    u, of_c0_c1 = fresh_blinder()
    monkeypatch.setattr(evaluator._pool, "take", lambda: (u, of_c0_c1))
    _, matrix = drawn(fmt, 8, 1024, 4)
    reply = evaluator.masked_product(
        owner.encrypt(np.zeros(8, np.int64)), evaluator.prepare(matrix)
    )
    mask = reply.mask if learns else np.zeros_like(reply.mask)
    numbers = (mask - owner.decrypt(reply.ciphertext, 1024)).view(np.int64)
    # Σ 3ⁱ·u at place j − i, in the highest 16 bits.
    left, found = (numbers >> 47) + 1 >> 1, np.empty((1024, 8), np.int64)
    for digits in found.T:
        digits[:] = (left + 1) % 3 - 1
        left = (left - digits) // 3
    read = np.count_nonzero(found[:, ::-1].reshape(-1) == u[::-1])
    assert read == DEGREE if learns else read < 0.4 * DEGREE
