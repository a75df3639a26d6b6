"""Evaluators on the library in C: SEAL's replies to the byte, its errors, and how one is chosen."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _cffi_backend
import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl import threads
from securevfl.arrays import RingArray
from securevfl.crypto import native, native_products, residues, ring
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.bfv_core import BfvMultiplier
from securevfl.crypto.bfv_parameters import DEGREE, BfvParameters, BfvSizes
from securevfl.crypto.native import build
from securevfl.crypto.residues import pack, packed_size, uniform_below
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.schemes import make_evaluator, make_owner, running_engine, why_slower
from securevfl.crypto.seal_codec import SEED_BYTES, ciphertext_of, plaintext
from securevfl.crypto.seeded_keys import coefficients, public_words
from securevfl.crypto.slot_parameters import SlotParameters
from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner
from securevfl.errors import CryptoError
from tests.ciphertexts import drawn, format_of, product

compiled = pytest.mark.skipif(
    native_products.why_not() is not None, reason=f"not native: {native_products.why_not()}"
)
GENERATOR = np.random.default_rng(3)


@dataclass(frozen=True)
class Ends:
    """A format's owner, how evaluators are made, and one product."""

    owner: Any
    evaluator: Callable[..., Any]
    encrypted: bytes
    matrix: Any

    def reply(self, evaluator: Any, encrypted: bytes | None = None) -> tuple[bytes, RingArray]:  # noqa: ANN401
        encrypted = self.encrypted if encrypted is None else encrypted
        if isinstance(evaluator, BfvEvaluator):
            found = evaluator.masked_product(encrypted, evaluator.prepare(self.matrix))
            return found.ciphertext, found.mask
        return evaluator.product(encrypted, self.matrix)  # type: ignore[no-any-return]


def bfv(rows: int, columns: int, **more: Any) -> Ends:  # noqa: ANN401
    fmt = format_of(rows, columns, 8.0, (18, 12), rounds=20, **more)
    owner, largest = BfvOwner(fmt), fmt.largest_entry
    values = GENERATOR.integers(-fmt.largest_value, fmt.largest_value, rows, endpoint=True)
    # Fewer rows than agreed: the last inputs meet nothing.
    matrix = GENERATOR.integers(-largest, largest, (rows - rows // 3, columns), endpoint=True)
    return Ends(owner, lambda **how: BfvEvaluator(owner.public_bytes, fmt, **how),
                owner.encrypt(values), matrix)  # fmt: skip


def in_ring(inner: int, outputs: int, columns: int, **more: Any) -> Ends:  # noqa: ANN401
    fmt = RingProductFormat(inner, outputs, columns, 1 << 15, products=1000, **more)
    owner = RingProductOwner(fmt)
    matrix = GENERATOR.choice([-(1 << 15), 1 << 15, 7, 0], (outputs, inner))
    return Ends(owner, lambda **how: RingProductEvaluator(owner.public_bytes, fmt, **how),
                owner.encrypt(ring.uniform(inner, columns)), matrix)  # fmt: skip


FORMATS: dict[str, Callable[[], Ends]] = {
    "bfv": lambda: bfv(200, 300),
    "bfv, one reply": lambda: bfv(1000, 5),
    "ring, more inputs": lambda: in_ring(2600, 8, 10, bandwidth_mbit=1e6),
    "ring, more replies": lambda: in_ring(8, 1300, 10, bandwidth_mbit=20.0),
    "ring, groups": lambda: in_ring(12, 400, 60),
}


@pytest.fixture(scope="module", params=FORMATS)
def ends(request: pytest.FixtureRequest) -> Ends:
    return FORMATS[request.param]()


def with_known_randomness(
    ends: Ends, evaluator: BfvMultiplier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same encryptions of zero in the same order, and masks of one value by prime."""
    context, primes = evaluator._context, evaluator._primes
    level, count = context.first_parms_id(), iter(range(10**9))
    key = public_words(evaluator._sizes.context(), ends.owner.public_bytes)
    public = coefficients(context, key[:, : len(primes)])

    def blinder() -> Any:  # noqa: ANN401
        drawn = np.random.default_rng(next(count))
        u, noise = drawn.integers(-1, 2, DEGREE), drawn.integers(-21, 22, (2, DEGREE))
        if evaluator.engine == "native":
            return u.astype(np.int32), noise.astype(np.int32)
        words = np.stack([(noise % p).astype(np.uint64) for p in primes], axis=1)
        zero, times_u = ciphertext_of(context, level, words), seal.Ciphertext()
        # C has u reversed, as the rows of a matrix.
        plain = (u[::-1] & int(evaluator._entry_mask)).astype(np.uint64)
        evaluator._evaluator.multiply_plain(
            ciphertext_of(context, level, public), plaintext(context, plain), times_u
        )
        evaluator._evaluator.add_inplace(zero, times_u)
        return zero

    def mask(count: int) -> tuple[RingArray, RingArray]:
        kept = primes[: evaluator._sizes.reply_primes]
        drawn = [np.random.default_rng(5).integers(0, p, count, np.uint64) for p in kept]
        return np.array(drawn), np.arange(count, dtype=np.uint64)

    monkeypatch.setattr(evaluator, "_blinder", blinder)
    monkeypatch.setattr(evaluator._pool, "_make", blinder)
    monkeypatch.setattr(evaluator, "_mask", mask)


@compiled
@pytest.mark.parametrize("vector", [False, True])
def test_replies_are_seals_to_the_byte_whatever_the_number_of_threads(
    ends: Ends, vector: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if vector and not native.library().has_vector:
        pytest.skip("no AVX2")
    monkeypatch.setattr(native_products, "_tested", lambda: (vector, None))
    found = []
    monkeypatch.setattr(threads._SETTING, "most", None)  # by a test of a party's process
    for made, workers in ((False, 1), (True, None), (True, 1), (True, 3)):
        evaluator = ends.evaluator(native=made)
        with_known_randomness(ends, evaluator, monkeypatch)
        assert evaluator.engine == ("native" if made else "seal")
        with threads.spread_over(workers):
            found.append(ends.reply(evaluator))
    for reply, share in found[1:]:
        assert sha256(reply).digest() == sha256(found[0][0]).digest()  # differences are quick
        assert np.array_equal(share, found[0][1])


@compiled
def test_layouts_hold_inputs_or_sums_whichever_are_fewer() -> None:
    for name, more_inputs in (("ring, more inputs", True), ("ring, more replies", False)):
        layout: RingLayout = FORMATS[name]().owner._layout
        assert (layout.chunks > layout.sides) == more_inputs
        assert layout.chunks > 1 < layout.sides


def mutations(encrypted: bytes, size: int, bits: int) -> Iterator[bytes]:
    """What a peer may send in place of inputs of this size, whose first prime has these bits."""
    seed, first = size - SEED_BYTES, size - SEED_BYTES + 16
    yield encrypted
    for length in (0, 1, size - 1, len(encrypted) - 1, len(encrypted) + 1, len(encrypted) + size):
        yield (encrypted + bytes(size))[:length]
    for at, byte in (*((seed + each, 0xFF) for each in range(17)), (first, 0), (first, 2),
                     (seed + 5, 1), (seed + 5, 2)):  # fmt: skip
        changed = bytearray(encrypted)
        changed[at] = byte
        yield bytes(changed)
    for _ in range(12):  # words of all ones are no residues, wherever they are
        changed, at = bytearray(encrypted), int(GENERATOR.integers(0, seed - bits))
        changed[at : at + bits // 2] = b"\xff" * (bits // 2)
        yield bytes(changed)
    for _ in range(12):
        changed = bytearray(encrypted)
        for at in GENERATOR.integers(0, len(encrypted), 3):
            changed[at] ^= 1 << int(GENERATOR.integers(8))
        yield bytes(changed)
    yield bytes(len(encrypted))
    yield GENERATOR.bytes(len(encrypted))


@compiled
@pytest.mark.parametrize("ends", ["bfv", "ring, more inputs"], indirect=True)
def test_bytes_of_a_peer_are_read_and_refused_as_seal_does(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ends.owner._sizes
    outcomes: dict[bool, list[Any]] = {True: [], False: []}
    sent = list(mutations(ends.encrypted, sizes.input_bytes + SEED_BYTES, sizes.prime_bits[0]))
    for how, found in outcomes.items():
        evaluator = ends.evaluator(native=how)
        for each in sent:
            with_known_randomness(ends, evaluator, monkeypatch)
            try:
                found.append(sha256(ends.reply(evaluator, each)[0]).digest())
            except CryptoError as error:
                found.append((type(error), str(error)))
    assert outcomes[True] == outcomes[False]
    refused = [each for each in outcomes[True] if isinstance(each, tuple)]
    assert len(refused) >= 25
    assert len(sent) - len(refused) >= 2


# How one is chosen


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Asks anew, before the test and after it."""
    caches = (native.found, native_products._tested, native_products.fills_slots, residues._rounder)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


def engine_of_a_product() -> str:
    ends = bfv(20, 3)
    evaluator = ends.evaluator()
    assert ends.reply(evaluator)[0]
    return str(evaluator.engine)


@pytest.mark.usefixtures("forgetful")
def test_without_a_library_products_are_seals_and_the_reason_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "native.so")
    assert engine_of_a_product() == "seal"
    assert "native.so" in str(native_products.why_not())
    assert running_engine("bfv") == running_engine("bfv", "native") == "seal"
    assert str(why_slower("bfv")).startswith("products are SEAL's, and slower than native ones: ")
    assert why_slower("blind") == why_slower("bfv", "native") == why_slower("bfv")
    assert why_slower("bfv", "seal") is why_slower("plain") is why_slower("paillier") is None


@pytest.mark.usefixtures("forgetful")
def test_a_library_with_other_functions_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "LIBRARY", Path(_cffi_backend.__file__))
    assert engine_of_a_product() == "seal"
    assert "svfl_sources" in str(native_products.why_not())


@compiled
@pytest.mark.usefixtures("forgetful")
def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "digest", lambda: "0" * 64)
    assert engine_of_a_product() == "seal"
    assert "made of other sources" in str(native_products.why_not())


@compiled
@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("fails", ["vector", "both", "key", "combined"])
def test_a_path_that_fails_its_self_test_is_not_used(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fails == "combined":
        wrong = np.zeros(2, np.uint64)
        monkeypatch.setattr(native.Library, "combined", lambda *_: wrong)
    else:
        test = "_opens" if fails == "key" else "_agrees"
        monkeypatch.setattr(
            native_products, test, lambda *, vector: fails == "vector" and not vector
        )
    assert engine_of_a_product() == ("native" if fails == "vector" else "seal")
    if fails == "vector":
        assert native_products._tested() == (False, None)
    else:
        says = "self-test failed" if fails == "combined" else "not the installed SEAL's"
        assert says in str(native_products.why_not())


@compiled
@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("wrong", ["multiply", "add", "reply", "zero", "opened"])
def test_a_library_that_computes_other_words_is_not_used(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_c = getattr(native.Arithmetic, wrong)

    def other(*of: Any) -> Any:  # noqa: ANN401
        made = in_c(*of)
        if made is None:
            return in_c(*of)  # adds twice
        words = np.frombuffer(bytearray(made), np.uint64) if wrong == "reply" else made
        words.flat[-1] ^= np.uint64(1)
        return words.tobytes() if wrong == "reply" else words

    monkeypatch.setattr(native.Arithmetic, wrong, other)
    assert engine_of_a_product() == "seal"
    assert "not the installed SEAL's" in str(native_products.why_not())


@compiled
@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("by", ["SEAL", "memory"])
def test_an_error_in_the_self_test_is_a_reason(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "SEAL":  # which multiplies by no plaintext of zeros
        ones = np.ones(2 * DEGREE, np.uint64)
        monkeypatch.setattr(native_products, "uniform_below", lambda _, count: ones[:count])
        says = "no self-test: .*transparent"
    else:
        found = native.library()._functions
        without = SimpleNamespace(**{name: getattr(found, name) for name in dir(found)})
        without.svfl_multiply = lambda *_: 2
        monkeypatch.setattr(native.library(), "_functions", without)
        says = "no self-test: .*no memory for multiply"
    assert engine_of_a_product() == "seal"
    assert re.search(says, str(native_products.why_not()))


@compiled
@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("wrong", ["of_slots", "to_slots"])
def test_slots_are_seals_where_c_has_others(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_products.fills_slots()
    native_products.fills_slots.cache_clear()
    monkeypatch.setattr(native, wrong, lambda words, **_: words)
    assert not native_products.fills_slots()
    owner = SlotOwner(SLOTS)
    evaluator = SlotEvaluator(owner.public_bytes, SLOTS)
    assert evaluator.engine == "native"
    assert in_slots(owner, evaluator)


@compiled
@pytest.mark.usefixtures("forgetful")
def test_masks_are_rounded_by_integers_where_c_rounds_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    primes = tuple(BfvParameters.of(format_of(20, 3, 8.0, (18, 12))).primes())
    assert residues._rounder(primes, 40) is not None
    residues._rounder.cache_clear()
    rounded = native.Arithmetic.rounded
    monkeypatch.setattr(native.Arithmetic, "rounded", lambda *of: rounded(*of) ^ np.uint64(1))
    assert residues._rounder(primes, 40) is None
    of_all, share = residues.uniform_mask(primes, 40, 100)
    expected = residues.share_of(residues.whole(of_all, primes), prod(primes), 40)
    assert np.array_equal(share, expected)


@compiled
@pytest.mark.usefixtures("forgetful")
def test_a_mask_made_without_the_library_leaves_later_ones_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a benchmark takes turns."""
    primes = BfvParameters.of(format_of(20, 3, 8.0, (18, 12))).primes()
    rounded: list[int] = []

    in_c = native.Arithmetic.rounded

    def counted(self: native.Arithmetic, words: RingArray) -> RingArray:
        rounded.append(words.shape[1])
        return in_c(self, words)

    monkeypatch.setattr(native.Arithmetic, "rounded", counted)
    with monkeypatch.context() as patch:
        patch.setattr(native, "found", lambda: native.Missing("not asked"))
        residues.uniform_mask(primes, 40, 5)
    residues.uniform_mask(primes, 40, 6)
    assert rounded == [residues._TESTED, 6]


# Ends with and without the library


SLOTS = SlotParameters.of(1000)


def in_slots(owner: SlotOwner, evaluator: SlotEvaluator) -> bool:
    """Whether a product is exact."""
    x, y = GENERATOR.integers(-256, 256, (2, 2, 50))
    replies, shares = evaluator.multiply(owner.encrypt(x), y)
    found = (shares + owner.decrypt(replies, 50)).view(np.int64)
    return np.array_equal(found, [x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]])


def of_bfv(owner: BfvOwner, evaluator: BfvEvaluator) -> bool:
    """As above, of two rows of replies."""
    v, x = drawn(BFV, 300, 90, int(GENERATOR.integers(1000)))
    return np.array_equal(product(owner, evaluator, v, x), x.T @ v)


def of_ring(owner: RingProductOwner, evaluator: RingProductEvaluator) -> bool:
    """As above."""
    v, m = ring.uniform(30, 4), GENERATOR.integers(-(1 << 15), 1 << 15, (9, 30), endpoint=True)
    reply, mask = evaluator.product(owner.encrypt(v), m)
    return np.array_equal(
        ring.reduced(owner.decrypt(reply) - mask), ring.reduced(m.view(np.uint64) @ v)
    )


BFV = format_of(300, 90, 4.0, (20, 14), rounds=1000)
RING = RingProductFormat(30, 9, 4, 1 << 15, products=1000)
KINDS: dict[str, tuple[Any, Any, Any, Callable[[Any, Any], bool]]] = {
    "bfv": (BfvOwner, BfvEvaluator, BFV, of_bfv),
    "ring": (RingProductOwner, RingProductEvaluator, RING, of_ring),
    "slots": (SlotOwner, SlotEvaluator, SLOTS, in_slots),
}


class WithoutLibrary:
    """One end, made and called as in a process that has no library."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._end = self._without(make)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        found = getattr(self._end, name)
        return (lambda *of: self._without(found, *of)) if callable(found) else found

    def _without(self, call: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "found", lambda: native.Missing("not asked"))
            patch.setattr(native_products, "_tested", lambda: (False, "not asked"))
            return call(*arguments)


@compiled
@pytest.mark.parametrize("lacking", ["nobody", "owner", "evaluator", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_exact_whichever_end_has_the_library(kind: str, lacking: str) -> None:
    make_owner, make_evaluator, fmt, is_exact = KINDS[kind]
    has_none = {"nobody": (), "both": ("owner", "evaluator")}.get(lacking, (lacking,))

    def end(name: str, make: Callable[[], Any]) -> Any:  # noqa: ANN401
        return WithoutLibrary(make) if name in has_none else make()

    owner = end("owner", lambda: make_owner(fmt))
    evaluator = end("evaluator", lambda: make_evaluator(owner.public_bytes, fmt))
    assert (evaluator.engine == "seal") == ("evaluator" in has_none)
    assert (owner._native is None) == ("owner" in has_none)
    assert is_exact(owner, evaluator)


@compiled
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_exact_where_an_end_is_told_to_take_seal(kind: str) -> None:
    make_owner, make_evaluator, fmt, is_exact = KINDS[kind]
    for by_owner, by_evaluator in ((True, False), (False, True)):
        owner = make_owner(fmt, native=by_owner)
        evaluator = make_evaluator(owner.public_bytes, fmt, native=by_evaluator)
        assert (owner._native is not None, evaluator.engine == "native") == (by_owner, by_evaluator)
        assert is_exact(owner, evaluator)


def forged(reply: bytes, sizes: BfvSizes, sent: int) -> Iterator[bytes]:
    """What an evaluator may send in place of a reply, `sent` coefficients of c₀ for each prime."""
    yield reply
    for length in (0, 1, len(reply) - 1, len(reply) + 1, 2 * len(reply)):
        yield (reply + reply)[:length]
    yield bytes(len(reply))  # c₁ = 0
    only_c0, only_c1, at = bytearray(reply), bytearray(reply), 0
    for bits, prime in zip(sizes.reply_bits, sizes.primes(), strict=False):
        of_c1, of_c0 = packed_size(DEGREE, bits), packed_size(sent, bits)
        for start, end in ((at, at + of_c1), (at + of_c1, at + of_c1 + of_c0)):
            for first, word in (
                (True, prime - 1),
                (True, prime),
                (False, prime - 1),
                (False, prime),
            ):
                changed, pair = bytearray(reply), pack(np.array([word, word], np.uint64), bits)
                changed[
                    start if first else end - len(pair) : start + len(pair) if first else end
                ] = pair
                yield bytes(changed)
        only_c0[at : at + of_c1] = bytes(of_c1)
        only_c1[at + of_c1 : at + of_c1 + of_c0] = bytes(of_c0)
        at += of_c1 + of_c0
    yield from (bytes(only_c0), bytes(only_c1))
    only_c0[0] = 1  # c₁ is not quite 0
    yield bytes(only_c0)
    yield b"\xff" * len(reply)
    yield GENERATOR.bytes(len(reply))
    for _ in range(12):
        changed = bytearray(reply)
        for place in GENERATOR.integers(0, len(reply), 3):
            changed[place] ^= 1 << int(GENERATOR.integers(8))
        yield bytes(changed)


@compiled
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_replies_of_a_peer_are_decrypted_and_refused_as_seal_does(
    kind: str, vector: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if vector and not native.library().has_vector:
        pytest.skip("no AVX2")
    monkeypatch.setattr(native_products, "_tested", lambda: (vector, None))
    make_owner, make_evaluator, fmt, is_exact = KINDS[kind]
    owner = make_owner(fmt)
    assert is_exact(owner, make_evaluator(owner.public_bytes, fmt))
    sizes, positions = owner._sizes, np.arange(DEGREE) if kind == "slots" else np.arange(48) * 7 + 5
    size = sum(packed_size(DEGREE + len(positions), bits) for bits in sizes.reply_bits)
    words = [
        uniform_below(p, DEGREE + len(positions)) for p in sizes.primes()[: sizes.reply_primes]
    ]
    reply = b"".join(map(pack, words, sizes.reply_bits))
    assert len(reply) == size
    by_c = owner._native
    found: dict[bool, list[Any]] = {}
    sent = list(forged(reply, sizes, len(positions)))
    for engine in (by_c, None):
        monkeypatch.setattr(owner, "_native", engine)
        found[engine is None] = outcomes = []
        for each in sent:
            try:
                outcomes.append(owner._opened(each, 1, positions).tolist())
            except CryptoError as error:
                outcomes.append((type(error), str(error)))
    assert found[True] == found[False]
    both = zip(sent, found[True], strict=True)
    assert all(len(each) == size or isinstance(outcome, tuple) for each, outcome in both)
    refused = [each for each in found[True] if isinstance(each, tuple)]
    assert len(refused) >= 6 + 4 * len(sizes.reply_bits)
    assert len(sent) - len(refused) >= 2 + 4 * len(sizes.reply_bits)


@compiled
def test_entries_beyond_32_bits_are_seals_and_exact() -> None:
    fmt = RingProductFormat(3, 2, 1, 1 << 31, products=1)
    owner = RingProductOwner(fmt)
    evaluator = RingProductEvaluator(owner.public_bytes, fmt)
    assert evaluator.engine == "seal"
    values, matrix = ring.uniform(3, 1), np.full((2, 3), -(1 << 31))
    reply, mask = evaluator.product(owner.encrypt(values), matrix)
    found = ring.reduced(owner.decrypt(reply) - mask)
    assert np.array_equal(found, ring.reduced(matrix.view(np.uint64) @ values))


@compiled
def test_engines_by_name() -> None:
    fmt = format_of(20, 3, 8.0, (18, 12))
    owner = BfvOwner(fmt)
    for engine, runs in ((None, "native"), ("native", "native"), ("seal", "seal")):
        evaluator = make_evaluator("bfv", owner.public_bytes, fmt, engine=engine)
        assert isinstance(evaluator, BfvEvaluator)
        assert evaluator.engine == runs == running_engine("bfv", engine)
        made = make_owner("bfv", fmt, engine=engine)
        assert isinstance(made, BfvOwner)
        assert (made._native is not None) == (runs == "native")


@compiled
def test_what_was_prepared_for_another_engine_is_refused() -> None:
    ends = bfv(20, 3)
    native_one, by_seal = ends.evaluator(), ends.evaluator(native=False)
    for one, other in ((native_one, by_seal), (by_seal, native_one)):
        with pytest.raises(CryptoError, match="for another engine"):
            one.masked_product(ends.encrypted, other.prepare(ends.matrix))
