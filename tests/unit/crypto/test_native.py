"""Products in C against SEAL and against exact numbers, word for word, on both paths."""

import os
from collections.abc import Callable
from math import prod

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.arrays import RingArray
from securevfl.crypto import native
from securevfl.crypto.bfv_parameters import BfvSizes
from securevfl.crypto.native import (
    DEGREE,
    LARGEST_ENTRY,
    TRANSFORM_PRIMES,
    Arithmetic,
    Missing,
    library,
)
from securevfl.crypto.native_products import _agrees
from securevfl.crypto.residues import pack, unpack
from securevfl.crypto.seal_codec import SEED_START, ciphertext_of, from_seeded, polynomials_of
from securevfl.errors import CryptoError, RangeExceeded

missing = isinstance(native.found(), Missing)
pytestmark = pytest.mark.skipif(missing, reason=f"not compiled: {native.found()}")
PATHS = [False] if missing or not library().has_vector else [False, True]
# 2^64 modulo these is large, so that SEAL rejects one word in 33 and in 19.
REJECTING = (1117984489315614721, 1091523317970534401)
SIZES = BfvSizes(20, (60, 56, 52), 3)


def context_of(*primes: int) -> seal.SEALContext:
    """With these data primes, and one more."""
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(
        [*map(seal.Modulus, primes), *seal.CoeffModulus.Create(DEGREE, [30])]
    )
    parameters.set_plain_modulus(seal.Modulus(1 << 20))
    return seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.NONE)


@pytest.mark.parametrize("vector", PATHS)
def test_transforms_are_seals_and_lead_back(vector: bool) -> None:
    drawn, top = np.random.default_rng(1), (1 << 31) - 1
    odd = np.arange(DEGREE) % 2 == 1
    cases = [
        *drawn.integers(-top - 1, top, (3, DEGREE), endpoint=True),
        np.full(DEGREE, top),
        np.full(DEGREE, -top - 1),
        np.where(odd, top, -top - 1),
        np.eye(1, DEGREE, 5)[0],
    ]
    context, of = context_of(*TRANSFORM_PRIMES), library().of
    evaluator = seal.Evaluator(context)
    for case in cases:
        integers = case.astype(np.int64)
        residues = np.stack([(integers % p).astype(np.uint64) for p in TRANSFORM_PRIMES])
        both = ciphertext_of(context, context.first_parms_id(), np.stack([residues, residues]))
        evaluator.transform_to_ntt_inplace(both)
        for number, expected in enumerate(polynomials_of(both)[0]):
            room, (found, again) = native.cells(2, DEGREE), np.empty((2, DEGREE), np.uint64)
            library().call(
                "transform", number, vector, of("int32_t", integers.astype(np.int32)),
                *(of("uint64_t", each, out=True) for each in (room, found, again)),
            )  # fmt: skip
            assert np.array_equal(found, expected)
            prime = TRANSFORM_PRIMES[number]
            assert np.array_equal(again, (residues[number].astype(object) * DEGREE) % prime)


@pytest.mark.parametrize("vector", PATHS)
def test_seeds_expand_as_seal_does_rejected_words_as_well(vector: bool) -> None:
    context, moduli = context_of(*REJECTING), np.array(REJECTING, np.uint64)
    for _ in range(4):
        seed, found = os.urandom(64), np.empty((2, DEGREE), np.uint64)
        of = library().of
        library().call(
            "expand", of("uint8_t", seed), of("uint64_t", moduli), 2, vector,
            of("uint64_t", found, out=True),
        )  # fmt: skip
        expanded = from_seeded(context, np.zeros((2, DEGREE), np.uint64), SEED_START + seed)
        assert np.array_equal(found, polynomials_of(expanded)[1])


@pytest.mark.parametrize("vector", PATHS)
@pytest.mark.parametrize("transforms", [2, 3])
def test_products_have_seals_words(transforms: int, vector: bool) -> None:
    assert _agrees(transforms, vector=vector)


def alone(arithmetic: Arithmetic, sums: RingArray, masks: RingArray) -> RingArray:
    """Words of a reply with these masks and no encryption of zero, (2, primes, DEGREE)."""
    zero = np.zeros((2, len(SIZES.prime_bits), DEGREE), np.uint64)
    reply, found, at = arithmetic.reply(sums, zero, masks, np.arange(DEGREE)), [], 0
    for bits in SIZES.prime_bits:
        for _ in range(2):
            end = at + DEGREE * bits // 8
            found.append(unpack(reply[at:end], DEGREE, bits))
            at = end
    return np.array(found).reshape(-1, 2, DEGREE).swapaxes(0, 1)[::-1]


@pytest.mark.parametrize("vector", PATHS)
@pytest.mark.parametrize("transforms", [2, 3])
@pytest.mark.parametrize("chunks", [1, 8, 9, 33])
def test_the_largest_sums_are_exact(chunks: int, transforms: int, vector: bool) -> None:
    """Residues p − 1 times entries ±b throughout: coefficient i is ±(2i + 2 − N)·(p − 1)·b a chunk.

    Two transforms have just room for it. Blocks of 8 chunks are reduced together.
    """
    primes = SIZES.primes()
    most = chunks * DEGREE * max(primes)
    bound = (prod(TRANSFORM_PRIMES[:2]) - 1) // 2 // most if transforms == 2 else LARGEST_ENTRY
    assert 0 < bound <= LARGEST_ENTRY
    arithmetic = Arithmetic(primes, 3, SIZES.prime_bits, most * bound, vector=vector)
    assert arithmetic._own[1] == transforms
    words = np.array([[np.full(DEGREE, p - 1, np.uint64) for p in primes]] * 2)
    inputs = arithmetic.inputs(1)
    arithmetic.take_words(words, inputs[0])
    every = np.ascontiguousarray(np.broadcast_to(inputs[:, None], (chunks, 1, *inputs.shape[1:])))
    by_index, sums = 2 * np.arange(DEGREE).astype(object) + 2 - DEGREE, arithmetic.sums(2)
    for own, sign in zip(sums, (1, -1), strict=True):
        rows = np.full((1, chunks * DEGREE), sign * bound, np.int32)
        arithmetic.multiply(rows, DEGREE, 0, every, own[None])
        masks = np.array([np.full(DEGREE, p - 1, np.uint64) for p in primes])
        (c0, c1) = alone(arithmetic, own, masks)
        for k, p in enumerate(primes):
            expected = by_index * (sign * chunks * (p - 1) * bound)
            assert np.array_equal(c1[k], expected % p)
            assert np.array_equal(c0[k], (expected - 1) % p)


def test_sums_that_all_transforms_cannot_hold_are_refused() -> None:
    limit = (prod(TRANSFORM_PRIMES) - 1) // 2
    Arithmetic(SIZES.primes(), 3, SIZES.prime_bits, limit, vector=False)
    with pytest.raises(RangeExceeded, match="143 bits"):
        Arithmetic(SIZES.primes(), 3, SIZES.prime_bits, limit + 1, vector=False)


def test_words_that_are_no_residues_are_told() -> None:
    primes = SIZES.primes()
    arithmetic = Arithmetic(primes, 3, SIZES.prime_bits, 1 << 90, vector=PATHS[-1])
    room, seed = arithmetic.inputs(1), os.urandom(64)
    for k, p in enumerate(primes):
        for at in (0, 1, DEGREE - 1):
            for word, fits in ((p - 1, True), (p, False), ((1 << SIZES.prime_bits[k]) - 1, False)):
                residues = np.zeros((3, DEGREE), np.uint64)
                residues[k, at] = word
                packed = b"".join(map(pack, residues, SIZES.prime_bits))
                assert arithmetic.take_in(packed, seed, room[0]) == fits


@pytest.mark.parametrize(
    ("count", "kept", "bits"),
    [(3, 0, None), (3, 4, None), (3, 2, (60, 56)), (2, 2, (28, 56)), (2, 2, (60, 64)),
     (2, 2, (60, 54)), (2, 2, (60, 52)), (4, 2, None)],
)  # fmt: skip
def test_primes_that_c_has_no_room_for_are_refused(
    count: int, kept: int, bits: tuple[int, ...] | None
) -> None:
    primes = (SIZES.primes() * 2)[:count]
    with pytest.raises(CryptoError, match="primes of"):
        Arithmetic(primes, kept, bits or (60,) * count, 1 << 90, vector=False)


def test_sizes_that_do_not_fit_never_reach_c() -> None:
    arithmetic = Arithmetic(SIZES.primes(), 3, SIZES.prime_bits, 1 << 90, vector=False)
    size, room, sums = SIZES.input_bytes, arithmetic.inputs(1), arithmetic.sums(1)
    words, rows = np.zeros((2, 3, DEGREE), np.uint64), np.zeros((2, DEGREE), np.int32)
    masks, few = np.zeros((3, 4), np.uint64), np.arange(4)
    x, shift, out = np.zeros((3, 5)), np.ones(5), np.zeros((4, 5), np.int32)[1:3]  # with room

    def take_in(c0: int, seed: int, out: RingArray = room[0]) -> None:
        arithmetic.take_in(bytes(c0), bytes(seed), out)

    wrong: list[Callable[[], object]] = [  # those first that do no harm where nothing is checked
        lambda: take_in(size - 1, 64),
        lambda: take_in(size, 63),
        lambda: take_in(size, 64, room[0, :2]),
        lambda: arithmetic.take_words(words[:, :2], room[0]),
        lambda: arithmetic.multiply(rows, 0, 0, room[:, None], sums),
        lambda: arithmetic.multiply(rows, DEGREE, 0, room[:, None], sums),
        lambda: arithmetic.multiply(rows[:1], DEGREE, -1, room[:, None], sums),
        lambda: arithmetic.multiply(rows[:1], DEGREE, 0, room[:, None, :2], sums),
        lambda: arithmetic.multiply(rows[:1], DEGREE, 0, room[:, None], sums[:, :2]),
        lambda: arithmetic.reply(sums[0, :2], words, masks, few),
        lambda: arithmetic.reply(sums[0], words[:1], masks, few),
        lambda: arithmetic.reply(sums[0], words, masks[:2], few),
        lambda: arithmetic.reply(sums[0], words, masks, few + DEGREE - 3),
        lambda: arithmetic.reply(sums[0], words, masks[:, :3], few[:3]),
        lambda: arithmetic.reply(sums[0], words, masks, few - 1),
        lambda: library().combined(words[0], [1, 2], 0, 5),
        lambda: library().encode(x, (shift[:4], shift), 0, out, 0),
        lambda: library().encode(x, (shift, shift[:4]), 0, out, 0),
        lambda: library().encode(x[:, :1], (shift[:1],) * 2, 0, out, 0),
        lambda: library().encode(x[:, :2], (shift[:2],) * 2, 0, out, 3),
        lambda: library().encode(x[:, :2], (shift[:2],) * 2, 0, out, -1),
    ]
    for each in wrong:
        with pytest.raises(CryptoError, match=r"expected|rows of"):
            each()
    take_in(size, 64)
    arithmetic.multiply(rows[:1], DEGREE, 0, room[:, None], sums)
    assert arithmetic.reply(sums[0], words, masks, few + DEGREE - 4)


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (300, 37), (513, 3)])
def test_columns_in_fixed_point_are_those_of_numpy(shape: tuple[int, int]) -> None:
    drawn, (rows, columns) = np.random.default_rng(8), shape
    values = drawn.standard_normal(shape)
    values.flat[::3] = np.rint(values.flat[::3] * 8) / 8  # a half of a unit, up and down
    shift, scale = np.rint(drawn.uniform(-3, 3, columns)), drawn.uniform(0.5, 2, columns)
    out = np.full((columns, rows + 5), 7, np.int32)
    scale[0] = 1.0
    assert library().encode(values, (shift, scale), 2, out, 4)
    expected = np.rint((values - shift) / scale * 4)
    assert np.array_equal(out[:, 4:-1], expected.T)
    assert (out[:, :4] == 7).all()
    assert (out[:, -1] == 7).all()


@pytest.mark.parametrize("value", [2.0**31 - 0.5, -(2.0**31) - 0.6, 1e300, np.inf, np.nan])
def test_a_number_that_does_not_fit_in_fixed_point_is_told(value: float) -> None:
    values, out = np.zeros((20, 3)), np.zeros((3, 20), np.int32)
    scaling = np.zeros(3), np.ones(3)
    for fitting in (2.0**31 - 0.6, -(2.0**31) - 0.5):
        values[17, 1] = fitting
        assert library().encode(values, scaling, 0, out, 0)
        assert out[1, 17] == np.rint(fitting)
    values[17, 1] = value
    assert not library().encode(values, scaling, 0, out, 0)
