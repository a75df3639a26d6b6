"""A party's long-term Ed25519 key, and what is proved with it: signatures and links.

No authority signs identities: the agreement names the public key of each party, and a link accepts
exactly the one it expects.
"""

import base64
import binascii
import datetime
import functools
import hashlib
import importlib.resources
import os
import secrets
import ssl
import stat
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from securevfl.errors import ConfigError, DataError, PeerNotTrusted
from securevfl.files import reading, sync_folder

# Keys are trusted, not dates: a clock that is wrong by years must not end a link.
FIRST_DAY, LAST_DAY = datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31)
MOST_KEY_FILE_BYTES = 1 << 16
PUBLIC_BYTES = 32
WORDS, WORDS_OF_LIST = 6, 7776
_CHUNK = 1 << 14
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Encrypted:
    """One end of a TLS connection without a socket; not thread-safe.

    Args:
        context: of this end.
        server: whether this end accepts the connection.
    """

    def __init__(self, context: ssl.SSLContext, *, server: bool) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)

    def shake_hands(self, data: bytes) -> tuple[bytes, bool]:
        """One step of the handshake: the bytes to send, and whether it is complete.

        A client completes before the server has checked the client's certificate.

        Args:
            data: received bytes; empty for the first step.

        Raises:
            PeerNotTrusted: the other end has no certificate, or the wrong one.
        """
        if data:
            self._in.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._out.read(), False
        except ssl.SSLError as error:
            raise PeerNotTrusted(f"no TLS connection: {error.reason or error}") from error
        return self._out.read(), True

    def outgoing(self, data: bytes) -> bytes:
        """Encrypt the bytes."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._out.read()

    def incoming(self, data: bytes) -> bytes:
        """Decrypt all complete records; a PeerNotTrusted if they are not the peer's."""
        pieces = []
        self._in.write(data)
        try:
            while piece := self._tls.read(_CHUNK):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise PeerNotTrusted(f"TLS: {error.reason or error}") from error
        return b"".join(pieces)


class Identity:
    """A party's private key; `generate` or `load` one.

    Attributes:
        public: the public key, 32 bytes.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> "Identity":
        """A new identity."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path, passphrase: bytes | None = None) -> "Identity":
        """Read a key file.

        Raises:
            DataError: it cannot be read, or holds no Ed25519 key.
            ConfigError: other users may read it, or the passphrase is missing, wrong or unused.
        """
        with reading(f"key file {path}"), path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            pem = file.read(MOST_KEY_FILE_BYTES)
        if mode & _OTHERS:
            raise ConfigError(
                f"key file {path}: other users may read or write it (mode "
                f"{stat.S_IMODE(mode):04o}); make a new identity, or chmod 600 if nobody has"
            )
        locked = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in pem
        if locked != (passphrase is not None):
            wanted = "needs a passphrase" if locked else "has no passphrase, but one is given"
            raise ConfigError(f"key file {path} {wanted}")
        try:
            key = load_pem_private_key(pem, passphrase)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            if locked:
                raise ConfigError(
                    f"key file {path}: the passphrase is wrong, or the file is damaged"
                ) from error
            raise DataError(f"key file {path} is damaged: no PKCS8 key in PEM") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise DataError(f"key file {path}: not an Ed25519 key")
        return cls(key)

    def save(self, path: Path, passphrase: bytes | None = None) -> None:
        """Write a new key file that only this user may read, encrypted if there is a passphrase.

        Raises:
            ConfigError: the file exists, its folder cannot be written, or the passphrase cannot be
                used (empty, or over 1023 bytes).
        """
        pem = _private_pem(self._key, passphrase)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise ConfigError(
                f"key file {path} exists: an identity is never overwritten"
            ) from error
        except OSError as error:
            raise ConfigError(f"key file {path} cannot be written: {error.strerror}") from error
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(pem)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(path.parent)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise ConfigError(f"key file {path} cannot be written: {error.strerror}") from error

    def sign(self, context: str, data: bytes) -> bytes:
        """A signature of 64 bytes, which is good in this context only."""
        return self._key.sign(_signed(context, data))

    def tls(self, peer: bytes, *, server: bool) -> Encrypted:
        """One end of a TLS 1.3 connection, in which both ends prove their identities.

        Each connection has a key of its own, certified by the identity. Only a chain to `peer` is
        accepted: the one trusted certificate is made here, of that key alone.

        Args:
            peer: public key of the other end.
            server: whether this end accepts the connection.

        Raises:
            ConfigError: `peer` is not a public key.
            DataError: the folder for temporary files cannot be written.
        """
        side = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a name proves nothing here, the key does
        context.verify_mode = ssl.CERT_REQUIRED
        # Nobody checks an anchor's own signature, so any key may sign it.
        anchor = _certificate(peer, peer, _public_key(peer), Ed25519PrivateKey.generate(), ca=True)
        context.load_verify_locations(cadata=anchor.decode())
        key, locked = Ed25519PrivateKey.generate(), secrets.token_hex(32).encode()
        leaf = _certificate(b"", self.public, key.public_key(), self._key, ca=False)
        # OpenSSL reads keys only from files; this one is encrypted, and deleted at once.
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "key"
                path.touch(0o600)
                path.write_bytes(leaf + _private_pem(key, locked))
                context.load_cert_chain(path, password=locked)
        except OSError as error:
            raise DataError(f"no temporary file for the key of a link: {error.strerror}") from error
        return Encrypted(context, server=server)


def verify(public: bytes, context: str, data: bytes, signature: bytes, who: str) -> None:
    """Check a signature.

    Raises:
        PeerNotTrusted: it is not the identity's, or of other data or another context.
    """
    try:
        _public_key(public).verify(signature, _signed(context, data))
    except (InvalidSignature, ConfigError) as error:
        raise PeerNotTrusted(f"{who}: no valid signature of its identity ({context})") from error


def public_text(public: bytes) -> str:
    """A public key as text: base64url without padding, 43 characters."""
    return base64.urlsafe_b64encode(public).decode().rstrip("=")


def parse_public(text: str) -> bytes:
    """The public key of a text; a ConfigError unless it is exactly what `public_text` gives."""
    try:
        found = base64.b64decode(text + "=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != PUBLIC_BYTES or public_text(found) != text:
        raise ConfigError(
            f"identity = {text[:80]!r}: expected the 43 characters that `securevfl party init` "
            "shows"
        )
    return found


def words_of(data: bytes) -> str:
    """A fingerprint to read aloud: six words of the EFF's long list, 77 bits of SHA-256."""
    number, words = int.from_bytes(hashlib.sha256(data).digest()), []
    for _ in range(WORDS):
        number, at = divmod(number, WORDS_OF_LIST)
        words.append(_words()[at])
    return " ".join(words)


def random_words(count: int) -> tuple[str, ...]:
    """Words of the same list, drawn by the operating system: 12.9 bits each."""
    return tuple(secrets.choice(_words()) for _ in range(count))


@functools.cache
def _words() -> tuple[str, ...]:
    file = importlib.resources.files("xkcdpass") / "static" / "eff-long"
    words = tuple(file.read_text(encoding="utf-8").split())
    if len(set(words)) != WORDS_OF_LIST:  # two parties would read other words of the same key
        raise DataError(f"{file}: {len(set(words))} words, expected {WORDS_OF_LIST}")
    return words


def _signed(context: str, data: bytes) -> bytes:
    return b"securevfl " + context.encode() + b"\0" + data


def _public_key(public: bytes) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(public)
    except ValueError as error:
        raise ConfigError(f"{public_text(public)!r} is not an Ed25519 key") from error


def _private_pem(key: Ed25519PrivateKey, passphrase: bytes | None) -> bytes:
    kind: KeySerializationEncryption = NoEncryption()
    try:
        if passphrase is not None:
            kind = BestAvailableEncryption(passphrase)
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, kind)
    except ValueError as error:
        raise ConfigError("the passphrase must have 1 to 1023 bytes") from error


def _certificate(
    subject: bytes, issuer: bytes, key: Ed25519PublicKey, signer: Ed25519PrivateKey, *, ca: bool
) -> bytes:
    """A certificate in PEM; names are public keys, which find the issuer among trusted ones."""
    made = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(FIRST_DAY)
        .not_valid_after(LAST_DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(signer, None)
    )
    return made.public_bytes(Encoding.PEM)


def _name(public: bytes) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, public.hex() or "link")])
