"""All parties hold halves of the same pads, or none holds any."""

from functools import partial

import pytest

from securevfl.errors import PeerViolation
from securevfl.models.losses import loss_for
from securevfl.protocols.session.pad_store import NamePads, agree_on_pads
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import simulate
from securevfl.wire.codec import encode

FIRST, SECOND = "01" * 16, "02" * 16
NAMES = ("bank", "shop", "club")


def agreed(*held: str | None, lies: bytes | None = None, liar: str = "bank") -> dict[str, str]:
    """What every party gets, from what each holds; or with what one of them says replaced."""
    names = NAMES[: len(held)]

    async def program(name: str, channel: Channel, costs: Costs) -> str:
        party = Party(channel, costs, names, "bank", loss_for("logistic", 2))
        return await agree_on_pads(party, dict(zip(names, held, strict=True))[name])

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        return lies if lies is not None and sender == liar else data

    programs = {name: partial(program, name) for name in names}
    return simulate(programs, PRESETS["lan"], tamper=tamper).results


def test_new_pads_have_a_new_name_that_all_know() -> None:
    names = [agreed(None, None, None) for _ in range(2)]
    assert all(len(set(each.values())) == 1 for each in names)
    assert names[0] != names[1]
    assert len(bytes.fromhex(names[0]["bank"])) == 16


@pytest.mark.parametrize("name", NAMES)
def test_the_new_name_follows_from_every_partys_word(name: str) -> None:
    """Who hears another word of a party than that party said has another name."""
    found = agreed(None, None, None, lies=encode(NamePads(made=False, name=bytes(16))), liar=name)
    assert all(found[name] != found[other] for other in NAMES if other != name)


def test_pads_made_ahead_keep_their_name() -> None:
    assert set(agreed(FIRST, FIRST).values()) == {FIRST}


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ((FIRST, None), r"(bank|this party) holds pads made ahead and (shop|this party) none"),
        ((None, SECOND), r"(shop|this party) holds pads made ahead and (bank|this party) none"),
        ((FIRST, SECOND), r"holds pads 0[12]0[12]0[12]0[12], made ahead, and this party 0"),
        ((FIRST, FIRST, SECOND), "holds pads 0"),
    ],
)
def test_halves_of_different_pads_are_refused(held: tuple[str | None, ...], why: str) -> None:
    with pytest.raises(PeerViolation, match=why):
        agreed(*held)


@pytest.mark.parametrize("name", [b"", b"\1" * 15, b"\1" * 17])
def test_a_name_of_another_length_is_refused(name: bytes) -> None:
    with pytest.raises(PeerViolation, match="expected 16"):
        agreed(None, None, lies=encode(NamePads(made=False, name=name)))
