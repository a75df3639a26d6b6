import numpy as np
import pytest

from securevfl.errors import PeerViolation
from securevfl.models.losses import Logistic
from securevfl.protocols.agreement import Agreement, agree, feature_bound_bits
from securevfl.protocols.exchange import Party
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.network import PRESETS
from securevfl.runtime.simulation import Program, simulate

NAMES = ("bank", "shop", "lab")


def member(
    job_hash: bytes = bytes(32),
    rows: int = 4,
    columns: int = 2,
    test_rows: int = 3,
    size: float = 1,
) -> Program[Agreement]:
    async def program(channel: Channel, costs: Costs) -> Agreement:
        party = Party(channel, costs, NAMES, "bank", Logistic())
        return await agree(party, job_hash, np.full((rows, columns), size), test_rows)

    return program


def test_parties_learn_columns_and_a_common_bound() -> None:
    programs = {"bank": member(), "shop": member(columns=7, size=-5.0), "lab": member(columns=1)}
    agreed = simulate(programs, PRESETS["lan"]).results
    assert dict(agreed["bank"].columns) == {"shop": 7, "lab": 1}
    assert {agreement.feature_bound for agreement in agreed.values()} == {8.0}


@pytest.mark.parametrize(
    ("odd_one", "told"),
    [
        (member(job_hash=b"x" * 32), "runs another job"),
        (member(rows=5), "training rows"),
        (member(test_rows=9), "held-out rows"),
        (member(size=1e30), "at most 2\\^64"),
    ],
)
def test_a_party_of_another_job_is_refused_by_name(odd_one: Program[Agreement], told: str) -> None:
    programs = {"bank": member(), "shop": odd_one, "lab": member()}
    with pytest.raises(PeerViolation, match=told):
        simulate(programs, PRESETS["lan"])


def test_masks_of_two_parties_cancel() -> None:
    programs = {name: member() for name in NAMES}
    agreed = simulate(programs, PRESETS["lan"]).results
    shares = [agreement.masks.zero_share(NAMES, "test", (5,)) for agreement in agreed.values()]
    assert np.array_equal(np.add.reduce(shares), np.zeros(5))
    assert all(share.any() for share in shares)


@pytest.mark.parametrize(
    ("largest", "bits"), [(0.0, 0), (1.0, 0), (1.01, 1), (2.0, 1), (2.1, 2), (100.0, 7)]
)
def test_the_bound_is_the_next_power_of_two(largest: float, bits: int) -> None:
    assert feature_bound_bits(np.array([[0.5, -largest]])) == bits


@pytest.mark.parametrize("bits", [10, 20, 40, 62])
def test_a_feature_a_breath_above_a_power_of_two_is_within_the_bound(bits: int) -> None:
    assert feature_bound_bits(np.array([np.nextafter(2.0**bits, np.inf)])) == bits + 1
