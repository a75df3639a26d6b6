"""What an attack of the audit is, and its outcome: a figure, or the reason why there is none.

An attack declares for which exchanges it is `Immune`: their structure leaves it nothing to read.
The outcome is `NotRun` where an exchange from another package shows more than it declares, or
where the attack cannot run or finish.

Each attack is described beside the code that measures it and registered by `add_attack`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from securevfl.auditing.judging import Finding, Immune, NotRun, Outcome
from securevfl.auditing.subject import Subject
from securevfl.errors import BudgetExhausted, ConfigError, RangeExceeded, TrainingDiverged

CANNOT_RUN = (BudgetExhausted, ConfigError, RangeExceeded, TrainingDiverged)
UNDER_A_HEAD = "the attack reads summed predictions, but this job has a head over representations"
LAST = 1000
Reason = Callable[[Subject], str]
"""Why an exchange leaves an attack nothing to read; empty where it leaves something."""


@dataclass(frozen=True)
class Measurement:
    """One cell of the matrix, for one seed."""

    attack: str  # its name in reports
    outcome: Outcome
    case: str  # which of the attack's settings, in a few words
    adversary: str  # which party, and how it behaves
    side_knowledge: str  # what it knows besides its view
    control: bool = False  # a negative control, which says nothing about the exchange
    what_if: bool = False  # settings that the job does not have; policies ignore them


@dataclass(frozen=True)
class AttackCase:
    """One of an attack's settings."""

    measure: Callable[[], Finding | NotRun]  # an error of `CANNOT_RUN` counts as not run
    name: str = ""
    side_knowledge: str = ""  # where it differs from the attack's
    control: bool = False
    what_if: bool = False


@dataclass(frozen=True)
class Attack:
    """An attack as the audit runs it."""

    name: str  # in reports
    adversary: str  # which party, and how it behaves
    side_knowledge: str  # what it knows besides its view
    # The figure for a subject, or one case for each setting
    measure: Callable[[Subject], Finding | NotRun | Iterable[AttackCase]]
    immune: Reason = lambda _: ""
    takes_head: bool = False  # whether it can read jobs in which the label party has a head
    # Whether it attacks algorithms that exchange components instead of predictions and residuals
    of_components: bool = False
    place: int = LAST  # of its row in the table
    cost: float = 0.3  # rough run time relative to the other attacks, for the progress display
    quick: bool = True  # whether `--quick` runs it

    def __call__(self, subject: Subject) -> Iterator[Measurement]:
        """Yield one measurement per case, or a single one where there is no figure at all."""
        if subject.algorithm.own_components != self.of_components:
            yield self.without_figure(
                Immune("parties exchange predictions and residuals, no components")
                if self.of_components
                else NotRun(
                    f"algorithm = {subject.algorithm.name!r}: this attack is about predictions and "
                    "residuals"
                )
            )
            return
        try:
            if reason := self.immune(subject):
                denied = subject.contradiction
                yield self.without_figure(NotRun(denied) if denied else Immune(reason))
                return
            if subject.plan.representation is not None and not self.takes_head:
                raise ConfigError(UNDER_A_HEAD)
            found = self.measure(subject)
            if isinstance(found, Finding | NotRun):
                yield self.without_figure(found)
                return
            for case in found:
                yield Measurement(
                    self.name,
                    _outcome(case),
                    case.name,
                    self.adversary,
                    case.side_knowledge or self.side_knowledge,
                    control=case.control,
                    what_if=case.what_if,
                )
        except CANNOT_RUN as error:
            yield self.without_figure(NotRun(str(error)))

    def without_figure(self, outcome: Outcome) -> Measurement:
        """One outcome for all cases together."""
        return Measurement(self.name, outcome, "", self.adversary, self.side_knowledge)


def _outcome(case: AttackCase) -> Outcome:
    try:
        return case.measure()
    except CANNOT_RUN as error:
        return NotRun(str(error))


_ATTACKS: dict[str, Attack] = {}


def add_attack(attack: Attack) -> Attack:
    """Register an attack under its name; also usable as a decorator."""
    if attack.name in _ATTACKS:
        raise ConfigError(f"attack {attack.name!r}: the name is taken")
    _ATTACKS[attack.name] = attack
    return attack


def known_attacks() -> Mapping[str, Attack]:
    """All attacks by name, in the order of their rows: those of `measures`, and added ones."""
    folder = import_module("securevfl.auditing.measures")
    for module in iter_modules(folder.__path__, f"{folder.__name__}."):
        import_module(module.name)
    return dict(sorted(_ATTACKS.items(), key=lambda item: item[1].place))
