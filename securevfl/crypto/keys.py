"""How a public key is named."""

from hashlib import sha256


def fingerprint(public_bytes: bytes) -> str:
    """The first 16 hex digits of SHA-256: names a public key in results and logs."""
    return sha256(public_bytes).hexdigest()[:16]
