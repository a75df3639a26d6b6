import os
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.crypto import seal_codec
from securevfl.crypto.ckks import _context
from securevfl.crypto.seal_codec import from_bytes, polynomials_of, split, to_bytes
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


def test_temporary_files_are_private_and_gone_at_once(
    public_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []
    with seal_codec._scratch() as (descriptor, path):
        seen.append(Path(path))
        assert path.startswith(str(tmp_path))
        assert os.fstat(descriptor).st_mode & 0o077 == 0
    to_bytes(seal.Plaintext("1"))
    with pytest.raises(KeyMismatch):
        from_bytes(_context()[0], seal.PublicKey(), public_bytes[:-1])
    assert not seen[0].exists()
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_HEADER_START", b"\x5e\xa1\x10\x04\x02"),  # another version
        ("SEED_BYTES", 80),
        ("_PLAINTEXT_MEMBERS", struct.Struct("<4QQf")),
        ("_CIPHERTEXT_MEMBERS", struct.Struct("<4Q?3Qd")),
        ("_ZSTANDARD", 3),
    ],
)
def test_another_layout_of_seals_objects_is_reported_at_once(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal_codec._check_layout()
    monkeypatch.setattr(seal_codec, name, value)
    with pytest.raises(CryptoError, match="serializes otherwise"):
        seal_codec._check_layout()


def test_a_layout_that_loads_but_differs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(ciphertext: seal.Ciphertext) -> NDArray[np.uint64]:
        return np.roll(polynomials_of(ciphertext), 1)

    monkeypatch.setattr(seal_codec, "polynomials_of", shifted)
    with pytest.raises(CryptoError, match="serializes otherwise"):
        seal_codec._check_layout()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_starts_without_its_parents_file() -> None:
    """In a process of its own, as forking one with threads is not safe."""
    script = """
import os
import tenseal.sealapi as seal
from securevfl.crypto import seal_codec
seal_codec.to_bytes(seal.Plaintext("1"))
assert seal_codec._memory.descriptor is not None
child = os.fork()
if not child:
    os._exit(seal_codec._memory.descriptor is not None)
_, status = os.waitpid(child, 0)
assert status == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603


def test_threads_have_files_of_their_own() -> None:
    to_bytes(seal.Plaintext("1"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: seal_codec._memory.descriptor).result() is None


def test_a_longer_object_before_leaves_nothing_behind(public_bytes: bytes) -> None:
    from_bytes(_context()[0], seal.PublicKey(), public_bytes)
    assert to_bytes(seal.Plaintext("1x^2 + 3")) == to_bytes(seal.Plaintext("1x^2 + 3"))
    assert len(to_bytes(seal.Plaintext("1"))) < 200


def test_objects_are_read_compressed_or_not_and_no_other_way() -> None:
    data = to_bytes(seal.Plaintext("1x^2 + 3"))
    body = seal_codec._body(data)
    plain = b"".join(bytes(part) for part in seal_codec._framed([body]))
    assert seal_codec._body(plain) == body
    with pytest.raises(CryptoError, match="mode 1"):
        seal_codec._body(data[:5] + b"\1" + data[6:])
