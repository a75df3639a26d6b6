"""Whether two parties' secrets are equal, and nothing else: one guess a run.

SPEKE (Jablon, 1996; ISO/IEC 11770-4) as an equality test: the *first* party sends g^a with g =
H(secret)², the *second* replies with g^b and a tag under H(g^ab), and the first confirms with
another tag. The group is that of squares modulo the safe prime of RFC 3526, section 5 (3072 bits).

Learns:
    both: whether the secrets are equal; otherwise nothing, even if one is a guess. The first knows
        it before the second, and may leave then.
Neither can try guesses by itself, however few bits a secret has: a hash of it would allow that.
"""

import hmac
import secrets
from hashlib import shake_256

import gmpy2
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securevfl.errors import CryptoError

_PRIME = int(
    "ffffffffffffffffc90fdaa22168c234c4c6628b80dc1cd129024e088a67cc74020bbea63b139b22514a0879"
    "8e3404ddef9519b3cd3a431b302b0a6df25f14374fe1356d6d51c245e485b576625e7ec6f44c42e9a637ed6b"
    "0bff5cb6f406b7edee386bfb5a899fa5ae9f24117c4b1fe649286651ece45b3dc2007cb8a163bf0598da4836"
    "1c55d39a69163fa8fd24cf5f83655d23dca3ad961c62f356208552bb9ed529077096966d670c354e4abc9804"
    "f1746c08ca18217c32905e462e36ce3be39e772c180e86039b2783a2ec07a28fb5c55df06f4c52c9de2bcbf6"
    "955817183995497cea956ae515d2261898fa051015728e5a8aaac42dad33170d04507a33a85521abdf1cba64"
    "ecfb850458dbef0a8aea71575d060c7db3970f85a6e1e4c7abf5ae8cdb0933d71e8c94e04a25619dcee3d226"
    "1ad2ee6bf12ffa06d98a0864d87602733ec86a64521f2b18177b200cbbe117577a615d6c770988c0bad946e2"
    "08e24fa074e5ab3143db5bfce0fd108e4b82d120a93ad2caffffffffffffffff",
    16,
)
POINT_BYTES, TAG_BYTES = 384, 32
_EXPONENT_BITS = 256
_LABEL = b"securevfl equality 1"


class EqualityTest:
    """One party's side of one run; `context` names what both know: the job, the parties, the run.

    Attributes:
        point: what it sends, `POINT_BYTES` long.
    """

    def __init__(self, secret: bytes, context: bytes) -> None:
        framed = b"".join(len(each).to_bytes(8, "big") + each for each in (_LABEL, context, secret))
        # 128 bits more than the prime has make the remainder uniform.
        base = int.from_bytes(shake_256(framed).digest(POINT_BYTES + 16), "big") % _PRIME
        self._exponent = secrets.randbits(_EXPONENT_BITS)
        self._context = context
        self.point = _bytes_of(_power(base * base % _PRIME, self._exponent))

    def tag(self, first: bytes) -> bytes:
        """The second party's tag, in answer to the first's point; a CryptoError if that is none."""
        return self._tag(first, self.point, first, b"second")

    def accepts(self, second: bytes, tag: bytes) -> bool:
        """Whether the second party's point and tag, in answer to this one's, show its equality."""
        return hmac.compare_digest(tag, self._tag(self.point, second, second, b"second"))

    def confirmation(self, second: bytes) -> bytes:
        """The first party's tag, in answer to the second's point."""
        return self._tag(self.point, second, second, b"first")

    def confirmed(self, first: bytes, tag: bytes) -> bool:
        """Whether the first party's tag shows that its secret is this one's."""
        return hmac.compare_digest(tag, self._tag(first, self.point, first, b"first"))

    def _tag(self, first: bytes, second: bytes, theirs: bytes, of: bytes) -> bytes:
        value = int.from_bytes(theirs, "big")
        if len(theirs) != POINT_BYTES or not 1 < value < _PRIME - 1:
            raise CryptoError(f"{len(theirs)} bytes that are no element of the equality test")
        # Squared, so that no factor of −1 tells a bit of the exponent.
        shared = _bytes_of(_power(value * value % _PRIME, self._exponent))
        info = b"".join((_LABEL, of, first, second, self._context))
        return HKDF(SHA256(), TAG_BYTES, salt=None, info=info).derive(shared)


def _power(base: int, exponent: int) -> int:
    return int(gmpy2.powmod_sec(base, exponent, _PRIME))


def _bytes_of(value: int) -> bytes:
    return value.to_bytes(POINT_BYTES, "big")
