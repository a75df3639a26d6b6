from math import inf, sqrt
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.errors import ConfigError, DataError
from securevfl.privacy.clients import ClientNoise, ClientPromise, client_promise
from securevfl.privacy.mechanisms import GRID
from securevfl.privacy.streams import NoiseKey

DELTA = 1e-5
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def promised(
    multiplier: float, clients: int, taking_part: int, rounds: int, participations: int
) -> ClientPromise:
    sample: dict[str, Any] = {"clients": clients, "taking_part": taking_part, "delta": DELTA}
    return client_promise(multiplier, **sample, rounds=rounds, participations=participations)


@settings(max_examples=60)
@given(
    st.integers(1, 3000), st.integers(0, 50), st.floats(1e-6, 1e6), st.sampled_from([1e-3, 1, 1e5])
)
def test_a_clipped_upload_is_never_longer_than_agreed(
    size: int, seed: int, clip: float, scale: float
) -> None:
    values = np.random.default_rng(seed).standard_normal(size) * scale * clip
    clipped = ClientNoise(1.0, clip).clipped(values)
    # The last bits are those of the norm that is computed here.
    assert np.linalg.norm(clipped) <= clip * (1 + 1e-12)
    units = clipped / (clip / GRID)
    np.testing.assert_allclose(units, np.rint(units), rtol=0, atol=1e-6)
    length = np.linalg.norm(values)
    if length < clip * 0.999:
        np.testing.assert_allclose(clipped, values, rtol=0, atol=clip / GRID)
    else:
        expected = values * (clip / length)
        # Half a unit of rounding, and the room that is left for it.
        room = clip / GRID * (0.51 + sqrt(size) / 2)
        np.testing.assert_allclose(clipped, expected, rtol=0, atol=room)


def test_clipping_keeps_what_is_short_and_hides_nothing_infinite() -> None:
    noise = ClientNoise(1.0, 2.0)
    assert noise.clipped(np.array([0.0, 0.0])).tolist() == [0.0, 0.0]
    assert noise.clipped(np.array([0.5, -1.0])).tolist() == [0.5, -1.0]
    assert noise.clipped(np.full(3, 1e300)) == pytest.approx(np.full(3, 2 / sqrt(3)), abs=1e-5)
    for bad in (np.nan, np.inf):
        with pytest.raises(DataError, match="NaN or infinite"):
            noise.clipped(np.array([0.0, bad]))


def test_noise_has_the_deviation_that_the_sensitivity_asks_for() -> None:
    size = 40_000
    stream = NoiseKey.of_experiment(0, 0).stream("client sums")
    noisy = ClientNoise(1.5, 0.25).noisy(np.full(size, 0.125), stream)
    # z·2β; a sample deviation is off by 6/√(2n) of it with a chance of 2e-9, a mean by 6/√n.
    deviation = 1.5 * 2 * 0.25
    assert np.std(noisy) == pytest.approx(deviation, rel=6 / sqrt(2 * size))
    assert np.mean(noisy) == pytest.approx(0.125, abs=6 * deviation / sqrt(size))
    units = noisy / (0.25 / GRID)
    assert np.array_equal(units, np.rint(units))


def test_epsilon_of_hidden_samples_is_dp_accountings_own() -> None:
    found = promised(2.0, 100, 10, 50, 11)
    accountant = rdp.RdpAccountant(neighboring_relation=REPLACE_ONE)
    each = dp_accounting.SampledWithoutReplacementDpEvent(
        100, 10, dp_accounting.GaussianDpEvent(2.0)
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(each, 50))
    assert found.hidden_sample == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)
    assert 0 < found.hidden_sample < found.known_sample


def test_epsilon_of_a_known_sample_counts_the_sensitivity_of_replacing_once() -> None:
    """Another accountant, told the longest upload and to replace, doubles it by itself."""
    found = promised(4.0, 100, 10, 0, 0)
    assert (found.hidden_sample, found.known_sample) == (0.0, 0.0)
    found = promised(4.0, 10, 10, 12, 12)
    accountant = pld.PLDAccountant(neighboring_relation=REPLACE_ONE)
    # Its multiplier is over β, ours over the sensitivity 2β.
    accountant.compose(dp_accounting.GaussianDpEvent(2 * 4.0), 12)
    assert found.known_sample == pytest.approx(accountant.get_epsilon(DELTA), abs=1e-3)
    # Where everyone takes part there is nothing to hide in.
    assert found.hidden_sample == found.known_sample


def test_a_hidden_sample_promises_no_less_than_taking_part_in_every_round() -> None:
    found = promised(1.0, 10, 9, 3, 3)
    assert found.hidden_sample <= found.known_sample


def test_no_noise_promises_nothing() -> None:
    found = promised(0.0, 9, 3, 1, 1)
    assert (found.hidden_sample, found.known_sample) == (inf, inf)


def test_what_cannot_be_is_refused_by_name() -> None:
    right: dict[str, Any] = {"clients": 9, "taking_part": 3, "rounds": 2, "participations": 1}
    for delta in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="delta"):
            client_promise(1.0, **right, delta=delta)
    for wrong in ({"taking_part": 10}, {"taking_part": 0}, {"participations": 3}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            client_promise(1.0, **{**right, **wrong}, delta=DELTA)
    with pytest.raises(ConfigError, match="noise_multiplier"):
        ClientNoise(-1.0, 1.0)
    with pytest.raises(ConfigError, match="clip"):
        ClientNoise(1.0, 0.0)
