"""Uploads in fewer bytes: exact bytes, unbiased draws, hostile bytes.

The statistical tests draw from fixed seeds; with other seeds each would raise a false alarm with a
chance of 1e-9 at most, which the comments beside them derive.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, DataError, MalformedMessage
from securevfl.horizontal.compression import Compressor, Quantizer, TopK, compress

EVERY: list[Compressor] = [
    TopK(0.1),
    TopK(1.0),
    Quantizer(1),
    Quantizer(7),
    Quantizer(7, bucket=16),
    Quantizer(127, bucket=1),
    Quantizer(300),
]


def made(size: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(size)


@pytest.mark.parametrize("compressor", EVERY, ids=str)
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 1000])
def test_what_is_decoded_is_encoded_again_to_the_same_bytes(
    compressor: Compressor, size: int
) -> None:
    draws = np.random.default_rng(1)
    decoded = compressor.decode(compressor.encode(made(size), draws), size)
    assert decoded.shape == (size,)
    assert np.count_nonzero(decoded) <= size
    # Zeros have one encoding, and every compressor can say them.
    zeros = compressor.encode(np.zeros(size), draws)
    assert not np.any(compressor.decode(zeros, size))


@pytest.mark.parametrize(
    ("compressor", "size", "expected"),
    [
        # 10 of 1000: positions of 10 bits, then float32.
        (TopK(0.01), 1000, 13 + 40),
        (Quantizer(1), 1000, 4 + 250),
        (Quantizer(3), 1000, 4 + 375),
        (Quantizer(7), 1000, 4 + 500),
        (Quantizer(7, bucket=512), 1000, 8 + 500),
        (Quantizer(127), 1000, 4 + 1000),
    ],
)
def test_bytes_are_what_the_levels_need(compressor: Compressor, size: int, expected: int) -> None:
    data = compressor.encode(made(size), np.random.default_rng(0))
    assert len(data) == expected


def test_top_k_keeps_the_largest_and_error_feedback_the_rest() -> None:
    draws, compressor = np.random.default_rng(0), TopK(0.25)
    values = np.array([0.5, -4.0, 3.0, 0.25, -1.0, 0.125, 0.0, 2.0])
    data, error = compress(compressor, values, draws)
    assert compressor.decode(data, 8).tolist() == [0, -4, 3, 0, 0, 0, 0, 0]
    assert error is not None
    assert error.tolist() == [0.5, 0, 0, 0.25, -1, 0.125, 0, 2]
    # 1.5 and 2 were left out before: with what comes now they are the largest.
    data, _ = compress(compressor, np.ones(8), draws, error)
    assert compressor.decode(data, 8).tolist() == [1.5, 0, 0, 0, 0, 0, 0, 3]


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 100), st.floats(0.01, 1.0))
def test_nothing_is_lost_under_error_feedback(size: int, seed: int, share: float) -> None:
    draws, error = np.random.default_rng(seed), None
    due, sent = np.zeros(size), np.zeros(size)
    for _ in range(5):
        values = draws.standard_normal(size)
        data, error = compress(TopK(share), values, draws, error)
        due += values
        sent += TopK(share).decode(data, size)
    assert error is not None
    # Also what float32 rounds off is kept, so this is rounding of float64 alone.
    np.testing.assert_allclose(sent + error, due, atol=1e-12)


@pytest.mark.parametrize("levels", [1, 4])
@pytest.mark.parametrize("bucket", [24, 8])
def test_the_quantizer_is_unbiased_and_its_variance_bounded(levels: int, bucket: int) -> None:
    size, runs = 24, 20_000
    values = made(size, 5) * np.logspace(-2, 0, size)
    compressor, draws = Quantizer(levels, bucket), np.random.default_rng(7)
    # One upload in buckets is as good as many uploads.
    data = compressor.encode(np.tile(values, runs), draws)
    decoded = compressor.decode(data, size * runs).reshape(runs, size)
    norms = np.repeat(np.linalg.norm(values.reshape(-1, bucket), axis=1), bucket)
    # A draw is one of two numbers norm/s apart, so by Hoeffding's inequality a mean of `runs` is
    # off by norm/s·√(13/runs) with a chance of 2·exp(−2·13) at most, 2.5e-10 for all 24 entries.
    tolerance = norms / levels * np.sqrt(13 / runs)
    assert np.all(np.abs(decoded.mean(axis=0) - values) < tolerance)
    # All squared errors of a run are below the sum of (norm/s)²: one-sided, exp(−2·13) = 5e-12.
    bound = min(bucket / levels**2, np.sqrt(bucket) / levels) * np.sum(values**2)
    most = np.sum(norms**2) / levels**2
    assert np.mean(np.sum((decoded - values) ** 2, axis=1)) < bound + most * np.sqrt(13 / runs)


def test_without_buckets_the_whole_upload_is_one() -> None:
    encoded = [
        Quantizer(7, bucket).encode(made(50), np.random.default_rng(0)) for bucket in (None, 50, 60)
    ]
    assert encoded[0] == encoded[1] == encoded[2]


def test_a_norm_is_rounded_up_to_float32_so_that_no_level_is_cut_off() -> None:
    for value in np.random.default_rng(4).random(20):
        data = Quantizer(1).encode(np.array([value]), np.random.default_rng(0))
        norm = float(np.frombuffer(data[:4], "<f4")[0])
        assert value <= norm < value * (1 + 2.0**-22)


def test_a_draw_is_one_of_the_two_levels_beside_the_value() -> None:
    values, compressor = made(200, 3), Quantizer(7)
    decoded = compressor.decode(compressor.encode(values, np.random.default_rng(0)), 200)
    step = np.linalg.norm(values) / 7
    assert np.all(np.abs(decoded - values) < step * (1 + 1e-6))
    assert not np.any(decoded * values < 0)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("scale", [1e-300, 1e-44, 1e-30, 1.0, 3.4e37])
def test_very_small_and_large_values_stay_within_the_levels(scale: float, size: int) -> None:
    draws = np.random.default_rng(2)
    values = np.full(size, scale)
    for levels in (1, 7):
        compressor = Quantizer(levels)
        decoded = compressor.decode(compressor.encode(values, draws), size)
        assert np.all(np.isfinite(decoded))


@pytest.mark.parametrize("compressor", EVERY, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_what_float32_cannot_hold_is_refused(compressor: Compressor, bad: float) -> None:
    values = made(40)
    values[11] = bad
    with pytest.raises(DataError, match="upload holds"):
        compressor.encode(values, np.random.default_rng(0))


@pytest.mark.parametrize("compressor", EVERY, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_hostile_bytes_decode_finite_or_not_at_all(
    compressor: Compressor, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 40))
    right = len(compressor.encode(np.ones(size), np.random.default_rng(0)))
    hostile = data.draw(
        st.binary(min_size=right, max_size=right) | st.binary(max_size=2 * right + 1)
    )
    try:
        decoded = compressor.decode(hostile, size)
    except MalformedMessage:
        return
    assert len(hostile) == right
    assert decoded.shape == (size,)
    assert np.all(np.isfinite(decoded))


def test_each_way_to_be_no_upload_is_refused() -> None:
    draws = np.random.default_rng(0)
    top = TopK(0.5).encode(np.arange(1.0, 6.0), draws)  # 2 of 5: positions 3 and 4, 3 bits each
    assert top[0] == 3 | 4 << 3
    for first, what in [
        (3 | 3 << 3, "ascending"),
        (4 | 3 << 3, "ascending"),
        (3 | 5 << 3, "below 5"),
        (3 | 4 << 3 | 64, "bits after"),
    ]:
        with pytest.raises(MalformedMessage, match=what):
            TopK(0.5).decode(bytes([first]) + top[1:], 5)
    with pytest.raises(MalformedMessage, match="NaN or infinite"):
        TopK(0.5).decode(top[:5] + np.float32(np.nan).tobytes(), 5)
    norm = np.float32(2.0).tobytes()
    for data, what in [
        (norm + bytes([3]), "beyond 1"),  # of 0, 1 and 2
        (np.float32(-2.0).tobytes() + bytes([2]), "negative"),
        (np.float32(-0.0).tobytes() + bytes([1]), "negative"),
        (np.float32(0.0).tobytes() + bytes([2]), "norm that is 0"),
        (np.float32(np.inf).tobytes() + bytes([2]), "NaN or infinite"),
        (norm + bytes([2 | 4]), "bits after"),
        (norm, "5 expected"),
        (norm + bytes([2, 0]), "5 expected"),
    ]:
        with pytest.raises(MalformedMessage, match=what):
            Quantizer(1).decode(data, 1)


def test_settings_that_cannot_be_are_refused() -> None:
    for share in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="share"):
            TopK(share)
    for levels in (0, 2**15 + 1):
        with pytest.raises(ConfigError, match="levels"):
            Quantizer(levels)
    with pytest.raises(ConfigError, match="bucket"):
        Quantizer(1, bucket=0)
