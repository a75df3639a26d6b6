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
    LARGEST_PLAIN,
    LARGEST_WIDE,
    TRANSFORM_PRIMES,
    Arithmetic,
    Missing,
    library,
)
from securevfl.crypto.native_key import NativeKey, fresh_blinder
from securevfl.crypto.native_products import Layout, _agrees, _opens, chosen
from securevfl.crypto.residues import pack, uniform_below, unpack
from securevfl.crypto.seal_codec import (
    SEED_START,
    ciphertext_of,
    coefficients_of,
    from_seeded,
    polynomials_of,
)
from securevfl.crypto.seeded_keys import ternary_of
from securevfl.crypto.slot_parameters import SlotParameters
from securevfl.errors import CryptoError, RangeExceeded
from tests.ciphertexts import is_centred_binomial, is_uniform

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


@pytest.mark.parametrize("vector", PATHS)
def test_seal_decrypts_what_is_encrypted_here_and_the_other_way_round(vector: bool) -> None:
    assert _opens(vector=vector)


@pytest.mark.parametrize("vector", PATHS)
def test_slots_are_seals(vector: bool) -> None:
    context, prime = SlotParameters.of(1).context(), TRANSFORM_PRIMES[0]
    encoder, plain = seal.BatchEncoder(context), seal.Plaintext()
    for slots in (
        uniform_below(prime, DEGREE),
        np.full(DEGREE, prime - 1, np.uint64),
        np.where(np.arange(DEGREE) % 2, 0, prime - 1).astype(np.uint64),
        np.arange(DEGREE, dtype=np.uint64) + np.uint64((prime - DEGREE) // 2),
    ):
        encoder.encode(slots.tolist(), plain)
        polynomial = coefficients_of(plain, np.arange(DEGREE))
        assert np.array_equal(native.of_slots(slots, vector=vector), polynomial)
        assert np.array_equal(native.to_slots(polynomial, vector=vector), slots)


@pytest.mark.parametrize("vector", PATHS)
def test_every_encryption_of_zero_has_noise_of_its_own(vector: bool) -> None:
    """c₀ less that without noise: 2^16 samples by chi-square, false alarm 1e-6."""
    context, found = SIZES.context(), []
    s = ternary_of(context, seal.KeyGenerator(context).secret_key())
    key, nothing = NativeKey(SIZES, s, vector=vector), np.zeros(DEGREE, np.int32)
    for _ in range(8):
        c0, seed = key.zero()
        without = key._inputs.zero(key._key, seed[len(SEED_START) :], nothing)
        off = without.view(np.int64) - c0.view(np.int64)  # modulo each prime
        primes = np.array(SIZES.primes())[:, None]
        noise, *others = off - primes * np.rint(off / primes).astype(np.int64)
        assert all(np.array_equal(noise, each) for each in others)
        found.append(noise)
    assert np.abs(found).max() <= 21
    assert is_centred_binomial(np.concatenate(found))
    assert len({each.tobytes() for each in found}) == len(found)
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 5 / np.sqrt(DEGREE)


@pytest.mark.parametrize("vector", PATHS)
@pytest.mark.parametrize("primes", [1, 2, 3])
def test_a_zero_is_minus_key_times_uniform_minus_noise(primes: int, vector: bool) -> None:
    """c₀ + c₁·s + e = 0 by SEAL's own product, at the largest noise."""
    sizes = BfvSizes(20, SIZES.prime_bits[:primes], primes)
    context, moduli = sizes.context(), sizes.primes()
    secret, evaluator = seal.KeyGenerator(context).secret_key(), seal.Evaluator(context)
    arithmetic = Arithmetic(moduli, primes, sizes.prime_bits, DEGREE * max(moduli), vector=vector)
    s, seed = ternary_of(context, secret), os.urandom(64)
    noise = np.where(s == 0, 21, -21).astype(np.int32)
    c0 = arithmetic.zero(arithmetic.key(s), seed, noise)
    c1 = from_seeded(context, np.zeros_like(c0), SEED_START + seed)
    by_seal = seal.Plaintext(" + ".join(f"{'1' if each > 0 else 'FFFFF'}x^{at}" for at, each in
                                        reversed(list(enumerate(s.tolist()))) if each))  # fmt: skip
    product = seal.Ciphertext()
    evaluator.multiply_plain(c1, by_seal, product)
    expected = polynomials_of(product)[1]
    for found, times_s, prime in zip(c0, expected, moduli, strict=True):
        total = (found.astype(object) + times_s.astype(object) + noise) % prime
        assert not total.any()
    nothing = np.zeros(DEGREE, np.int32)  # −0 is 0, not p
    assert not arithmetic.zero(arithmetic.key(nothing), seed, nothing).any()


@pytest.mark.parametrize("plain", [2, 3, 1 << 20, (1 << 47) + 5, (1 << 59) - 55, 1 << 59])
@pytest.mark.parametrize("primes", [1, 2, 3])
def test_numbers_are_rounded_to_the_nearest_share(primes: int, plain: int) -> None:
    """Random numbers modulo q, and those next to where two shares meet."""
    moduli = SIZES.primes()[-primes:]
    bits, q = SIZES.prime_bits[-primes:], prod(moduli)
    arithmetic = Arithmetic(moduli, primes, bits, 0, vector=False, plain=plain)
    drawn = np.random.default_rng(primes)
    some = [int.from_bytes(drawn.bytes(24), "little") % q for _ in range(500)]
    units = [0, 1, plain // 2, plain - 1]
    edges = [(2 * unit + 1) * q // (2 * plain) + off for unit in units for off in (-8, 9)]
    if plain < q >> 8:  # as in every job
        some += edges
    residues = np.array([[x % p for x in some] for p in moduli], np.uint64)
    expected = [(2 * plain * x + q) // (2 * q) % plain for x in some]
    # Fractions have 64 bits.
    near = [abs(2 * plain * x % (2 * q) - q) * 2**60 < q for x in some]
    found = arithmetic.rounded(residues).tolist()
    assert all(a == b or close for a, b, close in zip(found, expected, near, strict=True))
    assert sum(near) <= len(edges)


@pytest.mark.parametrize("vector", PATHS)
def test_replies_that_are_none_are_told_before_they_are_decrypted(vector: bool) -> None:
    primes = SIZES.primes()
    arithmetic = Arithmetic(
        primes, 3, SIZES.prime_bits, DEGREE * max(primes), vector=vector, plain=1 << 20
    )
    key, few = arithmetic.key(np.ones(DEGREE, np.int32)), np.arange(4)

    def reply(*changes: tuple[int, int, int, int]) -> bytes:
        words = np.ones((2, 3, DEGREE), np.uint64)
        for poly, k, at, word in changes:
            words[poly, k, at] = word
        return b"".join(
            pack(c1, bits) + pack(c0[:4], bits)
            for c0, c1, bits in zip(*words, SIZES.prime_bits, strict=True)
        )

    assert arithmetic.opened(key, reply(), few) is not None
    for k, p in enumerate(primes):
        for poly, at in ((1, 0), (1, DEGREE - 1), (0, 0), (0, 3)):
            assert arithmetic.opened(key, reply((poly, k, at, p - 1)), few) is not None
            assert arithmetic.opened(key, reply((poly, k, at, p)), few) is None
    nothing = b"".join(
        bytes(DEGREE * bits // 8) + pack(np.ones(4, np.uint64), bits) for bits in SIZES.prime_bits
    )
    assert arithmetic.opened(key, nothing, few) is None  # c₁ = 0: c₀ would be in clear


# Samples


def test_noise_is_21_bits_less_21_others() -> None:
    top = (1 << 21) - 1
    words = [0, top, top << 21, top | top << 21, ~0 << 42 & (1 << 64) - 1, 1 << 20, 1 << 21]
    words += np.random.default_rng(0).integers(0, 1 << 64, 5000, np.uint64).tolist()
    expected = [(w & top).bit_count() - (w >> 21 & top).bit_count() for w in words]
    assert native.noise(np.array(words, np.uint64)).tolist() == expected
    assert expected[:7] == [0, 21, -21, 0, 0, 1, -1]


def test_ternary_samples_are_thirds_of_the_words() -> None:
    third = -(-(1 << 64) // 3)
    words = [0, third - 1, third, 2 * third - 2, 2 * third - 1, (1 << 64) - 1]
    assert native.ternary(np.array(words, np.uint64)).tolist() == [-1, -1, 0, 0, 1, 1]


def test_samples_have_seals_distribution() -> None:
    """Chi-square of 2^18 samples, false alarm 1e-6, and of those beside each other."""
    blinders = [fresh_blinder() for _ in range(32)]
    u = np.concatenate([each for each, _ in blinders])
    noise = np.concatenate([each for _, each in blinders], axis=1)
    assert is_uniform(u + 1, 3)
    assert is_uniform(3 * u[:-1] + u[1:] + 4, 9)
    assert all(is_centred_binomial(each) for each in noise)
    assert np.abs(noise).max() <= 21
    lags = [(noise[0], noise[1]), (noise[0][1:], noise[0][:-1]), (u.astype(float), noise[0])]
    for one, other in lags:
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(one.size)
    assert len({each.tobytes() for each, _ in blinders}) == len(blinders)


def alone(arithmetic: Arithmetic, sums: RingArray, masks: RingArray) -> RingArray:
    """Words of a reply with these masks and no noise, (2, primes, DEGREE)."""
    noise = np.zeros((2, DEGREE), np.int32)
    reply, found, at = arithmetic.reply(sums, noise, masks, np.arange(DEGREE)), [], 0
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
        arithmetic.multiply(rows, DEGREE, every, own[None])
        masks = np.array([np.full(DEGREE, p - 1, np.uint64) for p in primes])
        (c0, c1) = alone(arithmetic, own, masks)
        for k, p in enumerate(primes):
            expected = by_index * (sign * chunks * (p - 1) * bound)
            assert np.array_equal(c1[k], expected % p)
            assert np.array_equal(c0[k], (expected - 1) % p)


@pytest.mark.parametrize("vector", PATHS)
def test_the_largest_wide_sums_are_exact(vector: bool) -> None:
    """As above, of 8 inputs and entries ±2^47."""
    primes, count = SIZES.primes(), 8
    most = count * DEGREE * max(primes) * LARGEST_WIDE
    arithmetic = Arithmetic(primes, 3, SIZES.prime_bits, most, vector=vector)
    inputs = arithmetic.inputs(count)
    words = np.array([[np.full(DEGREE, p - 1, np.uint64) for p in primes]] * 2)
    for each in inputs:
        arithmetic.take_words(words, each)
    masks = np.zeros((3, DEGREE), np.uint64)
    for sign in (1, -1):
        (sums,) = arithmetic.sums(1)
        arithmetic.add(np.full((count, DEGREE), sign * LARGEST_WIDE), inputs, sums)
        c0, c1 = alone(arithmetic, sums, masks)
        for k, p in enumerate(primes):
            by_index = 2 * np.arange(DEGREE).astype(object) + 2 - DEGREE
            expected = by_index * (sign * count * (p - 1) * LARGEST_WIDE) % p
            assert np.array_equal(c0[k], expected)
            assert np.array_equal(c1[k], expected)


def test_sums_that_all_transforms_cannot_hold_are_refused() -> None:
    limit = (prod(TRANSFORM_PRIMES) - 1) // 2
    Arithmetic(SIZES.primes(), 3, SIZES.prime_bits, limit, vector=False)
    with pytest.raises(RangeExceeded, match="143 bits"):
        Arithmetic(SIZES.primes(), 3, SIZES.prime_bits, limit + 1, vector=False)
    with pytest.raises(CryptoError, match="a plaintext modulus of 60 bits"):
        Arithmetic(SIZES.primes(), 3, SIZES.prime_bits, 0, vector=False, plain=LARGEST_PLAIN + 1)


def test_sums_have_room_for_an_encryption_of_zero() -> None:
    """Of the largest entries that two transforms hold, and one more for u."""
    primes, public = SIZES.primes(), np.zeros((2, 3, DEGREE), np.uint64)
    most = (prod(TRANSFORM_PRIMES[:2]) - 1) // 2 // (DEGREE * max(primes))
    for entry, transforms in ((most - 1, 2), (most, 3)):
        made = chosen(
            SIZES, Layout(DEGREE, 1, 1), entry, lambda: public, lambda _: seal.Ciphertext()
        )
        assert made is not None
        assert made._arithmetic._own[1] == transforms


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
    masks, few, noise = np.zeros((3, 4), np.uint64), np.arange(4), np.zeros((2, DEGREE), np.int32)
    owner = Arithmetic(SIZES.primes(), 3, SIZES.prime_bits, 1 << 90, vector=False, plain=1 << 20)
    key, reply = owner.key(noise[0]), bytes(size + size * 4 // DEGREE)
    dropping = Arithmetic(SIZES.primes(), 2, SIZES.prime_bits, 1 << 90, vector=False)
    wide = np.zeros((9, DEGREE), np.int64)
    too_wide = [np.full((1, DEGREE), each) for each in (LARGEST_WIDE + 1, -(1 << 63))]
    beyond = np.full(DEGREE, TRANSFORM_PRIMES[0], np.uint64)
    x, shift, out = np.zeros((3, 5)), np.ones(5), np.zeros((4, 5), np.int32)[1:3]  # with room

    def take_in(c0: int, seed: int, out: RingArray = room[0]) -> None:
        arithmetic.take_in(bytes(c0), bytes(seed), out)

    wrong: list[Callable[[], object]] = [  # those first that do no harm where nothing is checked
        lambda: take_in(size - 1, 64),
        lambda: take_in(size, 63),
        lambda: take_in(size, 64, room[0, :2]),
        lambda: arithmetic.take_words(words[:, :2], room[0]),
        lambda: arithmetic.multiply(rows, 0, room[:, None], sums),
        lambda: arithmetic.multiply(rows, DEGREE, room[:, None], sums),
        lambda: arithmetic.multiply(rows[:1], DEGREE, room[:, None, :2], sums),
        lambda: arithmetic.multiply(rows[:1], DEGREE, room[:, None], sums[:, :2]),
        lambda: arithmetic.reply(sums[0, :2], noise, masks, few),
        lambda: arithmetic.reply(sums[0], noise[:1], masks, few),
        lambda: arithmetic.reply(sums[0], noise, masks[:2], few),
        lambda: arithmetic.reply(sums[0], noise, masks, few + DEGREE - 3),
        lambda: arithmetic.reply(sums[0], noise, masks[:, :3], few[:3]),
        lambda: arithmetic.reply(sums[0], noise, masks, few - 1),
        lambda: library().combined(words[0], [1, 2], 0, 5),
        lambda: arithmetic.add(wide[:1], room, sums),  # of no single group
        lambda: arithmetic.add(wide[:2], room, sums[0]),
        lambda: arithmetic.add(wide, arithmetic.inputs(9), sums[0]),
        *(lambda each=each: arithmetic.add(each, room, sums[0]) for each in too_wide),
        lambda: native.of_slots(beyond[:-1] - np.uint64(1), vector=False),
        lambda: native.of_slots(beyond, vector=False),
        lambda: native.to_slots(beyond, vector=False),
        # Entries of another width than C reads:
        lambda: arithmetic.reply(sums[0], noise.astype(np.int16), masks, few),
        lambda: arithmetic.reply(sums[0], noise, masks, few.astype(np.int32)),
        lambda: native.noise(masks.astype(np.uint32)),
        lambda: dropping.zero(key, bytes(64), noise[0]),
        lambda: owner.key(noise[0, :8]),
        lambda: owner.zero(key[:1], bytes(64), noise[0]),
        lambda: owner.zero(key, bytes(63), noise[0]),
        lambda: owner.zero(key, bytes(64), noise[0, :8]),
        lambda: owner.opened(key[:1], reply, few),
        lambda: owner.opened(key, reply[1:], few),
        lambda: owner.opened(key, reply, few + DEGREE - 3),
        lambda: owner.opened(key, reply, few - 1),
        lambda: arithmetic.opened(key, reply, few),  # no plaintext modulus
        lambda: arithmetic.rounded(words[0]),
        lambda: owner.rounded(words[0, :2]),
        lambda: library().encode(x, (shift[:4], shift), 0, out, 0),
        lambda: library().encode(x, (shift, shift[:4]), 0, out, 0),
        lambda: library().encode(x[:, :1], (shift[:1],) * 2, 0, out, 0),
        lambda: library().encode(x[:, :2], (shift[:2],) * 2, 0, out, 3),
        lambda: library().encode(x[:, :2], (shift[:2],) * 2, 0, out, -1),
    ]
    for each in wrong:
        with pytest.raises(CryptoError, match=r"expected|rows of|beyond|no residues"):
            each()
    take_in(size, 64)
    arithmetic.multiply(rows[:1], DEGREE, room[:, None], sums)
    assert arithmetic.reply(sums[0], noise, masks, few + DEGREE - 4)


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
