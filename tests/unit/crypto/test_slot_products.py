from math import log2, prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_core import unpack_reply
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.residues import packed_size, uniform_below
from securevfl.crypto.seal_codec import ciphertext_of
from securevfl.crypto.slot_parameters import PLAIN_BITS, SlotParameters, failure_probability
from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner
from securevfl.errors import CryptoError, RangeExceeded
from tests.ciphertexts import is_uniform
from tests.weakened import SlotMasksModuloT, SlotsEncryptNothing

PARAMETERS = SlotParameters.of(100_000)
LARGEST = 1 << 21


@pytest.fixture(scope="module")
def owner() -> SlotOwner:
    return SlotOwner(PARAMETERS)


@pytest.fixture(scope="module")
def evaluator(owner: SlotOwner) -> SlotEvaluator:
    return SlotEvaluator(owner.public_bytes, PARAMETERS)


def numbers(seed: int, count: int, largest: int = 256) -> IntArray:
    return np.random.default_rng(seed).integers(-largest, largest, (2, count), endpoint=True)


def products(first: IntArray, second: IntArray) -> IntArray:
    (u, v), (x, y) = first, second
    return np.stack([u * x - v * y, u * y + v * x])


@pytest.mark.parametrize(("count", "largest"), [(DEGREE, 256), (5, LARGEST)])
def test_shares_add_up_to_the_product(
    owner: SlotOwner, evaluator: SlotEvaluator, count: int, largest: int
) -> None:
    first, second = numbers(1, count, largest), numbers(2, count, largest)
    replies, shares = evaluator.multiply(owner.encrypt(second), first)
    others = owner.decrypt(replies, count)
    assert [len(reply) for reply in replies] == [PARAMETERS.reply_bytes] * 2
    found = (shares + others).view(np.int64) - products(first, second)
    # The largest products of all are beyond 2^-4 of p: a share of them may miss by p.
    wrong = np.abs(found) > 0
    assert set(np.abs(found[wrong]).tolist()) <= {PARAMETERS.plain_modulus}
    assert largest > 256 or not wrong.any()


def test_zeros_are_multiplied_too(owner: SlotOwner, evaluator: SlotEvaluator) -> None:
    zeros = np.zeros((2, 3), np.int64)
    replies, shares = evaluator.multiply(owner.encrypt(zeros), zeros)
    assert not (shares + owner.decrypt(replies, 3)).any()


def test_conversion_goes_wrong_as_often_as_it_says() -> None:
    modulus, part, count = PARAMETERS.plain_modulus, 1 << 40, 1 << 16
    masks = uniform_below(modulus, count)
    theirs = ((part - masks.astype(np.int64)) % modulus).astype(np.uint64)
    wrong = masks + theirs - np.uint64(modulus) != part
    expected = count * part / modulus
    assert 0.6 * expected < wrong.sum() < 1.5 * expected  # 256 ± 16
    assert failure_probability(1, part) >= 2**0.5 * part / modulus
    assert 2**PLAIN_BITS / modulus < 1 + 1e-6


@pytest.mark.parametrize("modulus", [2, 3, 1000, (1 << 47) + 1])
def test_uniform_integers_stay_below_and_reach_all(modulus: int) -> None:
    found = uniform_below(modulus, 20_000)
    assert found.max() < modulus
    bins = (found.astype(np.float64) * min(modulus, 16) / modulus).astype(int)
    assert len(np.unique(bins)) == min(modulus, 16)
    assert 16 < modulus <= 1 << 40 or is_uniform(bins, min(modulus, 16), 1e-9)


def test_what_is_no_pair_of_ciphertexts_is_refused(
    owner: SlotOwner, evaluator: SlotEvaluator
) -> None:
    encrypted, parts = owner.encrypt(numbers(3, 4)), numbers(4, 4)
    replies, _ = evaluator.multiply(encrypted, parts)
    with pytest.raises(CryptoError, match="1 replies, 2 of a complex number"):
        owner.decrypt(replies[:1], 4)
    with pytest.raises(CryptoError, match="1 ciphertexts, 2 of a complex number expected"):
        evaluator.multiply(encrypted[:1], parts)


@pytest.mark.parametrize("count", [1, 100_000, 10_000_000, 10**9])
def test_masks_hide_the_job_and_hardly_any_share_is_rounded_the_other_way(count: int) -> None:
    parameters = SlotParameters.of(count)
    revealed = 2 * DEGREE * -(-count // DEGREE)
    # Deviations of a sum of 2·DEGREE products of noise (deviation √10.5) and p/2 that is passed
    # once in 2^40 jobs, and rounding of half a unit each at its worst.
    sigmas = np.sqrt(2 * np.log(2.0**41 * revealed))
    noise = (sigmas * np.sqrt(2 * DEGREE * 10.5) + DEGREE) * 2.0 ** (PLAIN_BITS - 1)
    assert parameters.noise >= noise
    # Dropping primes adds the rounding of c₀ and of c₁, which meets the ternary key.
    switch = sigmas * np.sqrt((1 + DEGREE) / 12)
    primes = parameters.primes()
    of_reply = prod(primes[: parameters.reply_primes])
    assert 4 * revealed * parameters.plain_modulus << 40 <= of_reply
    on_the_wire = noise * of_reply / prod(primes) + switch
    assert 2 * on_the_wire * revealed * parameters.plain_modulus * 2.0**20 <= of_reply
    assert sum(parameters.prime_bits) + 30 <= 218
    assert parameters.context().parameters_set()
    assert parameters.edge == 0


def test_too_many_products_are_refused() -> None:
    with pytest.raises(RangeExceeded, match="do not fit"):
        SlotParameters.of(10**15)


def test_parts_that_p_cannot_hold_are_refused(owner: SlotOwner) -> None:
    wrongs: list[NDArray[Any]] = [
        np.array([[2 * LARGEST], [0]]),
        np.array([[0], [-2 * LARGEST - 1]]),
        np.zeros((2, 0), np.int64),
        np.zeros((2, DEGREE + 1), np.int64),
        np.zeros(2, np.int64),
        np.zeros((2, 2)),
    ]
    for wrong in wrongs:
        with pytest.raises(RangeExceeded):
            owner.encrypt(wrong)


class WithoutMasks(SlotEvaluator):
    """Lets the owner decrypt the products themselves."""

    @override
    def _mask(self, count: int) -> tuple[RingArray, RingArray]:
        return np.zeros((PARAMETERS.reply_primes, count), np.uint64), np.zeros(count, np.uint64)


@pytest.mark.parametrize("build", [SlotEvaluator, WithoutMasks])
def test_what_the_owner_decrypts_is_uniform(owner: SlotOwner, build: type[SlotEvaluator]) -> None:
    first, second = numbers(6, DEGREE), numbers(7, DEGREE)
    evaluator = build(owner.public_bytes, PARAMETERS)
    replies, _ = evaluator.multiply(owner.encrypt(second), first)
    seen = owner.decrypt(replies, DEGREE) + np.uint64(PARAMETERS.plain_modulus)
    modulus = PARAMETERS.plain_modulus
    # Beside each other, too: one mask for both parts would cancel.
    for words in (*seen, (seen[0] + np.uint64(modulus) - seen[1]) % np.uint64(modulus)):
        uniform = is_uniform(words >> np.uint64(PLAIN_BITS - 6), 64, 1e-9)
        assert uniform == (build is SlotEvaluator)
    # It would divide what it decrypts by its own numbers.
    decrypted = np.where(seen > modulus // 2, seen - np.uint64(modulus), seen).view(np.int64)
    quotient = (decrypted[0] + 1j * decrypted[1]) / (second[0] + 1j * second[1] + 1e-9)
    found = np.mean(np.rint(quotient.real) == first[0])
    assert found > 0.9 if build is WithoutMasks else found < 0.05


@pytest.mark.parametrize("build", [SlotEvaluator, SlotMasksModuloT])
def test_what_the_owner_decrypts_is_uniform_between_plaintexts(
    owner: SlotOwner, build: type[SlotEvaluator]
) -> None:
    """The phase modulo q'/p: the noise of the product, unless the mask covers it."""
    evaluator = build(owner.public_bytes, PARAMETERS)
    (reply, _), _ = evaluator.multiply(owner.encrypt(numbers(8, DEGREE)), numbers(9, DEGREE))
    everything = np.arange(DEGREE)
    polynomials = unpack_reply(PARAMETERS, reply, everything)
    level = PARAMETERS.reply_level()
    ciphertext = ciphertext_of(PARAMETERS.context(), level, polynomials)
    # SEAL's budget: log2 of the distance that is left of what lies between two plaintexts.
    left = owner._decryptor.invariant_noise_budget(ciphertext)
    distance = log2(prod(PARAMETERS.primes()[: PARAMETERS.reply_primes])) - PLAIN_BITS
    noise_bits = distance - 1 - left
    if build is SlotMasksModuloT:
        of_reply = prod(PARAMETERS.primes()[: PARAMETERS.reply_primes])
        assert noise_bits <= log2(PARAMETERS.noise * of_reply / prod(PARAMETERS.primes()) + 300)
    else:
        assert left == 0


@pytest.mark.parametrize("build", [SlotEvaluator, SlotsEncryptNothing])
def test_a_guess_is_not_confirmed_by_c1(owner: SlotOwner, build: type[SlotEvaluator]) -> None:
    """The owner knows its input, and would compute the reply's c₁ for the numbers it guesses."""
    evaluator = build(owner.public_bytes, PARAMETERS)
    encrypted, parts = owner.encrypt(numbers(10, 4)), numbers(11, 4)
    end = packed_size(DEGREE, PARAMETERS.reply_bits[0])
    sent, guessed = (evaluator.multiply(encrypted, parts)[0][0][:end] for _ in range(2))
    assert (sent == guessed) == (build is SlotsEncryptNothing)


def test_replies_in_slots_share_no_encryption_of_zero(
    owner: SlotOwner, evaluator: SlotEvaluator
) -> None:
    """(x + ix)·u for real u: both replies are of one product."""
    half, end = owner.encrypt(numbers(12, 4))[:1], packed_size(DEGREE, PARAMETERS.reply_bits[0])
    real = np.stack([np.full(DEGREE, 3), np.zeros(DEGREE, np.int64)])
    first, second = evaluator.multiply(half * 2, real)[0]
    assert first[:end] != second[:end]
