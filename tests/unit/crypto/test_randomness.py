"""All randomness of `securevfl.crypto` is the operating system's.

Two guards: no module there may name another generator, and whatever Python draws follows the
operating system's stream when a test puts another in its place, byte for byte as many as it takes.
Beyond Python's reach, and so beyond the second guard: SEAL draws keys itself in C++, and without a
native library the seeds of c₁ and the errors of encryptions; OpenSSL draws X25519 keys.
"""

import ast
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import shake_256
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import securevfl.crypto
from securevfl.crypto import masks, native_products
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.bfv_parameters import DEGREE, BfvParameters
from securevfl.crypto.ckks import PRIME_BITS, CkksEvaluator, CkksOwner
from securevfl.crypto.native_key import fresh_blinder
from securevfl.crypto.paillier import PaillierEvaluator, PaillierOwner
from securevfl.crypto.paillier_fast import (
    EXPONENT_BITS,
    FastPaillierEvaluator,
    FastPaillierOwner,
    FullPaillierOwner,
)
from securevfl.crypto.paillier_slots import Slots
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from tests.small_keys import insecure

MODULES = sorted(Path(securevfl.crypto.__path__[0]).glob("**/*.py"))
GENERATORS = {
    *("random", "default_rng", "Generator", "RandomState", "PCG64", "rvs", "normal"),
    *("random_state", "mpz_random"),
}
KEY_BITS = 384
ROWS, COLUMNS = 8, 30
FORMAT = ProductFormat(ROWS, value_bound=1.0, matrix_bound=2.0, columns=COLUMNS)
VALUES = np.arange(ROWS) - 3
MATRIX = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) - 70


def other_generators(source: str) -> list[str]:
    """The names in a module that stand for a generator other than the operating system's."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        found += [name for name in names if GENERATORS & set(name.split("."))]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_module_of_cryptography_names_another_generator(path: Path) -> None:
    assert other_generators(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import random as r",
        "from random import SystemRandom",
        "import numpy.random",
        "import numpy.random as r",
        "from numpy import random as r",
        "from numpy.random import default_rng",
        "import numpy as np\nx = np.random.default_rng(0)",
        "import numpy\ndef f():\n    return numpy.random.bytes(8)",
        "import gmpy2\nx = gmpy2.mpz_random(gmpy2.random_state(0), 5)",
        "from scipy.stats import randint\nx = randint.rvs(0, 5)",
    ],
)
def test_another_generator_is_noticed_in_all_modules(source: str) -> None:
    assert other_generators(source)
    assert not other_generators("import os, secrets\nos.urandom(secrets.randbits(8))")
    assert {"bfv", "ckks", "masks", "residues", "paillier_fast"} <= {path.stem for path in MODULES}


class Stream:
    """Bytes that repeat for the same seed, in place of the operating system's."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.drawn = 0

    def __call__(self, count: int) -> bytes:
        block = shake_256(f"{self._seed} {self.drawn}".encode()).digest(count)
        self.drawn += count
        return block


@contextmanager
def drawing_from(seed: int) -> Iterator[Stream]:
    stream = Stream(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", stream)
        # `secrets` and SystemRandom hold a reference of their own.
        patch.setattr(random, "_urandom", stream)
        yield stream


SCHEMES: dict[str, tuple[Callable[[], KeyOwner], Callable[[bytes], Evaluator], int]] = {
    # Beside the ends of a key: bits of the masks of 30 columns.
    "bfv": (
        lambda: BfvOwner(FORMAT),
        lambda public: BfvEvaluator(public, FORMAT),
        COLUMNS * sum(BfvParameters.of(FORMAT).reply_bits),
    ),
    "ckks": (
        lambda: CkksOwner(FORMAT),
        lambda public: CkksEvaluator(public, FORMAT),
        DEGREE * sum(PRIME_BITS[:2]),
    ),
    "paillier": (
        lambda: insecure(FastPaillierOwner, FORMAT, KEY_BITS),
        lambda public: insecure(FastPaillierEvaluator, public, FORMAT),
        Slots.of(FORMAT, KEY_BITS, packed=True).replies(COLUMNS) * KEY_BITS,
    ),
    "phe": (
        lambda: insecure(PaillierOwner, FORMAT, KEY_BITS),
        lambda public: insecure(PaillierEvaluator, public, FORMAT),
        COLUMNS * KEY_BITS,
    ),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_masks_follow_the_operating_systems_stream(scheme: str) -> None:
    make_owner, make_evaluator, bits = SCHEMES[scheme]
    owner = make_owner()
    encrypted = owner.encrypt(VALUES)

    def mask(seed: int) -> list[int]:
        evaluator = make_evaluator(owner.public_bytes)
        prepared = evaluator.prepare(MATRIX)
        while scheme == "paillier" and evaluator.make_blinder():
            pass  # so that nothing but masks is left to draw
        with drawing_from(seed) as stream:
            reply = evaluator.masked_product(encrypted, prepared)
        # A generator of another kind would draw its seed alone.
        assert 8 * stream.drawn >= bits
        return [int(word) for word in reply.mask]

    first = mask(1)
    assert mask(1) == first
    assert all(one != other for one, other in zip(first, mask(2), strict=True))
    assert len(set(first)) == COLUMNS


def test_bfv_masks_are_the_streams_own_words() -> None:
    evaluator = BfvEvaluator(BfvOwner(FORMAT).public_bytes, FORMAT)
    sizes = BfvParameters.of(FORMAT)
    with drawing_from(3):
        residues, _ = evaluator._mask(48)
    # A draw beyond a prime is drawn again, once in 2^30 here.
    stream = Stream(3)
    for row, bits in zip(residues, sizes.reply_bits, strict=True):
        words = np.frombuffer(stream(8 * 48), np.uint64) & np.uint64((1 << bits) - 1)
        np.testing.assert_array_equal(row, words)


@pytest.mark.skipif(native_products.why_not() is not None, reason=str(native_products.why_not()))
def test_native_encryptions_of_zero_follow_the_operating_systems_stream() -> None:
    """Every one draws 32 bytes for its noise, and an owner's 64 more for its seed."""
    owner = BfvOwner(FORMAT)
    for make, drawn in ((fresh_blinder, 32), (lambda: owner._encrypted_zero(), 96)):  # noqa: PLW0108

        def made(seed: int, make: Callable[[], object] = make, drawn: int = drawn) -> list[bytes]:
            with drawing_from(seed) as stream:
                both = [make(), make()]
            assert stream.drawn == 2 * drawn
            return [repr(each).encode() for each in both]

        first = made(1)
        assert made(1) == first
        assert len({*first, *made(2)}) == 4


def test_ckks_flooding_follows_the_operating_systems_stream() -> None:
    owner = CkksOwner(FORMAT)
    evaluator = CkksEvaluator(owner.public_bytes, FORMAT)
    reply = evaluator.masked_product(owner.encrypt(VALUES), evaluator.prepare(MATRIX))

    def released(seed: int) -> list[int]:
        with drawing_from(seed) as stream:
            values = owner.decrypt(reply.ciphertext, COLUMNS)
        assert stream.drawn >= COLUMNS
        return [int(value) for value in values]

    first = released(1)
    assert released(1) == first
    # Each is one of three or so; all 30 alike once in 10^10 or less.
    assert released(2) != first


@pytest.mark.parametrize("scheme", ["paillier", "phe"])
def test_paillier_keys_and_replies_follow_the_operating_systems_stream(scheme: str) -> None:
    make_owner, make_evaluator, mask_length = SCHEMES[scheme]

    def made(seed: int) -> tuple[bytes, bytes, bytes]:
        with drawing_from(seed) as stream:
            owner = make_owner()
            assert 8 * stream.drawn >= KEY_BITS
            encrypted = owner.encrypt(VALUES)
            evaluator = make_evaluator(owner.public_bytes)
            before = stream.drawn
            reply = evaluator.masked_product(encrypted, evaluator.prepare(MATRIX))
            # The masks, and for each ciphertext of the reply one unit below n.
            replies = len(reply.ciphertext) // (2 * KEY_BITS // 8)
            assert 8 * (stream.drawn - before) >= mask_length + replies * KEY_BITS
        return owner.public_bytes, encrypted, reply.ciphertext

    first = made(1)
    assert made(1) == first
    assert all(one != other for one, other in zip(first, made(2), strict=True))


@pytest.mark.parametrize(
    ("engine", "bits"),
    [(FastPaillierOwner, EXPONENT_BITS), (FullPaillierOwner, KEY_BITS), (PaillierOwner, KEY_BITS)],
)
def test_every_paillier_encryption_draws_its_own_randomness(
    engine: type[FastPaillierOwner | PaillierOwner], bits: int
) -> None:
    owner = insecure(engine, FORMAT, KEY_BITS)

    def encrypted(seed: int) -> bytes:
        with drawing_from(seed) as stream:
            made = owner.encrypt(VALUES)
        assert 8 * stream.drawn >= ROWS * bits
        return made

    first = encrypted(1)
    assert encrypted(1) == first
    assert encrypted(2) != first


def test_a_mask_key_is_the_librarys_own_fresh_key(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = X25519PrivateKey.from_private_bytes(bytes(range(32)))

    class Library:
        generate = staticmethod(lambda: fixed)

    monkeypatch.setattr(masks, "X25519PrivateKey", Library)
    assert masks.MaskKey.generate().public_bytes == fixed.public_key().public_bytes_raw()
