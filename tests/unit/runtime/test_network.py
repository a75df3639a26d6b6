import math

import pytest

from securevfl.errors import ConfigError
from securevfl.runtime.line import PRESETS, Line


def test_bytes_occupy_a_line_for_their_bits_over_the_bandwidth() -> None:
    network = Line(latency_ms=20, bandwidth_mbit=100)
    assert network.latency_seconds == 0.02
    assert network.transfer_seconds(12_500_000) == 1.0
    assert network.transfer_seconds(0) == 0.0


def test_the_presets_are_the_documented_ones() -> None:
    assert {name: (n.latency_ms, n.bandwidth_mbit) for name, n in PRESETS.items()} == {
        "lan": (0.5, 1000),
        "wan": (20, 100),
        "intercontinental": (150, 20),
    }


@pytest.mark.parametrize("latency", [-1.0, -1e-9, math.nan, math.inf])
def test_a_latency_that_is_no_time_is_refused(latency: float) -> None:
    with pytest.raises(ConfigError, match=r"latency_ms = .*: expected 0 or more"):
        Line(latency_ms=latency, bandwidth_mbit=1)


@pytest.mark.parametrize("bandwidth", [0.0, -5.0, math.nan])
def test_a_bandwidth_that_carries_nothing_is_refused(bandwidth: float) -> None:
    with pytest.raises(ConfigError, match=r"bandwidth_mbit = .*: expected more than 0"):
        Line(latency_ms=0, bandwidth_mbit=bandwidth)


def test_a_line_without_delay_is_allowed() -> None:
    assert Line(latency_ms=0, bandwidth_mbit=1).latency_seconds == 0
