import numpy as np
import pytest

from securevfl.auditing.judging import (
    ACCURACY,
    AUC,
    DEVIATION,
    RELATIVE_ERROR,
    TOP_PRECISION,
    TRUE_POSITIVES,
    Finding,
    Immune,
    NotRun,
    Outcome,
    decisive,
    judge,
    verdict_of,
)
from securevfl.errors import ConfigError


def accuracies(*values: float, model_alone: float | None = 0.8) -> list[Finding]:
    return [Finding(ACCURACY, value, chance=0.6, model_alone=model_alone) for value in values]


@pytest.mark.parametrize(
    ("found", "advantage"),
    [
        (accuracies(0.9)[0], 0.1),
        (accuracies(0.9, model_alone=0.5)[0], 0.3),
        (accuracies(0.9, model_alone=None)[0], 0.3),
        # An error by how much smaller it is.
        (Finding(RELATIVE_ERROR, 0.5, chance=1.0, model_alone=2.0), 0.5),
        (Finding(DEVIATION, 1e-3, allowed=1e-11), 8),
    ],
)
def test_an_attack_is_measured_against_the_better_of_both_bars(
    found: Finding, advantage: float
) -> None:
    assert found.advantage == pytest.approx(advantage)


def top(value: float, own: float) -> Finding:
    return Finding(TOP_PRECISION, value, chance=0.05, model_alone=own)


def few(value: float, own: float, error: float = 0.0) -> Finding:
    return Finding(TRUE_POSITIVES, value, chance=0.01, model_alone=own, error=error)


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        # An advantage within the margin, and beyond it.
        (accuracies(0.829)[0], accuracies(0.831)[0]),
        # All labels are a leak even where a model knows nearly all.
        (accuracies(0.989, model_alone=0.98)[0], accuracies(1.0, model_alone=0.98)[0]),
        (accuracies(1.0, model_alone=1.0)[0], accuracies(1.0, model_alone=0.98)[0]),
        # The top of a ranking and what is found at few false positives, in proportion.
        (top(0.44, own=0.3), top(0.46, own=0.3)),
        (top(0.89, own=0.8), top(0.91, own=0.8)),
        (top(1.0, own=1.0), top(1.0, own=0.8)),
        (few(0.145, own=0.1), few(0.155, own=0.1)),
        (few(0.89, own=0.8), few(0.91, own=0.8)),
        # Three standard errors are the least margin, also where little room is left.
        (few(0.24, own=0.1, error=0.5), few(0.26, own=0.1, error=0.5)),
        (few(1.0, own=0.9, error=0.1), few(1.0, own=0.9)),
    ],
)
def test_what_is_within_the_margin_is_no_leak_and_what_is_beyond_it_is_one(
    within: Finding, beyond: Finding
) -> None:
    assert judge([within] * 5).verdict == "no_leak_found"
    assert judge([beyond] * 5).verdict == "leaks"
    # Margins are for many seeds: one has to be farther away, unless both are exact.
    assert judge([within]).verdict in {"undecided", "no_leak_found"}
    assert judge([beyond]).verdict in {"undecided", "leaks"}


def test_the_median_decides_with_the_range_of_order_statistics_that_covers_it() -> None:
    judgement = judge(accuracies(0.95, 0.96, 0.94))
    assert judgement.verdict == "leaks"
    assert judgement.advantage == pytest.approx(0.15)
    # An eighth of the margin, 0.03, beyond both ends.
    assert judgement.interval == pytest.approx((0.14 - 0.00375, 0.16 + 0.00375))
    # Of nine seeds the least and the largest are left out: 96 %.
    nine = judge(accuracies(0.1, *np.linspace(0.91, 0.97, 7), 1.0))
    assert nine.interval == pytest.approx((0.11, 0.17), abs=1e-4)
    assert nine.verdict == "leaks"


@pytest.mark.parametrize("seeds", [1, 2, 5, 8, 9, 12, 30])
def test_the_interval_covers_the_median_as_often_as_it_says(
    seeds: int, generator: np.random.Generator
) -> None:
    errors = 0.5 * generator.standard_cauchy((2000, seeds))  # its median is 0.5, with heavy tails
    intervals = [
        judge([Finding(RELATIVE_ERROR, float(each), chance=1.0) for each in 0.5 + drawn]).interval
        for drawn in errors
    ]
    covered = np.mean([low <= 0.5 <= high for low, high in intervals])
    expected = {1: 0.0, 2: 0.5, 5: 0.93}.get(seeds, 0.94)
    assert covered >= expected


def test_a_single_seed_decides_only_far_from_the_margin() -> None:
    verdicts = [judge(accuracies(0.8 + far * 0.03)).verdict for far in (0.4, 0.6, 1.4, 1.6)]
    assert verdicts == ["no_leak_found", "undecided", "undecided", "leaks"]


def test_heavy_tails_decide_nothing() -> None:
    def errors(*values: float) -> list[Finding]:
        return [Finding(RELATIVE_ERROR, value, chance=1.0) for value in values]

    assert [judge(errors(each)).verdict for each in (0.3, 8.8)] == ["leaks", "undecided"]
    assert judge(errors(1.2, 8.8, 0.8)).verdict == "undecided"
    # Worse than chance is no leak, however far; a mean over the seeds would hide the leak below.
    assert judge(errors(1.2, 8.8, 1.0)).verdict == "no_leak_found"
    assert judge(errors(0.2, 0.3, 0.1, 0.2, 0.85)).verdict == "leaks"


def test_what_the_model_gives_anyway_is_no_leak() -> None:
    assert judge(accuracies(0.80, 0.801, 0.799)).verdict == "no_leak_found"
    assert judge(accuracies(0.80, 0.801, 0.799, model_alone=None)).verdict == "leaks"


def test_an_interval_that_holds_the_margin_is_undecided() -> None:
    assert judge(accuracies(0.75, 0.85, 0.78)).verdict == "undecided"


def test_a_leak_by_one_figure_is_one_and_the_row_shows_it() -> None:
    accuracy = Finding(ACCURACY, 0.885, chance=0.88, model_alone=0.88)
    kept = Finding(AUC, 0.68, 0.5, 0.67, beside=(accuracy,))
    area = Finding(AUC, 0.78, 0.5, 0.67, beside=(accuracy,))
    assert [each.metric for each in decisive([kept, kept])] == [AUC, AUC]
    assert verdict_of([kept, kept]) == "no_leak_found"
    assert verdict_of([area, area]) == "leaks"
    other = Finding(ACCURACY, 0.95, chance=0.88, beside=(kept, area))
    assert decisive([other])[0].metric is ACCURACY
    hidden = Finding(AUC, 0.68, 0.5, 0.67, beside=(Finding(TOP_PRECISION, 0.7, 0.1, 0.3),))
    assert [each.metric for each in decisive([hidden, hidden])] == [TOP_PRECISION] * 2
    assert verdict_of([hidden, hidden]) == "leaks"
    assert (kept.within, hidden.within) == (True, False)


def test_a_rounding_error_is_allowed_and_more_is_not() -> None:
    for deviation, verdict in ((1e-14, "no_leak_found"), (1e-3, "leaks"), (0.0, "no_leak_found")):
        assert judge([Finding(DEVIATION, deviation, allowed=1e-11)]).verdict == verdict


def test_one_seed_that_passes_the_bound_is_a_leak() -> None:
    within = Finding(DEVIATION, 1e-15, allowed=1e-11)
    assert judge([within, Finding(DEVIATION, 1e-14, allowed=1e-11)]).verdict == "no_leak_found"
    judgement = judge([within, within, Finding(DEVIATION, 2e-11, allowed=1e-11)])
    assert (judgement.verdict, judgement.advantage) == ("leaks", judgement.interval[1])


@pytest.mark.parametrize(
    "findings",
    [[], [Finding(ACCURACY, 0.5)], accuracies(float("nan")), accuracies(0.9, float("inf"))],
)
def test_what_cannot_be_judged_is_refused(findings: list[Finding]) -> None:
    with pytest.raises(ConfigError, match=r"none, expected|cannot be judged"):
        judge(findings)


WITHIN, LEAKS, OPEN = accuracies(0.8)[0], accuracies(0.95)[0], accuracies(0.83)[0]
IMMUNE, NOT_RUN = Immune("nothing is there"), NotRun("it takes too long")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([WITHIN, WITHIN], "no_leak_found"),
        ([LEAKS, LEAKS], "leaks"),
        ([IMMUNE, IMMUNE], "immune"),
        ([NOT_RUN, NOT_RUN], "not_run"),
        ([WITHIN, NOT_RUN], "not_run"),
        ([OPEN, OPEN], "undecided"),
        ([LEAKS, WITHIN], "undecided"),
        ([OPEN, NOT_RUN], "undecided"),
        ([NOT_RUN, WITHIN], "not_run"),
        ([LEAKS, NOT_RUN], "leaks"),
        ([NOT_RUN, LEAKS], "leaks"),
        ([IMMUNE, NOT_RUN], "not_run"),
        ([WITHIN, IMMUNE], "not_run"),
        ([], "not_run"),
    ],
)
def test_that_nothing_leaks_has_to_hold_under_all_seeds(
    outcomes: list[Outcome], verdict: str
) -> None:
    assert verdict_of(outcomes) == verdict
