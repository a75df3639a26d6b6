import inspect

import pytest

from securevfl import errors
from securevfl.cli.app import run_and_exit
from securevfl.errors import CryptoError, PeerError, PeerViolation, SecureVFLError

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", ALL)
def test_one_root_catches_everything(kind: type[Exception]) -> None:
    assert issubclass(kind, SecureVFLError)
    assert kind.__doc__


@pytest.mark.parametrize(
    ("base", "of_base", "others"),
    [
        # Bad input is also a ValueError, and what a peer does is no fault of it.
        (
            ValueError,
            "ConfigError DataError FeatureLeakRefused LabelLeakRefused",
            "PeerUnreachable PeerTimeout PeerNotTrusted PeerViolation MalformedMessage",
        ),
        (
            PeerError,
            "PeerUnreachable PeerTimeout PeerNotTrusted PeerViolation UnexpectedMessage",
            "CryptoError",
        ),
        (PeerViolation, "MalformedMessage UnexpectedMessage", "PeerTimeout"),
        (CryptoError, "KeyMismatch RangeExceeded", "PeerViolation"),
    ],
)
def test_errors_of_a_kind_stand_under_one(base: type[Exception], of_base: str, others: str) -> None:
    assert all(issubclass(getattr(errors, name), base) for name in of_base.split())
    assert not any(issubclass(getattr(errors, name), base) for name in others.split())


def test_an_error_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise PeerError("shop sends \x1b[2J\nand \u202e more é")

    with pytest.raises(SystemExit):
        run_and_exit(fails)
    told = "securevfl: error: shop sends \\x1b[2J and \\u202e more é\n"
    assert capsys.readouterr().err == told
