"""The seed that all parties draw: the same for all, chosen by none; and the keys that have it."""

from dataclasses import replace

import numpy as np
import pytest

from securevfl.errors import KeyMismatch, PeerViolation, UnexpectedMessage
from securevfl.models.losses import Logistic
from securevfl.protocols.session import agreement
from securevfl.protocols.session.agreement import Hello, agree
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.joint_seed import OPENING_BYTES, SeedOpening, commitment
from securevfl.protocols.session.keys import PublicKey
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import Tamper, simulate
from securevfl.training import Environment
from securevfl.wire.codec import decode
from tests.jobs import Settings, breast_cancer, fit
from tests.tampering import changed

NAMES = ("bank", "shop", "lab")
JOB = bytes(32)


async def program(channel: Channel, costs: Costs) -> bytes:
    party = Party(channel, costs, NAMES, "bank", Logistic())
    return (await agree(party, JOB, np.ones((4, 2)), 3)).seed


def seeds(tamper: Tamper | None = None) -> list[bytes]:
    done = simulate(dict.fromkeys(NAMES, program), PRESETS["lan"], tamper=tamper)
    return list(done.results.values())


def test_all_parties_have_the_same_seed_and_every_job_another() -> None:
    (one, *same), (other, *_) = seeds(), seeds()
    assert same == [one, one]
    assert one != other
    assert len(one) == len(other) == 32


@pytest.mark.parametrize("odd", range(3))
def test_the_seed_depends_on_what_every_party_drew(
    odd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All draw zeros but one."""

    def seed_of(drawn: int) -> bytes:
        order = iter([bytes([drawn * (each == odd)]) * OPENING_BYTES for each in range(3)])
        monkeypatch.setattr(agreement, "fresh_opening", order.__next__)
        return seeds()[0]

    assert seed_of(0) == seed_of(0) != seed_of(1)


@pytest.mark.parametrize("opening", [bytes(32), b"", bytes(1000)])
def test_bytes_that_a_party_did_not_commit_to_are_refused_by_name(opening: bytes) -> None:
    """Otherwise the last to open would choose the seed."""
    tamper = changed(SeedOpening, lambda _: SeedOpening(opening), sender="shop", receiver="lab")
    with pytest.raises(PeerViolation, match=r"^shop opens another seed"):
        seeds(tamper)


def test_a_copied_commitment_is_no_commitment() -> None:
    """The lab repeats the shop's messages to the bank: bytes of another party's hash."""
    shops: dict[type, bytes] = {}

    def tamper(by: str, to: str, data: bytes) -> bytes:
        kind = type(decode(data))
        if to == "bank" and by == "shop":
            shops[kind] = data
        return shops.get(kind, data) if to == "bank" and by == "lab" else data

    with pytest.raises(PeerViolation, match=r"^lab opens another seed"):
        seeds(tamper)


def test_nobody_opens_before_all_have_committed() -> None:
    seen = []

    def tamper(by: str, to: str, data: bytes) -> bytes | None:
        message = decode(data)
        seen.append((by, type(message)))
        return None if by == "lab" and to == "shop" and isinstance(message, Hello) else data

    with pytest.raises(UnexpectedMessage, match="lab sent SeedOpening where Hello"):
        seeds(tamper)
    assert ("bank", SeedOpening) in seen
    assert ("shop", SeedOpening) not in seen


def test_commitments_are_bound_to_the_party_and_the_job() -> None:
    opening = bytes(OPENING_BYTES)
    made = {commitment(name, job, opening) for name in ("shop", "lab") for job in (JOB, b"x" * 32)}
    assert len(made) == 4


@pytest.mark.parametrize("exchange", ["bfv", "blind", {"scheme": "ckks"}], ids=str)
def test_a_key_of_a_seed_of_its_owners_choice_is_refused(exchange: str | Settings) -> None:
    """All other bytes are those of an honest key."""

    def other(message: PublicKey) -> PublicKey:
        material = bytearray(message.material)
        material[0] ^= 1
        return replace(message, material=bytes(material))

    with pytest.raises(KeyMismatch, match=r"^key of party.: its seed is not the one"):
        fit(breast_cancer(), exchange, Environment(tamper=changed(PublicKey, other)), rounds=2)
