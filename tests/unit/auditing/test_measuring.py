"""From an attack to an outcome: an attack that cannot be run is never taken for one that fails."""

from collections.abc import Iterator
from functools import partial

import pytest

from securevfl.auditing import measuring
from securevfl.auditing.judging import ACCURACY, Finding, Immune, NotRun
from securevfl.auditing.measuring import Attack, AttackCase, add_attack, known_attacks
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.errors import (
    BudgetExhausted,
    ConfigError,
    LabelLeakRefused,
    RangeExceeded,
    TrainingDiverged,
)
from securevfl.job import Job

CANNOT_RUN = [BudgetExhausted, ConfigError, LabelLeakRefused, RangeExceeded, TrainingDiverged]
FOUND = Finding(ACCURACY, 0.5, chance=0.5)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(Job.of(exchange={"scheme": "bfv"}), load("breast_cancer"), 0)


@pytest.mark.parametrize("error", CANNOT_RUN)
def test_an_attack_that_cannot_be_run_is_not_run(error: type[Exception], subject: Subject) -> None:
    @partial(Attack, "some", "anybody", "nothing")
    def fails(_: Subject) -> Finding:
        raise error("why")

    (measured,) = fails(subject)
    assert measured.outcome == NotRun("why")
    assert (measured.attack, measured.adversary, measured.case) == ("some", "anybody", "")


@pytest.mark.parametrize("error", CANNOT_RUN)
def test_a_case_that_cannot_be_run_leaves_the_others(
    error: type[Exception], subject: Subject
) -> None:
    def refused() -> Finding:
        raise error("why")

    @partial(Attack, "some", "anybody", "nothing")
    def cases(_: Subject) -> Iterator[AttackCase]:
        yield AttackCase(refused, "first")
        yield AttackCase(lambda: FOUND, "second", side_knowledge="something", what_if=True)
        raise error("no more")

    first, second, rest = cases(subject)
    assert (first.case, first.outcome) == ("first", NotRun("why"))
    assert (second.case, second.outcome, second.what_if) == ("second", FOUND, True)
    assert (first.side_knowledge, second.side_knowledge) == ("nothing", "something")
    assert (rest.case, rest.outcome, rest.what_if) == ("", NotRun("no more"), False)


def test_an_immune_exchange_is_not_attacked(subject: Subject) -> None:
    @partial(Attack, "some", "anybody", "nothing", immune=lambda each: f"{each.scheme} has none")
    def never(_: Subject) -> Finding:
        raise AssertionError

    (measured,) = never(subject)
    assert measured.outcome == Immune("bfv has none")


def test_a_bug_is_no_verdict(subject: Subject) -> None:
    @partial(Attack, "some", "anybody", "nothing")
    def broken(_: Subject) -> Finding:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(broken(subject))


def test_a_name_is_taken_once_and_an_attack_from_elsewhere_is_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "_ATTACKS", dict(known_attacks()))
    with pytest.raises(ConfigError, match="attack 'gram': the name is taken"):
        add_attack(known_attacks()["gram"])
    added = add_attack(Attack("some", "anybody", "nothing", lambda _: FOUND))
    assert [*known_attacks().values()][-1] is added
    assert [*known_attacks()][:2] == ["rotation_twin", "gram"]
