"""What an attack of the audit is, and what comes of one: a figure, or the reason why there is none.

There are two kinds of reason, and they must not be confused. `Immune` is declared with an attack,
by what the exchange is: nothing that is tried can end there. Whatever keeps an attack from being
tried or finished is `NotShown`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from securevfl.auditing.judging import Finding, Immune, NotShown, Outcome
from securevfl.auditing.subject import Subject
from securevfl.errors import BudgetExhausted, ConfigError, RangeExceeded, TrainingDiverged

CANNOT_RUN = (BudgetExhausted, ConfigError, RangeExceeded, TrainingDiverged)
UNDER_A_HEAD = "the attack is on summed predictions, and this job has a head over representations"
IN_SHARES = "no number of a round is in clear: words_of_rounds is about what travels"
Reason = Callable[[Subject], str]
"""Why the exchange leaves an attack nothing to work on; empty where it does not."""


@dataclass(frozen=True)
class Measurement:
    """One cell of the matrix, for one seed.

    Attributes:
        attack: its name in reports.
        outcome: the figure, or why there is none.
        case: which of the attack's settings, in a few words.
        adversary: which party, and how it behaves.
        side_knowledge: what it is given beside its view.
        control: whether this is a negative control, which says nothing of the exchange.
        what_if: whether this shows other settings than the job's; no policy is about it.
    """

    attack: str
    outcome: Outcome
    case: str
    adversary: str
    side_knowledge: str
    control: bool = False
    what_if: bool = False


@dataclass(frozen=True)
class Case:
    """One of an attack's settings.

    Attributes:
        measure: runs it; an error of `CANNOT_RUN` shows nothing.
        name: empty where there is one only.
        side_knowledge: where it is not the attack's.
        control: see `Measurement`.
        what_if: see `Measurement`.
    """

    measure: Callable[[], Finding | NotShown]
    name: str = ""
    side_knowledge: str = ""
    control: bool = False
    what_if: bool = False


@dataclass(frozen=True)
class Attack:
    """An attack as the audit runs it.

    Attributes:
        name: in reports.
        adversary: which party, and how it behaves.
        side_knowledge: what it is given beside its view.
        cases: its settings for a subject.
        immune: by structure.
        takes_head: whether it has something to read where the label party has a head.
        of_components: whether it is about algorithms whose parties exchange components in place
            of predictions and residuals; no attack is about both.
    """

    name: str
    adversary: str
    side_knowledge: str
    cases: Callable[[Subject], Iterable[Case]]
    immune: Reason
    takes_head: bool = False
    of_components: bool = False

    def __call__(self, subject: Subject) -> Iterator[Measurement]:
        """A measurement for every case; one alone where the exchange is immune."""
        if subject.algorithm.own_components != self.of_components:
            yield self.without_figure(self._other_algorithm(subject))
            return
        if reason := self.immune(subject):
            yield self.without_figure(Immune(reason))
            return
        try:
            if subject.plan.representation is not None and not self.takes_head:
                raise ConfigError(UNDER_A_HEAD)
            for case in self.cases(subject):
                knowledge = case.side_knowledge or self.side_knowledge
                yield Measurement(
                    self.name,
                    _tried(case),
                    case.name,
                    self.adversary,
                    knowledge,
                    control=case.control,
                    what_if=case.what_if,
                )
        except CANNOT_RUN as error:
            yield self.without_figure(NotShown(str(error)))

    def _other_algorithm(self, subject: Subject) -> Immune | NotShown:
        """What there is to say of an algorithm that the attack is not about."""
        if self.of_components:
            return Immune("parties exchange predictions and residuals, no components")
        name = subject.algorithm.name
        return NotShown(f"algorithm = {name!r}: this attack is about predictions and residuals")

    def without_figure(self, outcome: Immune | NotShown) -> Measurement:
        """What there is to say of all cases together."""
        return Measurement(self.name, outcome, "", self.adversary, self.side_knowledge)


def _never(_: Subject) -> str:
    return ""


def attack(
    name: str,
    adversary: str,
    side_knowledge: str,
    *,
    immune: Reason = _never,
    takes_head: bool = False,
) -> Callable[[Callable[[Subject], Finding]], Attack]:
    """Make an attack from what measures its only case."""

    def declared(measure: Callable[[Subject], Finding]) -> Attack:
        def cases(subject: Subject) -> Iterable[Case]:
            return [Case(partial(measure, subject))]

        return Attack(name, adversary, side_knowledge, cases, immune, takes_head)

    return declared


def attack_in_cases(
    name: str,
    adversary: str,
    side_knowledge: str,
    *,
    immune: Reason = _never,
    takes_head: bool = False,
    of_components: bool = False,
) -> Callable[[Callable[[Subject], Iterable[Case]]], Attack]:
    """Make an attack from what lists its cases."""
    return lambda cases: Attack(
        name, adversary, side_knowledge, cases, immune, takes_head, of_components
    )


def _tried(case: Case) -> Outcome:
    try:
        return case.measure()
    except CANNOT_RUN as error:
        return NotShown(str(error))
