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
    NotShown,
    Outcome,
    decisive,
    judge,
    verdict_of,
)
from securevfl.errors import ConfigError


def accuracies(*values: float, model_alone: float | None = 0.8) -> list[Finding]:
    return [Finding(ACCURACY, value, chance=0.6, model_alone=model_alone) for value in values]


def test_an_attack_is_measured_against_the_better_of_both_bars() -> None:
    assert accuracies(0.9)[0].advantage == pytest.approx(0.1)
    assert accuracies(0.9, model_alone=0.5)[0].advantage == pytest.approx(0.3)
    assert accuracies(0.9, model_alone=None)[0].advantage == pytest.approx(0.3)


def test_an_error_is_measured_by_how_much_smaller_it_is() -> None:
    finding = Finding(RELATIVE_ERROR, 0.5, chance=1.0, model_alone=2.0)
    assert finding.advantage == pytest.approx(0.5)


def test_what_passes_the_bars_at_every_seed_leaks_for_certain() -> None:
    judgement = judge(accuracies(0.95, 0.96, 0.94))
    assert (judgement.verdict, judgement.certain) == ("leaks", True)
    low, high = judgement.interval
    # t with 2 degrees of freedom: 4.303 · 0.01/√3
    assert (low, high) == pytest.approx((0.15 - 0.02484, 0.15 + 0.02484), abs=1e-4)


def test_what_the_model_gives_anyway_is_no_leak() -> None:
    judgement = judge(accuracies(0.80, 0.801, 0.799))
    assert (judgement.verdict, judgement.certain) == ("resists", True)
    assert judge(accuracies(0.80, 0.801, 0.799, model_alone=None)).verdict == "leaks"


def test_an_advantage_within_the_margin_resists_and_beyond_it_leaks() -> None:
    assert judge(accuracies(0.829)).verdict == "resists"
    assert judge(accuracies(0.831)).verdict == "leaks"


def test_all_labels_are_a_leak_even_where_a_model_knows_nearly_all() -> None:
    assert judge(accuracies(1.0, model_alone=0.98)).verdict == "leaks"
    assert judge(accuracies(0.989, model_alone=0.98)).verdict == "resists"
    assert judge(accuracies(1.0, model_alone=1.0)).verdict == "resists"


def test_noise_does_not_count_as_resistance() -> None:
    judgement = judge(accuracies(0.75, 0.85, 0.78))
    assert (judgement.verdict, judgement.certain) == ("leaks", False)


def test_the_top_of_a_ranking_is_judged_in_proportion() -> None:
    def top(value: float, own: float) -> str:
        return judge([Finding(TOP_PRECISION, value, chance=0.05, model_alone=own)]).verdict

    assert (top(0.44, own=0.3), top(0.46, own=0.3)) == ("resists", "leaks")
    assert (top(0.89, own=0.8), top(0.91, own=0.8)) == ("resists", "leaks")
    assert top(1.0, own=1.0) == "resists"


def test_what_is_found_at_few_false_positives_is_judged_in_proportion_and_by_its_noise() -> None:
    def found(value: float, own: float, error: float = 0.0) -> str:
        finding = Finding(TRUE_POSITIVES, value, chance=0.01, model_alone=own, error=error)
        return judge([finding]).verdict

    assert (found(0.149, own=0.1), found(0.151, own=0.1)) == ("resists", "leaks")
    assert (found(0.89, own=0.8), found(0.91, own=0.8)) == ("resists", "leaks")
    # Two standard errors are the least margin, also where little room is left.
    assert (found(0.19, own=0.1, error=0.5), found(0.21, own=0.1, error=0.5)) == (
        "resists",
        "leaks",
    )
    assert (found(1.0, own=0.9), found(1.0, own=0.9, error=0.1)) == ("leaks", "resists")


def test_a_leak_by_one_figure_is_one_and_the_row_shows_it() -> None:
    accuracy = Finding(ACCURACY, 0.885, chance=0.88, model_alone=0.88)
    kept = Finding(AUC, 0.68, 0.5, 0.67, beside=(accuracy,))
    area = Finding(AUC, 0.78, 0.5, 0.67, beside=(accuracy,))
    assert [each.metric for each in decisive([kept, kept])] == [AUC, AUC]
    assert verdict_of([kept, kept]) == "resists"
    assert verdict_of([area, area]) == "leaks"
    other = Finding(ACCURACY, 0.95, chance=0.88, beside=(kept, area))
    assert decisive([other])[0].metric is ACCURACY
    hidden = Finding(AUC, 0.68, 0.5, 0.67, beside=(Finding(TOP_PRECISION, 0.7, 0.1, 0.3),))
    assert [each.metric for each in decisive([hidden, hidden])] == [TOP_PRECISION] * 2
    assert verdict_of([hidden, hidden]) == "leaks"
    assert (kept.resists, hidden.resists) == (True, False)


def test_a_rounding_error_is_allowed_and_more_is_not() -> None:
    assert judge([Finding(DEVIATION, 1e-14, allowed=1e-11)]).verdict == "resists"
    assert judge([Finding(DEVIATION, 1e-3, allowed=1e-11)]).verdict == "leaks"
    assert judge([Finding(DEVIATION, 0.0, allowed=1e-11)]).verdict == "resists"
    assert Finding(DEVIATION, 1e-3, allowed=1e-11).advantage == pytest.approx(8)


def test_one_seed_that_passes_the_bound_is_a_leak() -> None:
    within = Finding(DEVIATION, 1e-15, allowed=1e-11)
    assert judge([within, Finding(DEVIATION, 1e-14, allowed=1e-11)]).verdict == "resists"
    judgement = judge([within, within, Finding(DEVIATION, 2e-11, allowed=1e-11)])
    assert (judgement.verdict, judgement.certain) == ("leaks", False)


@pytest.mark.parametrize(
    "findings",
    [[], [Finding(ACCURACY, 0.5)], accuracies(float("nan")), accuracies(0.9, float("inf"))],
)
def test_what_cannot_be_judged_is_refused(findings: list[Finding]) -> None:
    with pytest.raises(ConfigError, match=r"none, expected|cannot be judged"):
        judge(findings)


RESISTS, LEAKS = accuracies(0.8)[0], accuracies(0.95)[0]
IMMUNE, NOT_SHOWN = Immune("nothing is there"), NotShown("it takes too long")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([RESISTS, RESISTS], "resists"),
        ([LEAKS, LEAKS], "leaks"),
        ([IMMUNE, IMMUNE], "immune"),
        ([NOT_SHOWN, NOT_SHOWN], "not_shown"),
        ([RESISTS, NOT_SHOWN], "not_shown"),
        ([NOT_SHOWN, RESISTS], "not_shown"),
        ([LEAKS, NOT_SHOWN], "leaks"),
        ([NOT_SHOWN, LEAKS], "leaks"),
        ([IMMUNE, NOT_SHOWN], "not_shown"),
        ([RESISTS, IMMUNE], "not_shown"),
        ([], "not_shown"),
    ],
)
def test_resistance_has_to_be_shown_under_all_seeds(outcomes: list[Outcome], verdict: str) -> None:
    assert verdict_of(outcomes) == verdict
