import itertools

import pytest

from securevfl.crypto import sealing
from securevfl.crypto.sealing import SALT_BYTES, TAG_BYTES, new_key, seal, unseal
from securevfl.errors import CryptoError

CHUNK = 16
DATA = bytes(range(3 * CHUNK))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "CHUNK_BYTES", CHUNK)


def chunks_of(sealed: bytes) -> list[bytes]:
    size, sealed = CHUNK + TAG_BYTES, sealed[SALT_BYTES:]
    return [sealed[start : start + size] for start in range(0, len(sealed), size)]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK])
def test_it_comes_back_whole(size: int) -> None:
    key, data = new_key(), DATA[:size]
    sealed = seal(key, data, b"header")
    assert unseal(key, sealed, b"header") == data
    assert len(sealed) == SALT_BYTES + size + TAG_BYTES * max(1, -(-size // CHUNK))


def test_nothing_of_it_shows() -> None:
    key = new_key()
    sealed = [seal(key, bytes(3 * CHUNK), b"") for _ in range(2)]
    # Nor what two things under one key have in common.
    assert len({chunk for each in sealed for chunk in chunks_of(each)}) == 6


def test_keys_are_fresh() -> None:
    assert len({new_key() for _ in range(20)}) == 20
    assert len(new_key()) == sealing.KEY_BYTES


@pytest.mark.parametrize(
    "place", [0, SALT_BYTES, SALT_BYTES + CHUNK, SALT_BYTES + CHUNK + TAG_BYTES, -1]
)
def test_a_changed_bit_is_refused(place: int) -> None:
    key = new_key()
    sealed = bytearray(seal(key, DATA, b"header"))
    sealed[place] ^= 1
    with pytest.raises(CryptoError, match="damaged"):
        unseal(key, bytes(sealed), b"header")


def test_another_key_or_header_is_refused() -> None:
    key = new_key()
    sealed = seal(key, DATA, b"header")
    for other, header in ((new_key(), b"header"), (key, b"another")):
        with pytest.raises(CryptoError, match="another key"):
            unseal(other, sealed, header)


def test_chunks_lost_moved_repeated_or_added_are_refused() -> None:
    key = new_key()
    sealed = seal(key, DATA, b"")
    salt, whole = sealed[:SALT_BYTES], chunks_of(sealed)
    orders = {
        order
        for count in range(5)
        for order in itertools.product(range(3), repeat=count)
        if order != (0, 1, 2)
    }
    assert len(orders) == 1 + 3 + 9 + 27 + 81 - 1
    for order in orders:
        with pytest.raises(CryptoError, match="cut off"):
            unseal(key, salt + b"".join(whole[index] for index in order), b"")


def test_any_length_but_its_own_is_refused() -> None:
    key = new_key()
    sealed = seal(key, DATA, b"")
    for end in range(len(sealed)):
        with pytest.raises(CryptoError):
            unseal(key, sealed[:end], b"")
    with pytest.raises(CryptoError):
        unseal(key, sealed + b"\0", b"")
