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
        (few(0.149, own=0.1), few(0.151, own=0.1)),
        (few(0.89, own=0.8), few(0.91, own=0.8)),
        # Two standard errors are the least margin, also where little room is left.
        (few(0.19, own=0.1, error=0.5), few(0.21, own=0.1, error=0.5)),
        (few(1.0, own=0.9, error=0.1), few(1.0, own=0.9)),
    ],
)
def test_what_is_within_the_margin_resists_and_what_is_beyond_it_leaks(
    within: Finding, beyond: Finding
) -> None:
    assert judge([within]).verdict == "no_leak_found"
    assert judge([beyond]).verdict == "leaks"


def test_what_passes_the_bars_at_every_seed_leaks_for_certain() -> None:
    judgement = judge(accuracies(0.95, 0.96, 0.94))
    assert (judgement.verdict, judgement.certain) == ("leaks", True)
    low, high = judgement.interval
    # t with 2 degrees of freedom: 4.303 · 0.01/√3
    assert (low, high) == pytest.approx((0.15 - 0.02484, 0.15 + 0.02484), abs=1e-4)


def test_what_the_model_gives_anyway_is_no_leak() -> None:
    judgement = judge(accuracies(0.80, 0.801, 0.799))
    assert (judgement.verdict, judgement.certain) == ("no_leak_found", True)
    assert judge(accuracies(0.80, 0.801, 0.799, model_alone=None)).verdict == "leaks"


def test_noise_does_not_count_as_resistance() -> None:
    judgement = judge(accuracies(0.75, 0.85, 0.78))
    assert (judgement.verdict, judgement.certain) == ("leaks", False)


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
    assert (judgement.verdict, judgement.certain) == ("leaks", False)


@pytest.mark.parametrize(
    "findings",
    [[], [Finding(ACCURACY, 0.5)], accuracies(float("nan")), accuracies(0.9, float("inf"))],
)
def test_what_cannot_be_judged_is_refused(findings: list[Finding]) -> None:
    with pytest.raises(ConfigError, match=r"none, expected|cannot be judged"):
        judge(findings)


KEPT_ONE, LEAKS = accuracies(0.8)[0], accuracies(0.95)[0]
IMMUNE, NOT_RUN = Immune("nothing is there"), NotRun("it takes too long")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([KEPT_ONE, KEPT_ONE], "no_leak_found"),
        ([LEAKS, LEAKS], "leaks"),
        ([IMMUNE, IMMUNE], "immune"),
        ([NOT_RUN, NOT_RUN], "not_run"),
        ([KEPT_ONE, NOT_RUN], "not_run"),
        ([NOT_RUN, KEPT_ONE], "not_run"),
        ([LEAKS, NOT_RUN], "leaks"),
        ([NOT_RUN, LEAKS], "leaks"),
        ([IMMUNE, NOT_RUN], "not_run"),
        ([KEPT_ONE, IMMUNE], "not_run"),
        ([], "not_run"),
    ],
)
def test_resistance_has_to_be_shown_under_all_seeds(outcomes: list[Outcome], verdict: str) -> None:
    assert verdict_of(outcomes) == verdict
