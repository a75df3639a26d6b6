import os

import pytest
import tenseal.sealapi as seal

from securevfl.crypto.ckks import _context
from securevfl.crypto.seal_codec import from_bytes, split, to_bytes
from securevfl.errors import CryptoError, KeyMismatch


@pytest.fixture(scope="module")
def public_bytes() -> bytes:
    public_key = seal.PublicKey()
    seal.KeyGenerator(_context()[0]).create_public_key(public_key)
    return to_bytes(public_key)


@pytest.mark.parametrize("in_memory", [True, False])
def test_objects_come_back_with_and_without_anonymous_files(
    public_bytes: bytes, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    loaded = from_bytes(_context()[0], seal.PublicKey(), public_bytes)
    again = from_bytes(_context()[0], seal.PublicKey(), to_bytes(loaded))
    assert [again.data()[at] for at in range(9)] == [loaded.data()[at] for at in range(9)]


def test_concatenated_objects_are_cut_apart(public_bytes: bytes) -> None:
    size = len(public_bytes)
    assert split(public_bytes * 3, 3, size) == [public_bytes] * 3
    for data, count, largest in (
        (public_bytes * 3, 2, size),
        (public_bytes * 3, 4, size),
        (public_bytes, 1, size - 1),
        (public_bytes[:-1], 2, size),
        (public_bytes + b"\0", 1, size),
        (public_bytes + b"\0" * 16, 2, size),
        (b"", 1, size),
    ):
        with pytest.raises(CryptoError):
            split(data, count, largest)


@pytest.mark.parametrize("cut", [0, 3, 16, 100, -1])
def test_truncated_objects_are_refused(public_bytes: bytes, cut: int) -> None:
    with pytest.raises(KeyMismatch, match="SEAL PublicKey"):
        from_bytes(_context()[0], seal.PublicKey(), public_bytes[:cut])


def test_a_secret_key_is_no_public_key() -> None:
    secret = to_bytes(seal.KeyGenerator(_context()[0]).secret_key())
    with pytest.raises(KeyMismatch):
        from_bytes(_context()[0], seal.PublicKey(), secret)
