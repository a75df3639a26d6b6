"""What an attack measured, by case."""

from collections.abc import Iterable

from securevfl.auditing.judging import Finding, Immune, NotRun, Outcome
from securevfl.auditing.measuring import Measurement

Cells = dict[str, Measurement]


def cells_of(measured: Iterable[Measurement]) -> Cells:
    """By the names of cases."""
    return {each.case: each for each in measured}


def finding(measured: Measurement | Outcome) -> Finding:
    """The figure; none is a failure."""
    outcome = measured.outcome if isinstance(measured, Measurement) else measured
    assert isinstance(outcome, Finding), outcome
    return outcome


def reason(measured: Measurement, kind: type[Immune | NotRun] = NotRun) -> str:
    """Why there is no figure, of this kind."""
    assert isinstance(measured.outcome, kind), measured.outcome
    return measured.outcome.reason
