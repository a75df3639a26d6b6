import numpy as np
import pytest

from securevfl.errors import ConfigError, DataError
from securevfl.privacy.mechanisms import GRID, Mechanism, MechanismName
from securevfl.privacy.streams import NoiseStream

KEY = bytes(32)


@pytest.mark.parametrize(
    ("name", "outputs", "deviation"),
    [
        ("gaussian", 1, 6.0),
        ("gaussian", 3, 6.0 * np.sqrt(3)),
        ("laplace", 1, 6.0 * np.sqrt(2)),
        ("laplace", 3, 18.0 * np.sqrt(2)),
    ],
)
def test_noise_has_the_scale_of_the_sensitivity(
    name: MechanismName, outputs: int, deviation: float
) -> None:
    """Of all outputs together, in the norm of the mechanism."""
    mechanism = Mechanism(name, 1.5, clip=2.0, outputs=outputs)
    noise = mechanism.release(np.zeros(200_000), NoiseStream(KEY))
    # 200,000 draws: the deviation within 1.5 % but once in 10^9 (Laplace has the wider tails).
    assert abs(noise.std() / deviation - 1) < 0.015
    assert abs(noise.mean()) < 6 * deviation / np.sqrt(noise.size)


def test_values_are_clipped_before_noise() -> None:
    mechanism = Mechanism("gaussian", 0.0, clip=2.0)
    found = mechanism.release(np.array([[-5.0], [1.0], [3.0]]), NoiseStream(KEY))
    np.testing.assert_array_equal(found, [[-2.0], [1.0], [2.0]])


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_low_bits_of_a_release_tell_nothing(name: str) -> None:
    """Values and noise meet on a grid, where their sum is exact whatever the value is."""
    mechanism = Mechanism(name, 1.0, clip=0.7)  # type: ignore[arg-type]
    unit = 0.7 / GRID
    values = [np.full(1000, each) for each in (-0.7, 0.123456789, 0.7)]
    steps = [np.rint(mechanism.release(each, NoiseStream(KEY)) / unit) for each in values]
    released = mechanism.release(values[1], NoiseStream(KEY))
    np.testing.assert_array_equal(released, steps[1] * unit)
    # The same draw gives the same noise, to the last bit, on either side.
    np.testing.assert_array_equal(steps[2] - steps[0], np.full(1000, 2 * GRID))


def test_every_release_has_noise_of_its_own() -> None:
    mechanism, stream = Mechanism("laplace", 1.0, clip=1.0), NoiseStream(KEY)
    first, second = (mechanism.release(np.zeros(100), stream) for _ in range(2))
    assert not np.any(first == second)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_clipped_away(value: float) -> None:
    with pytest.raises(DataError, match="1 NaN or infinite"):
        Mechanism("gaussian", 1.0, clip=1.0).release(np.array([0.0, value]), NoiseStream(KEY))


@pytest.mark.parametrize(
    ("name", "multiplier", "clip", "named"),
    [
        ("gauss", 1.0, 1.0, "mechanism"),
        ("gaussian", -1.0, 1.0, "noise_multiplier"),
        ("gaussian", float("nan"), 1.0, "noise_multiplier"),
        ("laplace", 1.0, 0.0, "clip"),
        ("laplace", 1.0, float("inf"), "clip"),
    ],
)
def test_settings_that_cannot_be_are_named(
    name: str, multiplier: float, clip: float, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        Mechanism(name, multiplier, clip)  # type: ignore[arg-type]
