import inspect

import pytest

from securevfl import errors
from securevfl.errors import (
    ConfigError,
    CryptoError,
    DataError,
    HeldOutLeakRefused,
    KeyMismatch,
    LabelLeakRefused,
    MalformedMessage,
    PeerError,
    PeerNotTrusted,
    PeerTimeout,
    PeerUnreachable,
    PeerViolation,
    RangeExceeded,
    SecureVFLError,
    UnexpectedMessage,
)

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", ALL)
def test_one_root_catches_everything(kind: type[Exception]) -> None:
    assert issubclass(kind, SecureVFLError)
    assert kind.__doc__


@pytest.mark.parametrize("kind", [ConfigError, DataError, HeldOutLeakRefused, LabelLeakRefused])
def test_bad_input_is_also_a_value_error(kind: type[Exception]) -> None:
    assert issubclass(kind, ValueError)


@pytest.mark.parametrize(
    "kind",
    [
        PeerUnreachable,
        PeerTimeout,
        PeerNotTrusted,
        PeerViolation,
        MalformedMessage,
        UnexpectedMessage,
    ],
)
def test_what_a_peer_does_is_no_fault_of_the_users_input(kind: type[Exception]) -> None:
    assert issubclass(kind, PeerError)
    assert not issubclass(kind, ValueError)


def test_bytes_that_do_not_fit_are_violations() -> None:
    assert issubclass(MalformedMessage, PeerViolation)
    assert issubclass(UnexpectedMessage, PeerViolation)
    assert not issubclass(PeerTimeout, PeerViolation)


def test_cryptographic_checks_stand_under_one_error() -> None:
    assert issubclass(KeyMismatch, CryptoError)
    assert issubclass(RangeExceeded, CryptoError)
    assert not issubclass(CryptoError, PeerError)
