import hashlib
from pathlib import Path

import pytest

from securevfl.crypto import curve25519
from securevfl.crypto.curve25519 import (
    new_secret,
    point_of,
    raise_all,
    raised_ids,
    raised_points,
)
from securevfl.errors import CryptoError

KEY = bytes(32)
IDS = [f"C-{number}".encode() for number in range(64)]
PRIME = 2**255 - 19
ON_CURVE, ON_TWIST = 9, 2  # RFC 7748's base point; 2 (4 + 2 A + 1) is no square


def raised(secret: bytes, points: bytes) -> bytes:
    return raise_all(raised_points(secret, points), 1, lambda _: None)


def u(value: int) -> bytes:
    return value.to_bytes(32, "little")


def test_two_secrets_raise_to_the_same_in_either_order() -> None:
    points = b"".join(point_of(KEY, each) for each in IDS)
    mine, yours = new_secret(), new_secret()
    once = raise_all(raised_ids(mine, KEY, IDS), 1, lambda _: None)
    assert once == raised(mine, points)
    assert raised(yours, once) == raised(mine, raised(yours, points))
    assert len({once[at : at + 32] for at in range(0, len(once), 32)}) == len(IDS)


def test_ids_lie_on_the_curve_and_hashes_alone_do_not() -> None:
    """A bit of a hash that lies on the twist would show in every multiple."""
    raised(new_secret(), b"".join(point_of(KEY, each) for each in IDS))
    hashes = [hashlib.blake2b(each, digest_size=32, key=KEY).digest() for each in IDS]
    on_curve = 0
    for each in hashes:
        point = each[:31] + bytes([each[31] & 127])
        try:
            raised(new_secret(), point)
            on_curve += 1
        except CryptoError:
            pass
    assert 0 < on_curve < len(IDS)


def test_points_of_one_key_are_not_those_of_another() -> None:
    assert point_of(KEY, b"id") == point_of(KEY, b"id")
    assert point_of(KEY, b"id") != point_of(bytes([1]) * 32, b"id")


@pytest.mark.parametrize(
    ("point", "told"),
    [
        (u(PRIME + ON_CURVE), "not below"),
        (u(2**255 + ON_CURVE), "not below"),
        (u(ON_TWIST), "not on the curve"),
        (u(0), "not on the curve"),
        (u(1), "of small order"),
    ],
    ids=["not reduced", "highest bit", "twist", "order 2", "order 4"],
)
def test_what_is_no_point_is_refused(point: bytes, told: str) -> None:
    raised(new_secret(), u(ON_CURVE))
    with pytest.raises(CryptoError, match=told):
        raised(new_secret(), u(ON_CURVE) + point)


def test_several_processes_do_the_same_and_write_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    written, original = [], Path.write_bytes

    def write(path: Path, data: bytes) -> int:
        written.append(bytes(data))
        return original(path, data)

    secret, shares = new_secret(), [0.0]
    alone = raise_all(raised_ids(secret, KEY, IDS), 1, lambda _: None)
    monkeypatch.setattr(curve25519, "CHUNK", 16)
    monkeypatch.setattr(curve25519, "FEW", 0)
    monkeypatch.setattr(Path, "write_bytes", write)
    assert raise_all(raised_ids(secret, KEY, IDS), 2, shares.append) == alone
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert written
    assert not any(secret in data for data in written)
