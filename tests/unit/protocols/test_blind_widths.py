"""How likely shares of a blind job go wrong."""

import pytest

from securevfl.crypto.slot_parameters import PLAIN_BITS
from securevfl.errors import RangeExceeded
from securevfl.models.sigmoid_series import SigmoidSeries
from securevfl.protocols.blind.fixed_point import MOST_FAILURE, Widths, visits
from tests.plans import agreement_of, plan_of


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
