"""One-time masks that cancel: additive shares of zero modulo 2^64.

Each pair of parties agrees on a secret (X25519, HKDF-SHA256). One of the two adds a ChaCha20 stream
under this secret, the other subtracts it. The sum over all members is zero, and any proper subset
of the shares looks uniform to a party that lacks one of the pair secrets (Bonawitz et al.,
"Practical Secure Aggregation", CCS 2017, section 4, without drop-outs).

Keys are fresh for each job and never stored, so a resumed job has new streams.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from securevfl.arrays import RingArray
from securevfl.errors import CryptoError, KeyMismatch

_LABEL = b"securevfl pairwise masks 1"


class WordStream:
    """Consecutive 64-bit words of one ChaCha20 stream; a key of 32 bytes gives 256 GiB."""

    def __init__(self, key: bytes) -> None:
        # The key is used for this stream only, so the nonce may be constant.
        self._encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def words(self, count: int) -> RingArray:
        """The next words, little-endian."""
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), "<u8").astype(np.uint64)


class MaskKey:
    """A party's fresh X25519 key for one job; used for one agreement."""

    def __init__(self, private_key: X25519PrivateKey) -> None:
        self._private_key: X25519PrivateKey | None = private_key
        self._public_bytes = private_key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> "MaskKey":
        """A fresh key from the operating system's generator."""
        return cls(X25519PrivateKey.generate())

    @property
    def public_bytes(self) -> bytes:
        """The 32 bytes that the other parties need."""
        return self._public_bytes

    def agree(self, own_name: str, peers: Mapping[str, bytes], job_hash: bytes) -> "PairwiseMasks":
        """Agree on a secret with every peer, bound to the job; the private key is dropped.

        Raises:
            KeyMismatch: an invalid public key, one of low order, or this party's own.
            CryptoError: the key was used before, the party is among its peers, or the hash is
                empty.
        """
        if own_name in peers:
            raise CryptoError(f"{own_name} is among its own peers")
        if not job_hash:
            raise CryptoError("job_hash is empty, a hash of the job expected")
        if self._private_key is None:
            raise CryptoError("this mask key was used before; every job needs a fresh one")
        private_key, self._private_key = self._private_key, None
        secrets = {}
        for name, public_bytes in peers.items():
            if public_bytes == self._public_bytes:
                raise KeyMismatch(f"{name} sent this party's own mask key")
            ends = sorted([(own_name, self._public_bytes), (name, public_bytes)])
            fields = [field for end, key in ends for field in (end.encode(), key)]
            derive = HKDF(SHA256(), 32, salt=job_hash, info=_joined(_LABEL, *fields))
            secrets[name] = derive.derive(_shared_secret(private_key, name, public_bytes))
        return PairwiseMasks(own_name, secrets)


class PairwiseMasks:
    """A party's pair secrets of one job, 32 bytes shared with each other party."""

    def __init__(self, own_name: str, secrets: Mapping[str, bytes]) -> None:
        self._own_name = own_name
        self._secrets = dict(secrets)
        self._used: set[str] = set()

    def zero_share(self, members: Sequence[str], context: str, shape: tuple[int, ...]) -> RingArray:
        """This party's share of zero among the members, which include it, in any order.

        Guarantees: the members' shares for one context and shape sum to 0 modulo 2^64. Each share
        is uniform to anyone who lacks one of this party's pair secrets with the members. All
        members use the same context, and each context is used once.

        Raises:
            CryptoError: a context used before, fewer than two members, an unknown or repeated name,
                or this party is missing.
        """
        self._require_members(members)
        if context in self._used:
            raise CryptoError(f"mask context {context!r} was used before: masks are one-time")
        self._used.add(context)
        info = _joined(context.encode(), *(name.encode() for name in sorted(members)))
        share = np.zeros(prod(shape), np.uint64)
        for name in members:
            if name > self._own_name:
                share += self._stream(name, info, share.size)
            elif name < self._own_name:
                share -= self._stream(name, info, share.size)
        return share.reshape(shape)

    def _require_members(self, members: Sequence[str]) -> None:
        if len(members) < 2:  # noqa: PLR2004
            raise CryptoError(f"{len(members)} members, at least 2 expected to hide one another")
        if len(set(members)) != len(members):
            raise CryptoError(f"members {', '.join(members)} name a party twice")
        if self._own_name not in members:
            raise CryptoError(f"{self._own_name} is not among the members {', '.join(members)}")
        unknown = set(members) - self._secrets.keys() - {self._own_name}
        if unknown:
            raise CryptoError(f"no mask secret with {', '.join(sorted(unknown))}")

    def _stream(self, name: str, info: bytes, count: int) -> RingArray:
        key = HKDFExpand(SHA256(), 32, info=info).derive(self._secrets[name])
        return WordStream(key).words(count)


def _shared_secret(private_key: X25519PrivateKey, name: str, public_bytes: bytes) -> bytes:
    try:
        return private_key.exchange(X25519PublicKey.from_public_bytes(public_bytes))
    except ValueError as error:  # wrong length, or an all-zero secret: a point of low order
        raise KeyMismatch(
            f"{name}'s mask key is no usable X25519 key of 32 bytes ({len(public_bytes)} bytes)"
        ) from error


def _joined(*fields: bytes) -> bytes:
    """Length-prefixed fields, so that different lists never give the same bytes."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)
