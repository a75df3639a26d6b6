"""Encrypted data at rest, each under its own key: no piece can be read, changed, moved or cut off.

STREAM (Hoang, Reyhanitabar, Rogaway, Vizár, CRYPTO 2015, section 7) over ChaCha20-Poly1305, as in
the age format: each file has its own key, derived from a random salt. A chunk's nonce is its
number, plus a final byte that marks the last chunk.
"""

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securevfl.errors import CryptoError

KEY_BYTES, SALT_BYTES, TAG_BYTES = 32, 32, 16
CHUNK_BYTES = 1 << 20
_LABEL = b"securevfl sealed data 1"


def new_key() -> bytes:
    """A fresh key from the operating system's generator."""
    return secrets.token_bytes(KEY_BYTES)


def seal(key: bytes, data: bytes, header: bytes) -> bytes:
    """Encrypt data: 32 bytes longer, plus 16 per MiB begun; `header` is only authenticated."""
    salt, view = secrets.token_bytes(SALT_BYTES), memoryview(data)
    cipher = _cipher(key, salt)
    starts = range(0, len(data), CHUNK_BYTES) or range(1)
    last = len(starts) - 1
    return salt + b"".join(
        cipher.encrypt(_nonce(index, last), view[start : start + CHUNK_BYTES], header)
        for index, start in enumerate(starts)
    )


def unseal(key: bytes, sealed: bytes, header: bytes) -> bytes:
    """The inverse of `seal`; a CryptoError for another key or header, or changed bytes."""
    cipher, view = _cipher(key, sealed[:SALT_BYTES]), memoryview(sealed)[SALT_BYTES:]
    size = CHUNK_BYTES + TAG_BYTES
    starts = range(0, len(view), size) or range(1)
    last = len(starts) - 1
    try:
        return b"".join(
            cipher.decrypt(_nonce(index, last), view[start : start + size], header)
            for index, start in enumerate(starts)
        )
    except InvalidTag as error:
        raise CryptoError("damaged, cut off or sealed under another key") from error


def _cipher(key: bytes, salt: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(HKDF(SHA256(), KEY_BYTES, salt=salt, info=_LABEL).derive(key))


def _nonce(index: int, last: int) -> bytes:
    return index.to_bytes(11, "big") + bytes([index == last])
