"""Residues as bytes and back."""

import numpy as np
import pytest

from securevfl.crypto.bit_packing import pack, packed_size, unpack
from securevfl.errors import CryptoError


@pytest.mark.parametrize("bits", range(32, 61, 4))
def test_packing_and_unpacking_are_inverse_without_a_spare_bit(bits: int) -> None:
    generator = np.random.default_rng(bits)
    residues = generator.integers(0, 1 << bits, 100, np.uint64, endpoint=False)
    residues[:2] = 0, (1 << bits) - 1
    data = pack(residues, bits)
    assert len(data) == packed_size(100, bits) == 100 * bits // 8
    assert np.array_equal(unpack(data, 100, bits), residues)


@pytest.mark.parametrize("bits", [32, 44, 60])
def test_a_residue_that_would_be_cut_off_is_refused(bits: int) -> None:
    with pytest.raises(CryptoError, match=f"more than {bits} bits"):
        pack(np.array([0, 1 << bits], np.uint64), bits)


@pytest.mark.parametrize(("count", "bits"), [(0, 32), (3, 32), (2, 33), (2, 28), (2, 64), (2, 0)])
def test_what_does_not_pack_is_refused(count: int, bits: int) -> None:
    with pytest.raises(CryptoError):
        packed_size(count, bits)


@pytest.mark.parametrize("size", [0, 10, 12])
def test_another_number_of_bytes_is_refused(size: int) -> None:
    with pytest.raises(CryptoError, match="11 expected"):
        unpack(bytes(size), 2, 44)
