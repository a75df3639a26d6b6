import gmpy2
import pytest

from securevfl.crypto import equality
from securevfl.crypto.equality import POINT_BYTES, EqualityTest
from securevfl.errors import CryptoError


def accepted(first: bytes, second: bytes, contexts: tuple[bytes, bytes] = (b"job", b"job")) -> bool:
    one, other = EqualityTest(first, contexts[0]), EqualityTest(second, contexts[1])
    accepted = one.accepts(other.point, other.tag(one.point))
    assert accepted == other.confirmed(one.point, one.confirmation(other.point))
    return accepted


def test_equal_secrets_are_accepted_and_no_others() -> None:
    assert accepted(b"same", b"same")
    assert not accepted(b"same", b"other")
    assert not accepted(b"same", b"same", (b"job", b"another job"))
    assert not accepted(b"ab", b"b", (b"j", b"ja"))  # lengths belong to what is hashed


def test_the_group_is_that_of_a_safe_prime() -> None:
    prime = equality._PRIME
    assert prime.bit_length() == 8 * POINT_BYTES
    assert gmpy2.is_prime(prime)
    assert gmpy2.is_prime(prime // 2)


def test_every_run_has_a_point_of_its_own_and_a_tag_answers_one_point() -> None:
    one, again, other = (EqualityTest(b"secret", b"") for _ in range(3))
    assert len({one.point, again.point, other.point}) == 3
    assert not again.accepts(other.point, other.tag(one.point))


def test_a_tag_cannot_be_told_from_guesses_without_an_exponent() -> None:
    """What a hash would allow: the second's answer to a point that holds another secret."""
    guess, true = EqualityTest(b"guess", b""), EqualityTest(b"true", b"")
    tag = true.tag(guess.point)
    for secret in (b"guess", b"true"):
        trying = EqualityTest(secret, b"")
        assert not trying.accepts(true.point, tag)


@pytest.mark.parametrize(
    "point",
    [
        b"",
        bytes(POINT_BYTES),
        (1).to_bytes(POINT_BYTES, "big"),
        (equality._PRIME - 1).to_bytes(POINT_BYTES, "big"),
        equality._PRIME.to_bytes(POINT_BYTES, "big"),
        b"\xff" * POINT_BYTES,
        (4).to_bytes(POINT_BYTES + 1, "big"),
    ],
)
def test_what_is_no_element_of_the_group_is_refused(point: bytes) -> None:
    test = EqualityTest(b"secret", b"")
    with pytest.raises(CryptoError, match="no element"):
        test.tag(point)
    with pytest.raises(CryptoError, match="no element"):
        test.accepts(point, bytes(32))


def test_minus_an_element_gives_the_same_tag() -> None:
    """Or it would tell the lowest bit of the exponent."""
    first, second = EqualityTest(b"secret", b""), EqualityTest(b"secret", b"")
    value = int.from_bytes(first.point, "big")
    minus = (equality._PRIME - value).to_bytes(POINT_BYTES, "big")
    assert second._tag(b"", b"", first.point, b"") == second._tag(b"", b"", minus, b"")


def test_a_tag_sent_back_is_no_confirmation() -> None:
    one, other = EqualityTest(b"same", b""), EqualityTest(b"same", b"")
    assert not other.confirmed(one.point, other.tag(one.point))
