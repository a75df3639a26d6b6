"""An actor's key and certificate for one job, and connections that pin the peers' certificates.

No authority signs them: the supervisor gives each actor the certificates of exactly its peers, and
it trusts no others.
"""

import datetime
import ssl
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from securevfl.errors import PeerNotTrusted

# Allows for clocks that are a day off, and for long jobs.
BEFORE, AFTER = datetime.timedelta(days=1), datetime.timedelta(days=365)
_CHUNK = 1 << 18


class Wire(Protocol):
    """The encoding of bytes between a program and a socket."""

    def outgoing(self, data: bytes) -> bytes:
        """Encode bytes for the socket."""

    def incoming(self, data: bytes) -> bytes:
        """Decode bytes from the socket, as far as they are complete."""


class Clear:
    """Bytes without encryption."""

    def outgoing(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data

    def incoming(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data


class Identity:
    """An actor's own key and certificate.

    Args:
        name: of the actor, for the certificate's subject, which nobody checks.
    """

    def __init__(self, name: str) -> None:
        from cryptography import x509  # noqa: PLC0415  # actors over a Unix socket need none
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BEFORE)
            .not_valid_after(now + AFTER)
            .sign(key, hashes.SHA256())
        )
        self.certificate = made.public_bytes(serialization.Encoding.PEM).decode()
        self._key = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def context(self, certificates: Collection[str], *, server: bool) -> ssl.SSLContext:
        """A TLS 1.3 context in which both ends need certificates, and only these are trusted."""
        side = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate itself is compared
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata="".join(certificates))
        # OpenSSL reads keys only from files; this one is deleted at once.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "key"
            path.touch(0o600)
            path.write_bytes(self.certificate.encode() + self._key)
            context.load_cert_chain(path)
        return context


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

    def require(self, certificate: str, name: str) -> None:
        """Check that the other end has exactly this certificate; otherwise a PeerNotTrusted."""
        if self._tls.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(certificate):
            raise PeerNotTrusted(f"the other end does not have the certificate of {name!r}")

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
