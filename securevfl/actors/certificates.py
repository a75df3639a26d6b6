"""A key and a certificate that an actor makes for one job, and connections that pin its peers'.

No authority signs them: the supervisor hands each actor the certificates of exactly its peers, and
nothing else is trusted.
"""

import datetime
import ssl
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from securevfl.errors import PeerNotTrusted

# A clock that is a day off, and a job that takes long.
BEFORE, AFTER = datetime.timedelta(days=1), datetime.timedelta(days=365)
_CHUNK = 1 << 18


class Wire(Protocol):
    """What happens to bytes on their way to a socket, and back."""

    def outgoing(self, data: bytes) -> bytes:
        """What goes onto the socket for these bytes."""

    def incoming(self, data: bytes) -> bytes:
        """What came, of what the socket gave."""


class Clear:
    """Bytes as they are."""

    def outgoing(self, data: bytes) -> bytes:
        """The same."""
        return data

    def incoming(self, data: bytes) -> bytes:
        """The same."""
        return data


class Identity:
    """An actor's own key and certificate.

    Args:
        name: of the actor; it stands in the certificate, and nothing is decided by it.
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
        """TLS 1.3 with both ends' certificates, trusting these alone."""
        side = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate itself is compared
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata="".join(certificates))
        # The only way in is a file: it is gone before anybody is connected.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "key"
            path.touch(0o600)
            path.write_bytes(self.certificate.encode() + self._key)
            context.load_cert_chain(path)
        return context


class Encrypted:
    """One end of a TLS connection whose bytes somebody else carries; for one thread.

    Args:
        context: of this end.
        server: whether it is the end that accepts.
    """

    def __init__(self, context: ssl.SSLContext, *, server: bool) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)

    def shake_hands(self, data: bytes) -> tuple[bytes, bool]:
        """A step of the handshake: what is to be sent, and whether it is over.

        Args:
            data: what came; empty for the first step.

        Raises:
            PeerNotTrusted: the other end has no certificate, or another.
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
        """Check that the other end has a certificate, and not one of somebody else's.

        Raises:
            PeerNotTrusted: it has not.
        """
        if self._tls.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(certificate):
            raise PeerNotTrusted(f"the other end has not the certificate of {name!r}")

    def outgoing(self, data: bytes) -> bytes:
        """The bytes as records."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._out.read()

    def incoming(self, data: bytes) -> bytes:
        """What came in records that are whole.

        Raises:
            PeerNotTrusted: bytes that are not the peer's.
        """
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
