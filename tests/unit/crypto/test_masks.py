import hmac
from hashlib import sha256

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from securevfl.crypto.masks import MaskKey, PairwiseMasks
from securevfl.errors import CryptoError, KeyMismatch

NAMES = ("bank", "clinic", "shop")
JOB = bytes(range(32))


def agreed(
    names: tuple[str, ...] = NAMES, job_hash: bytes = JOB, keys: list[bytes] | None = None
) -> dict[str, PairwiseMasks]:
    raw = keys or [MaskKey.generate()._private_key.private_bytes_raw() for _ in names]  # type: ignore[union-attr]
    own = {
        name: MaskKey(X25519PrivateKey.from_private_bytes(secret))
        for name, secret in zip(names, raw, strict=True)
    }
    public = {name: key.public_bytes for name, key in own.items()}
    return {
        name: key.agree(name, {n: p for n, p in public.items() if n != name}, job_hash)
        for name, key in own.items()
    }


def test_the_order_of_the_members_is_irrelevant() -> None:
    parties = agreed()
    orders = (NAMES, NAMES[::-1], ("clinic", "shop", "bank"))
    shares = [
        parties[name].zero_share(order, "x", (4,))
        for name, order in zip(NAMES, orders, strict=True)
    ]
    assert not np.add.reduce(shares, axis=0, dtype=np.uint64).any()


@pytest.mark.parametrize(
    ("context", "members", "job_hash", "swap"),
    [
        ("other", NAMES[:2], JOB, False),
        ("x", NAMES, JOB, False),
        ("x", NAMES[:2], bytes(32), False),
        ("x", NAMES[:2], JOB, True),
    ],
)
def test_streams_depend_on_context_members_job_and_keys(
    context: str, members: tuple[str, ...], job_hash: bytes, swap: bool
) -> None:
    keys = [MaskKey.generate()._private_key.private_bytes_raw() for _ in NAMES]  # type: ignore[union-attr]
    first = agreed(keys=keys)["bank"].zero_share(NAMES[:2], "x", (8,))
    other_keys = keys[::-1] if swap else keys
    second = agreed(job_hash=job_hash, keys=other_keys)["bank"].zero_share(members, context, (8,))
    assert (first != second).all()  # equal words: 8 / 2^64


def test_the_stream_is_hkdf_and_chacha20_as_documented() -> None:
    # Recomputed with the standard library's HMAC (RFC 5869) and OpenSSL's ChaCha20 keystream.
    secrets = [bytes([value]) * 32 for value in (1, 2)]
    private = [X25519PrivateKey.from_private_bytes(secret) for secret in secrets]
    public = [key.public_key().public_bytes_raw() for key in private]

    def joined(*fields: bytes) -> bytes:
        return b"".join(len(f).to_bytes(4, "big") + f for f in fields)

    info = joined(b"securevfl pairwise masks 1", b"a", public[0], b"b", public[1])
    shared = private[0].exchange(private[1].public_key())
    extracted = hmac.digest(JOB, shared, sha256().name)
    pair = hmac.digest(extracted, info + b"\x01", sha256().name)
    key = hmac.digest(pair, joined(b"x", b"a", b"b") + b"\x01", sha256().name)
    stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(24))
    parties = agreed(("a", "b"), keys=secrets)
    expected = np.frombuffer(stream, "<u8")
    np.testing.assert_array_equal(parties["a"].zero_share(("a", "b"), "x", (3,)), expected)
    np.testing.assert_array_equal(
        parties["b"].zero_share(("a", "b"), "x", (3,)), np.zeros(3, np.uint64) - expected
    )


def test_a_context_is_used_once() -> None:
    masks = agreed()["bank"]
    masks.zero_share(NAMES, "round 1", (2,))
    masks.zero_share(NAMES, "round 2", (2,))
    for members in (NAMES, NAMES[:2]):
        with pytest.raises(CryptoError, match="'round 1' was used before"):
            masks.zero_share(members, "round 1", (2,))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (("bank",), "at least 2"),
        ((), "at least 2"),
        (("clinic", "shop"), "bank is not among"),
        (("bank", "mill"), "no mask secret with mill"),
        (("bank", "shop", "shop"), "twice"),
    ],
)
def test_members_must_be_this_party_and_agreed_peers(
    members: tuple[str, ...], message: str
) -> None:
    masks = agreed()["bank"]
    with pytest.raises(CryptoError, match=message):
        masks.zero_share(members, "x", (2,))
    masks.zero_share(NAMES, "x", (2,))  # a refusal uses nothing up


@pytest.mark.parametrize(
    "public_bytes",
    [
        bytes(32),  # the points of order 4, 1 and 8 (Curve25519 paper; RFC 7748, section 6.1)
        bytes([1]) + bytes(31),
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        b"",
        bytes(31),
        bytes(33),
    ],
)
def test_low_order_and_malformed_keys_are_refused(public_bytes: bytes) -> None:
    with pytest.raises(KeyMismatch, match="clinic"):
        MaskKey.generate().agree("bank", {"clinic": public_bytes}, JOB)


def test_a_reflected_key_is_refused() -> None:
    key = MaskKey.generate()
    with pytest.raises(KeyMismatch, match="own mask key"):
        key.agree("bank", {"clinic": key.public_bytes}, JOB)


def test_a_key_agrees_once_with_others_for_a_named_job() -> None:
    key, other = MaskKey.generate(), MaskKey.generate().public_bytes
    with pytest.raises(CryptoError, match="own peers"):
        key.agree("bank", {"bank": other}, JOB)
    with pytest.raises(CryptoError, match="job_hash"):
        key.agree("bank", {"clinic": other}, b"")
    key.agree("bank", {"clinic": other}, JOB)
    with pytest.raises(CryptoError, match="was used before"):
        key.agree("bank", {"clinic": other}, JOB)
