"""Data at rest under a key of their own: no piece can be read, changed, moved or cut off.

STREAM (Hoang, Reyhanitabar, Rogaway, Vizár, CRYPTO 2015, section 7) over ChaCha20-Poly1305, as the
age format has it: the nonce of a chunk is its number, and a last byte that says whether it is the
last one. A key seals once, so that nonces may start at 0.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from securevfl.errors import CryptoError

KEY_BYTES, TAG_BYTES = 32, 16
CHUNK_BYTES = 1 << 20


def new_key() -> bytes:
    """A fresh key from the operating system's generator; it serves one `seal`."""
    return ChaCha20Poly1305.generate_key()


def seal(key: bytes, data: bytes, header: bytes) -> bytes:
    """The data encrypted, 16 bytes longer for every MiB begun.

    Args:
        key: 32 bytes that have sealed nothing else.
        data: what nobody without the key may read or change.
        header: what stands beside it in clear, and is authenticated with it.
    """
    cipher, view = ChaCha20Poly1305(key), memoryview(data)
    starts = range(0, len(data), CHUNK_BYTES) or range(1)
    last = len(starts) - 1
    return b"".join(
        cipher.encrypt(_nonce(index, last), view[start : start + CHUNK_BYTES], header)
        for index, start in enumerate(starts)
    )


def unseal(key: bytes, sealed: bytes, header: bytes) -> bytes:
    """What `seal` was given.

    Raises:
        CryptoError: another key or header, or bytes that are not all of what was sealed.
    """
    cipher, view = ChaCha20Poly1305(key), memoryview(sealed)
    size = CHUNK_BYTES + TAG_BYTES
    starts = range(0, len(sealed), size) or range(1)
    last = len(starts) - 1
    try:
        return b"".join(
            cipher.decrypt(_nonce(index, last), view[start : start + size], header)
            for index, start in enumerate(starts)
        )
    except InvalidTag as error:
        raise CryptoError("damaged, cut off or sealed under another key") from error


def _nonce(index: int, last: int) -> bytes:
    return index.to_bytes(11, "big") + bytes([index == last])
