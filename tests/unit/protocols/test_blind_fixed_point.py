"""Fixed point of blind jobs, against numbers made elsewhere and in floats."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto import ring
from securevfl.crypto.residues import uniform_below
from securevfl.crypto.slot_parameters import PLAIN_BITS
from securevfl.errors import CryptoError, RangeExceeded
from securevfl.models.sigmoid_series import (
    LARGEST_PERIOD,
    LEAST_PERIOD,
    MOST_DOUBLINGS,
    SigmoidSeries,
)
from securevfl.protocols.blind import fixed_point
from securevfl.protocols.blind.fixed_point import MOST_FAILURE, PHASES, PhaseFormat, Widths, visits
from securevfl.protocols.blind.residuals import PhasePads, uniform_phases
from tests.plans import agreement_of, plan_of

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "fourier.json").read_text("utf-8"))
FORMAT = PhaseFormat(SigmoidSeries.of_period(64), 30)


def shared(values: FloatArray, fraction_bits: int) -> tuple[RingArray, RingArray]:
    words = ring.uniform(len(values))
    return words, ring.reduced(ring.encode(values, fraction_bits, 1e4, "H") - words)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["period"])
def test_vectors(case: dict[str, Any]) -> None:
    series = SigmoidSeries.of_period(case["period"])
    fmt = PhaseFormat(series, case["prediction_fraction_bits"])
    assert series.multiplier == case["multiplier"]
    np.testing.assert_allclose(
        series.coefficients, np.array(case["coefficients"], float), rtol=1e-12
    )
    opened, tables, rho = [], [], []
    for number, name in enumerate(("first", "second")):
        side = case[name]
        share = np.array(side["share_of_predictions"], np.uint64)
        found = fmt.phases(share, first=number == 0)
        assert found.tolist() == side["phases"]
        rho.append(np.array(side["rho"], np.uint16))
        opened.append(found + rho[-1])
        parts = fmt.parts(rho[-1])
        assert parts.tolist() == side["parts"]
        tables.append(fmt.tables(np.array(side["shares_of_products"], np.uint64)))
    z = opened[0] + opened[1]
    assert z.tolist() == case["opened"]
    for name, table in zip(("first", "second"), tables, strict=True):
        assert fmt.residuals(z, table).tolist() == case[name]["residuals"]


def test_residuals_in_shares_are_those_of_the_series() -> None:
    generator = np.random.default_rng(2)
    rows, fmt = 2000, FORMAT
    values = generator.uniform(-fmt.series.range, fmt.series.range, rows)
    rho = [uniform_phases(rows) for _ in range(2)]
    (u, v), (x, y) = (fmt.parts(each) for each in rho)
    tables = fmt.tables(np.stack([u * x - v * y, u * y + v * x]).view(np.uint64))
    masks = ring.uniform(*tables.shape)
    opened = np.zeros(rows, np.uint16)
    for number, share in enumerate(shared(values, fmt.prediction_fraction_bits)):
        opened += fmt.phases(share, first=number == 0) + rho[number]
    parts = fmt.residuals(opened, masks) + fmt.residuals(opened, tables - masks)
    errors = ring.decode(ring.reduced(parts), fmt.fraction_bits) - fmt.series.values(values)
    assert np.sqrt(np.mean(errors**2)) < 0.0015  # 0.0012
    assert np.abs(errors).max() < 0.0075  # 6 deviations
    assert abs(errors.mean()) < 6 * 0.0015 / np.sqrt(rows)
    assert fmt.fraction_bits == 26


@pytest.mark.parametrize("value", [0.0, 3.0, -27.9])
@pytest.mark.parametrize("padded", [True, False])
def test_the_opened_phase_is_uniform_whatever_h_is(value: float, *, padded: bool) -> None:
    """One party's ρ does it; without it, the other party reads H off z."""
    rows = 64_000
    first, second = shared(np.full(rows, value), 30)
    opened = FORMAT.phases(first, first=True) + FORMAT.phases(second, first=False)
    if padded:
        opened += uniform_phases(rows)
    counts = np.bincount(opened >> 6, minlength=1024)
    statistic = float(np.sum((counts - rows / 1024) ** 2) / (rows / 1024))
    assert (chi2.isf(1 - 1e-9, 1023) < statistic < chi2.isf(1e-9, 1023)) == padded


def test_every_period_has_coefficients_that_all_machines_round_alike() -> None:
    quarter = np.cos(2 * np.pi * np.arange(PHASES // 4 + 1) / PHASES)
    nearest = 1.0
    every = [SigmoidSeries.of_period(at) for at in range(LEAST_PERIOD, LARGEST_PERIOD + 1, 16)]
    bases = {SigmoidSeries.for_training(each, accelerated=True) for each in (20, 100)}
    every += [base.lengthened(each) for base in bases for each in (1, MOST_DOUBLINGS)]
    for series in every:
        scaled = np.multiply.outer(np.ldexp(series.coefficients, FORMAT.coefficient_bits), quarter)
        nearest = min(nearest, np.abs(np.abs(scaled - np.rint(scaled)) - 0.5).min())
    # Two C libraries differ by 1e-12 at most.
    assert nearest > 10 * fixed_point._TIE > 1e-12


def test_a_tie_is_refused() -> None:
    with pytest.raises(CryptoError, match="half-way"):
        fixed_point._rounded_cosines(2.5)
    with pytest.raises(CryptoError, match="do not fit 16 bits"):
        fixed_point._rounded_cosines(2.0**15)


@pytest.mark.parametrize("bits", [-1, 40])
def test_fraction_bits_beyond_the_ring_are_refused(bits: int) -> None:
    with pytest.raises(RangeExceeded, match="at most 39 expected"):
        replace(FORMAT, prediction_fraction_bits=bits)


def test_pads_are_handed_out_once() -> None:
    rho, tables = uniform_phases(6), ring.uniform(6, 4)
    pads = PhasePads()
    pads.add(rho[:4], tables[:4])
    assert pads.take(3)[0].tolist() == rho[:3].tolist()
    pads.add(rho[4:], tables[4:])
    assert len(pads) == 3
    with pytest.raises(CryptoError, match="pads of int64"):
        pads.add(rho[4:].astype(np.int64), tables[4:])
    found = pads.take(3)
    assert np.array_equal(found[1], tables[3:])
    assert found[0].tolist() == rho[3:].tolist()
    with pytest.raises(CryptoError, match="pads for 0 rows are left, 1 needed"):
        pads.take(1)


def test_pads_of_other_arrays_are_refused() -> None:
    good: dict[str, NDArray[Any]] = {"phases": uniform_phases(3), "tables": ring.uniform(3, 4)}
    wrongs: tuple[NDArray[Any], ...] = (np.zeros(3), np.zeros((2, 4), np.uint64))
    for name, wrong in product(good, wrongs):
        with pytest.raises(CryptoError, match="expected"):
            PhasePads().add(**{**good, name: wrong})


def test_tables_go_wrong_as_often_as_they_say() -> None:
    """Counted at a modulus so small that the bound is 2000 wrong numbers."""
    rows, bound = 8000, 2000
    modulus = int(FORMAT.failure_probability(rows) * 2.0**PLAIN_BITS / bound)
    (x, y), (u, v) = (FORMAT.parts(uniform_phases(rows)) for _ in range(2))
    exact = np.stack([u * x - v * y, u * y + v * x])
    masks = uniform_below(modulus, exact.size).view(np.int64).reshape(exact.shape)
    wrong = np.count_nonzero(masks + (exact - masks) % modulus - modulus != exact)
    assert 0.75 * bound < wrong < bound  # 0.85 ± 0.02, as |cos| is 2/π in the mean


def test_tables_of_phases_count_as_residuals_do() -> None:
    """Each part of a product of tables is up to 2^16, of a prime of 48 bits."""
    series = SigmoidSeries.of_period(512)
    plan = plan_of(rows=8000, job={"rounds": 120, "loss": "logistic"}, exchange={"scheme": "blind"})
    parts = visits(plan) * series.terms
    assert parts * 2.0 ** (16 - PLAIN_BITS) > 0.6 * MOST_FAILURE
    agreement = agreement_of(4, 4)
    assert Widths.of(plan, agreement, None).row_failure(plan) < MOST_FAILURE
    with pytest.raises(RangeExceeded, match="share of residuals"):
        Widths.of(plan, agreement, series)
