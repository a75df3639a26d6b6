import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securevfl.data.tables import row_digests, rows_digest
from securevfl.errors import PeerViolation
from securevfl.models.losses import Logistic
from securevfl.protocols.session import agreement
from securevfl.protocols.session.agreement import (
    Agreement,
    agree,
    feature_bound_bits,
    feature_fraction_bits,
    proof_of_rows,
)
from securevfl.protocols.session.gathering import Party
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import Program, simulate

NAMES = ("bank", "shop", "lab")


def member(
    job_hash: bytes = bytes(32),
    rows: int = 4,
    columns: int = 2,
    test_rows: int = 3,
    size: float = 1,
    *,
    parameters: int | None = None,
    encrypted: bool = True,
    digest: bytes = b"",
) -> Program[Agreement]:
    async def program(channel: Channel, costs: Costs) -> Agreement:
        party = Party(channel, costs, NAMES, "bank", Logistic())
        inputs = np.full((rows, columns), size)
        return await agree(
            party,
            job_hash,
            inputs,
            test_rows,
            parameters=parameters,
            encrypted=encrypted,
            rows_digest=digest,
        )

    return program


def test_parties_learn_columns_and_a_common_bound() -> None:
    programs = {"bank": member(), "shop": member(columns=7, size=-5.0), "lab": member(columns=1)}
    agreed = simulate(programs, PRESETS["lan"]).results
    assert dict(agreed["bank"].columns) == {"shop": 7, "lab": 1}
    assert {each.feature_bound for each in agreed.values()} == {8.0}


def test_in_clear_nothing_is_said_of_features() -> None:
    small, large = (
        simulate({name: member(size=size, encrypted=False) for name in NAMES}, PRESETS["lan"])
        for size in (1.0, 1e30)
    )
    for one, other in zip(small.results.values(), large.results.values(), strict=True):
        assert one.feature_bound == other.feature_bound
        assert one.feature_fraction_bits == other.feature_fraction_bits


@pytest.mark.parametrize(
    ("odd_one", "message"),
    [
        (member(job_hash=b"x" * 32), "runs another job"),
        (member(rows=5), "training rows"),
        (member(test_rows=9), "held-out rows"),
        (member(size=1e30), "at most 2\\^64"),
    ],
)
def test_a_party_of_another_job_is_refused_by_name(
    odd_one: Program[Agreement], message: str
) -> None:
    programs = {"bank": member(), "shop": odd_one, "lab": member()}
    with pytest.raises(PeerViolation, match=message):
        simulate(programs, PRESETS["lan"])


def test_as_many_rows_of_other_people_or_in_another_order_are_refused_by_name() -> None:
    ids, test = row_digests(range(4)), row_digests(range(4, 7))
    whole, other = rows_digest(ids, test), row_digests(range(9, 13))
    simulate({name: member(digest=whole) for name in NAMES}, PRESETS["lan"])
    swapped = ids[[1, 0, 2, 3]]
    for train, held_out in ((swapped, test), (other, test), (ids, test[::-1])):
        shop = member(digest=rows_digest(train, held_out))
        programs = {"bank": member(digest=whole), "shop": shop, "lab": member(digest=whole)}
        with pytest.raises(PeerViolation, match="others or in another order"):
            simulate(programs, PRESETS["lan"])


@pytest.mark.parametrize("shop", [b"", bytes(32)])
def test_ids_on_one_side_only_say_nothing_and_are_refused(shop: bytes) -> None:
    others = b"" if shop else bytes(32)
    programs = {name: member(digest=shop if name == "shop" else others) for name in NAMES}
    with pytest.raises(PeerViolation, match=r"has ids and .* has rows without ids"):
        simulate(programs, PRESETS["lan"])


def test_a_proof_of_rows_can_be_sent_back_by_nobody_and_links_no_jobs() -> None:
    proofs = {
        proof_of_rows(name, job, key, bytes(32))
        for name in NAMES
        for job in (bytes(32), b"j" * 32)
        for key in (bytes(32), b"k" * 32)
    }
    assert len(proofs) == 12


def test_masks_of_two_parties_cancel() -> None:
    programs = {name: member() for name in NAMES}
    agreed = simulate(programs, PRESETS["lan"]).results
    shares = [each.masks.zero_share(NAMES, "test", (5,)) for each in agreed.values()]
    assert np.array_equal(np.add.reduce(shares), np.zeros(5))
    assert all(share.any() for share in shares)


@pytest.mark.parametrize(
    ("largest", "bits"),
    [
        *((0.0, 0), (1.0, 0), (1.01, 1), (2.0, 1), (2.1, 2), (100.0, 7)),
        *((np.nextafter(2.0**bits, np.inf), bits + 1) for bits in (10, 20, 40, 62)),
    ],
)
def test_the_bound_is_the_next_power_of_two(largest: float, bits: int) -> None:
    assert feature_bound_bits(np.array([[0.5, -largest]])) == bits


@pytest.mark.parametrize(
    ("features", "bits"),
    [
        ([0.0, 0.0], 0),
        ([0.0, 1.0], 0),
        ([-3.0, 1024.0], 0),
        ([0.5], 1),
        ([-0.5, 1.0], 1),
        ([0.75, 0.5, -8.0], 2),
        ([-(2.0**-31)], 31),
        ([1.0 + 2.0**-31, -1.0], 31),
        # 32 stands for all that are not exact with fewer.
        ([2.0**-32], 32),
        ([0.1], 32),
        ([1.0, 1 / 3], 32),
        ([1e-300], 32),
        ([float("nan")], 32),
        ([float("inf")], 32),
        # 2^31 times these leaves int64.
        ([2.0**40], 32),
        ([2.0**32, 0.5], 32),
        ([2.0**31], 0),
    ],
)
def test_fraction_bits_are_the_fewest_that_are_exact(features: list[float], bits: int) -> None:
    inputs = np.array([features])
    assert feature_fraction_bits(inputs) == bits
    assert feature_fraction_bits(np.vstack([inputs, np.zeros_like(inputs)])) == bits
    if bits < 32:
        exact = np.ldexp(inputs, bits)
        assert np.array_equal(np.rint(exact), exact)
        assert bits == 0 or np.any(np.rint(exact / 2) != exact / 2)


@given(st.lists(st.integers(-(1 << 31), 1 << 31), min_size=1), st.integers(0, 31))
def test_integers_over_a_power_of_two_take_at_most_its_bits(numbers: list[int], bits: int) -> None:
    inputs = np.ldexp(np.array([numbers], np.float64), -bits)
    found = feature_fraction_bits(inputs)
    assert found <= bits
    exact = np.ldexp(inputs, found)
    assert np.array_equal(np.rint(exact), exact)


def test_all_take_the_finest_fraction_bits_of_any() -> None:
    programs = {"bank": member(), "shop": member(size=0.25), "lab": member(size=0.5)}
    agreed = simulate(programs, PRESETS["lan"]).results
    assert {each.feature_fraction_bits for each in agreed.values()} == {2}


def test_a_network_tells_its_parameters_in_place_of_its_features() -> None:
    programs = {"bank": member(), "shop": member(size=1000.0, parameters=77), "lab": member()}
    agreed = simulate(programs, PRESETS["lan"]).results
    assert agreed["lab"].columns["shop"] == 77
    assert agreed["shop"].own_columns == 77
    assert {each.feature_bound for each in agreed.values()} == {1.0}
    assert {each.feature_fraction_bits for each in agreed.values()} == {32}


def test_more_fraction_bits_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "feature_fraction_bits", lambda _: 33)
    programs = {name: member() for name in NAMES}
    with pytest.raises(PeerViolation, match="announces 33 fraction bits, at most 32"):
        simulate(programs, PRESETS["lan"])
