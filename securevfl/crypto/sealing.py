"""Encrypted data at rest, each under its own key: no piece can be read, changed, moved or cut off.

STREAM (Hoang, Reyhanitabar, Rogaway, Vizár, CRYPTO 2015, section 7) over ChaCha20-Poly1305, as in
the age format: each file has its own key, derived from a random salt. A chunk's nonce is its
number, plus a final byte that marks the last chunk.
"""

import secrets
from collections.abc import Iterator
from io import BytesIO
from itertools import count
from typing import BinaryIO

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


class SealedWriter:
    """Encrypts what is written to a file: 32 bytes longer, plus 16 per MiB begun.

    `header` is only authenticated. Nothing that was written can be read before `close`.
    """

    def __init__(self, file: BinaryIO, key: bytes, header: bytes) -> None:
        salt = secrets.token_bytes(SALT_BYTES)
        self._file, self._header, self._cipher = file, header, _cipher(key, salt)
        self._pending, self._index = bytearray(), 0
        file.write(salt)

    def write(self, data: bytes) -> None:
        """Encrypt further bytes."""
        for piece in _pieces(data):
            self._pending += piece
            if len(self._pending) > CHUNK_BYTES:  # the last chunk may be full
                self._chunk(CHUNK_BYTES, last=False)

    def close(self) -> None:
        """Mark the end."""
        self._chunk(len(self._pending), last=True)

    def _chunk(self, size: int, *, last: bool) -> None:
        chunk = bytes(self._pending[:size])
        self._file.write(self._cipher.encrypt(_nonce(self._index, last=last), chunk, self._header))
        del self._pending[:size]
        self._index += 1


def chunks_of(file: BinaryIO, key: bytes, header: bytes) -> Iterator[bytes]:
    """What was written, a MiB at a time, from where the file stands to its end.

    Each is genuine when it is given out. Raises a CryptoError for another key or header, and at the
    first chunk that was changed, moved, repeated or cut off.
    """
    cipher, size = _cipher(key, file.read(SALT_BYTES)), CHUNK_BYTES + TAG_BYTES
    ahead, last = file.read(size), False
    for index in count():
        sealed, ahead = ahead, file.read(size)
        last = not ahead
        try:
            yield cipher.decrypt(_nonce(index, last=last), sealed, header)
        except InvalidTag as error:
            raise CryptoError("damaged, cut off or sealed under another key") from error
        if last:
            return


def seal(key: bytes, data: bytes, header: bytes) -> bytes:
    """Encrypt data, see `SealedWriter`."""
    file = BytesIO()
    sealed = SealedWriter(file, key, header)
    sealed.write(data)
    sealed.close()
    return file.getvalue()


def unseal(key: bytes, sealed: bytes, header: bytes) -> bytes:
    """The inverse of `seal`; a CryptoError as `chunks_of`."""
    return b"".join(chunks_of(BytesIO(sealed), key, header))


def _pieces(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))


def _cipher(key: bytes, salt: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(HKDF(SHA256(), KEY_BYTES, salt=salt, info=_LABEL).derive(key))


def _nonce(index: int, *, last: bool) -> bytes:
    return index.to_bytes(11, "big") + bytes([last])
