"""What a key owner could read off BFV replies without each protection, and cannot.

The owner knows its secret key, and with it the phase c₀ + c₁·s of every ciphertext, and the noise e
of its own inputs, which it may choose.
"""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.attacks.ciphertexts import secret_from_crafted_queries
from securevfl.crypto import bfv, bfv_core, bfv_parameters
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.bfv_core import BfvMultiplier, pack_reply, unpack_reply
from securevfl.crypto.bfv_parameters import CARRY_BITS, DEGREE, BfvParameters
from securevfl.crypto.fixed_point import shifted, unmask
from securevfl.crypto.inspection import BfvOpening, crafted_replies, owner_secret, with_noise
from securevfl.crypto.seal_codec import ciphertext_of
from securevfl.errors import CryptoError
from tests.ciphertexts import drawn, format_of, is_uniform
from tests.weakened import EncryptsNothing, MasksModuloT

ROWS, COLUMNS = 64, 16
FORMAT = format_of(ROWS, COLUMNS, 8.0, (16, 8), rounds=50)


@pytest.fixture(scope="module")
def owner() -> BfvOwner:
    return BfvOwner(FORMAT)


@pytest.fixture(scope="module")
def evaluator(owner: BfvOwner) -> BfvEvaluator:
    return BfvEvaluator(owner.public_bytes, FORMAT)


def numbers(seed: int) -> tuple[IntArray, IntArray]:
    return drawn(FORMAT, ROWS, COLUMNS, seed)


@pytest.fixture(scope="module")
def opening(owner: BfvOwner) -> BfvOpening:
    """What the owner can compute with its secret key."""
    return BfvOpening(FORMAT, owner_secret(owner))


@pytest.mark.parametrize("kind", [EncryptsNothing, BfvEvaluator])
def test_c1_on_the_wire_confirms_no_guess_of_the_matrix(
    owner: BfvOwner, opening: BfvOpening, kind: type[BfvEvaluator]
) -> None:
    """The owner repeats the multiplication with the X that it supposes, and compares c₁."""
    values, matrix = numbers(6)
    evaluator = kind(owner.public_bytes, FORMAT)
    prepared = evaluator.prepare(matrix)
    encrypted = owner.encrypt(values)
    reply = evaluator.masked_product(encrypted, prepared)
    masked = owner.decrypt(reply.ciphertext, COLUMNS)
    assert np.array_equal(unmask(masked, reply.mask, owner.modulus_bits), matrix.T @ values)
    (guess,) = opening.expected_c1(encrypted, matrix, evaluator)
    (sent,) = opening.replies(reply.ciphertext, COLUMNS)
    confirmed = np.count_nonzero(sent[1] == guess)
    # A coincidence has odds of 16384 in 2^48.
    assert confirmed == (sent[1].size if kind is EncryptsNothing else 0)


@pytest.mark.parametrize("rows", [600, 12000])
def test_openings_take_several_inputs_and_replies(rows: int) -> None:
    fmt = replace(FORMAT, rows=rows, columns=40)
    owner = BfvOwner(fmt)
    evaluator = EncryptsNothing(owner.public_bytes, fmt)
    generator = np.random.default_rng(12)
    values = generator.integers(-fmt.largest_value, fmt.largest_value + 1, rows)
    matrix = generator.integers(-fmt.largest_entry, fmt.largest_entry + 1, (rows, 40))
    parameters = BfvParameters.of(fmt)
    matrix[: parameters.chunk, : parameters.columns_per_reply] = 0  # a block without a product
    opening, encrypted = BfvOpening(fmt, owner_secret(owner)), owner.encrypt(values)
    assert len(opening.inputs(encrypted)) == opening.parameters.inputs > 1
    assert np.array_equal(opening.decrypted(encrypted)[:rows], values)
    reply = evaluator.masked_product(encrypted, evaluator.prepare(matrix)).ciphertext
    seen = opening.replies(reply, 40)
    assert len(seen) == opening.parameters.replies(40)
    for one, guess in zip(seen, opening.expected_c1(encrypted, matrix, evaluator), strict=True):
        assert np.array_equal(one[1], guess)
    nothing = opening.expected_c1(encrypted, np.zeros_like(matrix), evaluator)
    assert not np.any(nothing)


@pytest.mark.parametrize("kind", [MasksModuloT, BfvEvaluator])
@pytest.mark.parametrize("chosen", [False, True])
def test_noise_tells_no_matrix_even_if_its_owner_chose_it(
    owner: BfvOwner, opening: BfvOpening, kind: type[BfvEvaluator], chosen: bool
) -> None:
    """The owner knows X·e but for X, and may make it as large as what lies between plaintexts.

    It reads a row of X a reply in noise of its choice, and finds X in honest noise over 30 replies
    by least squares. Under masks modulo t the correlation with X is over 0.99. Sealed, it is that
    of 1024 independent numbers: beyond 0.16 once in 3 million.
    """
    evaluator = kind(owner.public_bytes, FORMAT)
    values, matrix = numbers(2)
    prepared, sizes = evaluator.prepare(matrix), owner._parameters
    noise = prod(owner._primes) * 9 // 20 // FORMAT.largest_entry >> sizes.plain_bits
    seen, equations = [], []
    for query in range(ROWS if chosen else 30):
        encrypted = owner.encrypt(values)
        if chosen:
            encrypted = with_noise(owner._parameters, encrypted, query, noise)
        else:
            equations.append(opening.noise_equations(encrypted, ROWS, COLUMNS))
        reply = evaluator.masked_product(encrypted, prepared)
        masked = owner.decrypt(reply.ciphertext, COLUMNS)
        # Nobody notices: the product is what it is without.
        assert np.array_equal(unmask(masked, reply.mask, owner.modulus_bits), matrix.T @ values)
        seen.append(opening.reply_noise(reply.ciphertext, COLUMNS)[0])
    if chosen:
        read = np.stack(seen)[:, :COLUMNS].T
    else:
        read = np.linalg.lstsq(np.vstack(equations), np.concatenate(seen), rcond=None)[0]
    correlation = float(np.corrcoef(read.ravel(), matrix.T.ravel())[0, 1])
    assert correlation > 0.99 if kind is MasksModuloT else abs(correlation) < 0.16


@pytest.mark.parametrize("kind", [MasksModuloT, BfvEvaluator])
def test_what_the_owner_decrypts_is_uniform_modulo_q_at_every_coefficient(
    owner: BfvOwner, opening: BfvOpening, kind: type[BfvEvaluator]
) -> None:
    """Of one input and one X, columns and fillers. Chi-square over 16 bins, false alarm 1e-6.

    Of the range of q, and between two plaintexts.
    """
    evaluator = kind(owner.public_bytes, FORMAT)
    values, matrix = numbers(9)
    prepared, encrypted = evaluator.prepare(matrix), owner.encrypt(values)
    positions, phases = owner._parameters.positions(COLUMNS), []
    modulus = prod(owner._primes)
    for _ in range(30):
        reply = evaluator.masked_product(encrypted, prepared).ciphertext
        (polynomials,) = opening.replies(reply, COLUMNS)
        level = owner._parameters.reply_level()
        phase, of_reply = opening.phase(ciphertext_of(opening.context, level, polynomials))
        assert of_reply == modulus
        phases.append(phase[positions])
    drawn = np.stack(phases)
    assert len(set(drawn.ravel())) == drawn.size
    for group in (drawn[:, :COLUMNS], drawn[:, COLUMNS:]):
        assert is_uniform(group * 16 // modulus, 16)
        between = (group << owner._parameters.plain_bits) % modulus
        assert is_uniform(between * 16 // modulus, 16) == (kind is BfvEvaluator)


def test_coefficients_of_c0_that_nobody_needs_are_not_sent(
    owner: BfvOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = BfvEvaluator(owner.public_bytes, FORMAT, native=False)
    made = []

    def kept(
        parameters: BfvParameters, polynomials: RingArray, positions: NDArray[np.int64]
    ) -> bytes:
        made.append(polynomials)
        return pack_reply(parameters, polynomials, positions)

    monkeypatch.setattr(bfv_core, "pack_reply", kept)
    values, matrix = numbers(8)
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(matrix)).ciphertext
    (polynomials,) = made
    positions = owner._parameters.positions(COLUMNS)
    assert len(positions) == 48
    sent = unpack_reply(owner._parameters, reply, positions)
    assert np.array_equal(sent[1], polynomials[1])
    assert np.array_equal(sent[0][:, positions], polynomials[0][:, positions])
    # Nothing else of c₀ reaches the bytes.
    others = np.setdiff1d(np.arange(DEGREE), positions)
    assert np.all(polynomials[0][:, others] != 0)
    polynomials[0][:, others] = 0
    assert pack_reply(owner._parameters, polynomials, positions) == reply


def test_a_blinder_of_a_product_that_failed_is_gone(owner: BfvOwner) -> None:
    evaluator = BfvEvaluator(owner.public_bytes, FORMAT, native=False)
    other = replace(FORMAT, value_fraction_bits=20)
    foreign = BfvEvaluator(BfvOwner(other).public_bytes, other, native=False)
    values, matrix = numbers(10)
    assert evaluator.make_blinder()
    prepared = evaluator.prepare(matrix)
    broken = replace(prepared, plaintexts=foreign.prepare(matrix).plaintexts)
    with pytest.raises(CryptoError):
        evaluator.masked_product(owner.encrypt(values), broken)
    assert evaluator.lacks_blinders(prepared)


def test_a_blinder_is_used_once(owner: BfvOwner) -> None:
    evaluator = BfvEvaluator(owner.public_bytes, FORMAT)
    values, matrix = numbers(3)
    prepared = evaluator.prepare(matrix)
    assert evaluator.lacks_blinders(prepared)
    assert evaluator.make_blinder()
    assert not evaluator.lacks_blinders(prepared)
    assert not evaluator.make_blinder()
    encrypted = owner.encrypt(values)
    first, second = (evaluator.masked_product(encrypted, prepared) for _ in range(2))
    assert evaluator.lacks_blinders(prepared)
    assert not np.any(first.mask == second.mask)
    assert first.ciphertext != second.ciphertext


def test_an_encryption_of_zero_is_used_once() -> None:
    owner = BfvOwner(FORMAT)
    values, _ = numbers(4)
    assert owner.lacks_blinders()
    assert owner.make_blinder()
    assert not owner.lacks_blinders()
    assert not owner.make_blinder()
    first, second = owner.encrypt(values), owner.encrypt(values)
    assert owner.lacks_blinders()
    assert first[-64:] != second[-64:]  # the seeds of c₁
    assert first[:1000] != second[:1000]


# Evaluators that do not follow the protocol

CHEATED = format_of(ROWS, COLUMNS, 8.0, (20, 14), rounds=50)


def test_evaluators_that_pool_read_the_key_in_turns() -> None:
    owner = BfvOwner(CHEATED)
    queries = list(crafted_replies(CHEATED, [COLUMNS, COLUMNS // 2]))
    assert [len(places) for _, places in queries[:3]] == [COLUMNS, COLUMNS // 2, COLUMNS]
    secret = secret_from_crafted_queries(queries, owner.decrypt, owner.modulus_bits, DEGREE)
    assert np.array_equal(secret, owner_secret(owner))
    assert len(queries) // 2 < len(list(crafted_replies(CHEATED, [COLUMNS])))


def test_a_value_has_room_for_two_residuals_of_a_cheats_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column of 1 and 2^(value bits + 2), past the evaluator's own check of its entries."""
    monkeypatch.setattr(bfv, "require_matrix", lambda matrix, product_format: None)
    owner, place = BfvOwner(CHEATED), np.arange(COLUMNS)
    values = np.random.default_rng(13).integers(-(1 << 20), 1 << 20, ROWS)
    matrix = np.zeros((ROWS, COLUMNS), np.int64)
    matrix[place, place], matrix[COLUMNS + place, place] = 1, 1 << 22
    evaluator = BfvEvaluator(owner.public_bytes, CHEATED)
    # In the key's own t, which holds such entries.
    BfvMultiplier.__init__(evaluator, owner.public_bytes, owner._parameters, 1)
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(matrix))
    seen = unmask(owner.decrypt(reply.ciphertext, COLUMNS), reply.mask, owner.modulus_bits)
    upper = (seen + (1 << 21)) >> 22
    assert np.array_equal(seen - (upper << 22), values[:COLUMNS])
    assert np.array_equal(upper, values[COLUMNS : 2 * COLUMNS])


class Remembers(BfvEvaluator):
    """Keeps its masks modulo the primes, as an evaluator may."""

    @override
    def _mask(self, count: int) -> tuple[RingArray, RingArray]:
        self.residues, share = super()._mask(count)
        return self.residues, share


@pytest.mark.parametrize("carry_bits", [-8, CARRY_BITS])
def test_an_evaluator_sees_no_carry_and_so_no_noise(
    carry_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its share and the owner's are off by has the sign of noise that holds the owner's key.

    Where one prime of 56 bits would do to decrypt, that is so in several of a hundred numbers.
    """
    monkeypatch.setattr(bfv_parameters, "CARRY_BITS", carry_bits)
    owner = BfvOwner(CHEATED)
    evaluator = Remembers(owner.public_bytes, CHEATED)
    opening = BfvOpening(CHEATED, owner_secret(owner))
    values, matrix = drawn(CHEATED, ROWS, COLUMNS, 14)
    prepared, positions = evaluator.prepare(matrix), owner._parameters.positions(COLUMNS)
    off, noise = [], []
    for _ in range(100):  # without room, some fifty carries: ten are asked for
        reply = evaluator.masked_product(owner.encrypt(values), prepared)
        shares = owner.decrypt(reply.ciphertext, COLUMNS) - reply.mask
        found = unmask(shares, np.zeros(COLUMNS, np.uint64), owner.modulus_bits)
        assert np.array_equal(found, matrix.T @ values)
        off.append((shares - shifted(found, owner.modulus_bits)).view(np.int64))
        (polynomials,) = opening.replies(reply.ciphertext, COLUMNS)
        primes = owner._primes[: len(evaluator.residues)]
        for c0, part, prime in zip(polynomials[0], evaluator.residues, primes, strict=True):
            c0[positions] = (c0[positions] + np.uint64(prime) - part) % np.uint64(prime)
        noise.append(opening.noise_of(polynomials)[positions[:COLUMNS]])
    seen = np.concatenate(off)
    carried = seen != 0
    if carry_bits == CARRY_BITS:
        assert not carried.any()
    else:
        assert np.count_nonzero(carried) >= 10
        assert np.array_equal(np.sign(seen[carried]), np.sign(np.concatenate(noise)[carried]))
