import gmpy2
import numpy as np
import phe.util
import pytest
from phe.paillier import generate_paillier_keypair

from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.paillier import (
    PaillierEvaluator,
    PaillierKeyOwner,
    PaillierKeyPeer,
    PaillierOwner,
)
from securevfl.crypto.paillier_fast import FastPaillierEvaluator, FastPaillierOwner
from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import ConfigError, CryptoError, KeyMismatch
from tests.ciphertexts import numbers, product, wire
from tests.small_keys import insecure

KEY_BITS = 256  # breakable at once: for speed
WIDTH = 2 * KEY_BITS // 8
FORMAT = ProductFormat(rows=24, value_bound=1.0, matrix_bound=2.0)
Ends = tuple[PaillierKeyOwner, PaillierKeyPeer]
ENGINES: dict[str, tuple[type[PaillierKeyOwner], type[PaillierKeyPeer]]] = {
    "phe": (PaillierOwner, PaillierEvaluator),
    "fast": (FastPaillierOwner, FastPaillierEvaluator),
}


@pytest.fixture(scope="module")
def owner() -> PaillierOwner:
    return insecure(PaillierOwner, FORMAT, KEY_BITS)


@pytest.fixture(scope="module")
def evaluator(owner: PaillierOwner) -> PaillierEvaluator:
    return insecure(PaillierEvaluator, owner.public_bytes, FORMAT)


def modulus(owner: PaillierKeyOwner) -> int:
    return int(owner._private_key.public_key.n)


def test_a_key_that_a_job_makes_works_end_to_end() -> None:
    owner = PaillierOwner(FORMAT, 2048)
    evaluator = PaillierEvaluator(owner.public_bytes, FORMAT)
    values, matrix = np.array([3, -5]), np.array([[1, 0, -1], [-1, 7, 2]])
    np.testing.assert_array_equal(product(owner, evaluator, values, matrix), matrix.T @ values)
    assert owner.key_bits == 2048
    assert len(owner.public_bytes) == 10 * 256
    assert len(owner.encrypt(values)) == 2 * 512
    assert len(owner.fingerprint) == 16


@pytest.mark.parametrize("bits", [0, 512, 1024, 2047, 4096])
def test_other_key_sizes_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="3072 or 2048"):
        PaillierOwner(FORMAT, bits)


def test_a_small_key_of_phe_is_refused_by_the_owner() -> None:
    with pytest.raises(ConfigError, match="256, 3072 or 2048"):
        PaillierOwner(FORMAT, generate_paillier_keypair(n_length=256)[1])


def test_public_keys_of_other_sizes_are_refused(owner: PaillierOwner) -> None:
    with pytest.raises(KeyMismatch, match="256 bits, 3072 or 2048"):
        PaillierEvaluator(owner.public_bytes, FORMAT)
    with pytest.raises(KeyMismatch, match="2048 bits, 3072 expected"):
        PaillierEvaluator(b"\xff" * 2560, FORMAT, 3072)


@pytest.mark.parametrize(
    "n",
    [
        2**2047 + 2,  # even
        int(gmpy2.next_prime(3 << 2046)),
        int(gmpy2.next_prime(3 << 1022)) ** 2,
        (2**2048 // 65521 - 1) * 65521,
        (1 << 2000) + 1,  # short
    ],
)
def test_public_keys_that_are_no_product_of_two_primes_are_refused(n: int) -> None:
    with pytest.raises(KeyMismatch, match="modulus"):
        PaillierEvaluator(n.to_bytes(256, "big") + bytes(9 * 256), FORMAT)


def test_a_key_without_gmpy2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = insecure(PaillierOwner, FORMAT, KEY_BITS).public_bytes
    monkeypatch.setattr(phe.util, "HAVE_GMP", False)
    with pytest.raises(ConfigError, match="gmpy2"):
        PaillierOwner(FORMAT)
    with pytest.raises(ConfigError, match="gmpy2"):
        insecure(PaillierEvaluator, data, FORMAT)


def test_plain_phe_decrypts_ours_and_ours_decrypts_plain_phe() -> None:
    public, private = generate_paillier_keypair(n_length=2048)
    owner = PaillierOwner(FORMAT, private)
    ours = int.from_bytes(owner.encrypt(np.array([-123456])), "big")
    assert private.decrypt(phe.paillier.EncryptedNumber(public, ours)) == -123456
    theirs = public.encrypt(987654321).ciphertext().to_bytes(512, "big")
    assert owner.decrypt(theirs, 1).tolist() == [987654321]
    evaluator = PaillierEvaluator(owner.public_bytes, FORMAT)
    reply = evaluator.masked_product(theirs, evaluator.prepare(np.array([[-2]])))
    assert unmask(owner.decrypt(reply.ciphertext, 1), reply.mask).tolist() == [-2 * 987654321]


def test_replies_are_rerandomized(owner: PaillierOwner, evaluator: PaillierEvaluator) -> None:
    """The Jacobi symbol of an unblinded product is a parity of X; of a reply it is a coin."""
    n, rows, columns = modulus(owner), FORMAT.rows, 400
    matrix = np.random.default_rng(7).integers(0, 2, (rows, columns))
    encrypted = owner.encrypt(np.arange(1, rows + 1))
    reply = evaluator.masked_product(encrypted, evaluator.prepare(matrix))
    inputs = numbers(encrypted, WIDTH)
    symbols = np.array([gmpy2.jacobi(number, n) for number in inputs])
    predicted = np.prod(np.where(matrix == 1, symbols[:, None], 1), axis=0)
    bare = []
    for column in matrix.T:
        power = 1
        for number, entry in zip(inputs, column.tolist(), strict=True):
            power = power * pow(number, entry, n * n) % (n * n)
        bare.append(power)
    assert [gmpy2.jacobi(number, n) for number in bare] == predicted.tolist()  # it does leak
    got = np.array([gmpy2.jacobi(number, n) for number in numbers(reply.ciphertext, WIDTH)])
    assert abs((got * predicted).sum()) < 5.5 * columns**0.5  # false alarm 4e-8, each
    assert abs(got.sum()) < 5.5 * columns**0.5
    # without ρⁿ, taking the mask off in clear gives the deterministic product back
    decrypt = owner._private_key.raw_decrypt
    for number, power in zip(numbers(reply.ciphertext, WIDTH), bare, strict=True):
        assert number * (1 + n * (decrypt(power) - decrypt(number))) % (n * n) != power


@pytest.fixture(scope="module", params=["phe", "fast"])
def ends(request: pytest.FixtureRequest) -> Ends:
    own, other = ENGINES[request.param]
    made = insecure(own, FORMAT, KEY_BITS)
    return made, insecure(other, made.public_bytes, FORMAT)


def test_damaged_and_foreign_ciphertexts_are_refused(ends: Ends) -> None:
    owner, evaluator = ends
    n, p = modulus(owner), owner._private_key.p
    good = owner.encrypt(np.array([1, 2]))
    prepared = evaluator.prepare(np.array([[1], [2]]))
    reply = evaluator.masked_product(good, prepared).ciphertext
    first = good[:WIDTH]
    alone = [b"", first, good[:-1], good + b"\0", first * 3, first + b"\xff" * WIDTH]
    for bad in (*alone, *(first + wire(WIDTH, each) for each in (0, n, n * n, n * n + 1, p))):
        with pytest.raises(CryptoError):
            evaluator.masked_product(bad, prepared)
    no_units = [wire(WIDTH, each) for each in (0, n, p * n)]
    for bad in (b"", reply[:-1], reply + b"\0", reply * 2, *no_units):
        with pytest.raises(CryptoError):
            owner.decrypt(bad, 1)
    with pytest.raises(CryptoError):
        owner.decrypt(b"", 0)
    with pytest.raises(CryptoError):
        owner.decrypt(reply, 5)  # at most four to a ciphertext
