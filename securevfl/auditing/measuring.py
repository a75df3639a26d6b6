"""What an attack of the audit is, and what comes of one: a figure, or the reason why there is none.

`Immune` is declared with an attack, by what the exchange is: nothing that is tried can end there.
If an exchange from another package shows more than it says, its immunity is `NotShown` instead.
An attack that cannot be tried or finished is `NotShown` as well.

Every attack describes itself where it is measured; `add_attack` makes it known.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from securevfl.auditing.judging import Finding, Immune, NotShown, Outcome
from securevfl.auditing.subject import Subject
from securevfl.errors import BudgetExhausted, ConfigError, RangeExceeded, TrainingDiverged

CANNOT_RUN = (BudgetExhausted, ConfigError, RangeExceeded, TrainingDiverged)
UNDER_A_HEAD = "the attack is on summed predictions, and this job has a head over representations"
IN_SHARES = "no number of a round is in clear: words_of_rounds is about what travels"
LAST = 1000
Reason = Callable[[Subject], str]
"""Why the exchange leaves an attack nothing to work on; empty where it does not."""


@dataclass(frozen=True)
class Measurement:
    """One cell of the matrix, for one seed."""

    attack: str  # its name in reports
    outcome: Outcome  # the figure, or why there is none
    case: str  # which of the attack's settings, in a few words
    adversary: str  # which party, and how it behaves
    side_knowledge: str  # what it is given beside its view
    control: bool = False  # a negative control, which says nothing of the exchange
    what_if: bool = False  # other settings than the job's; no policy is about it


@dataclass(frozen=True)
class AttackCase:
    """One of an attack's settings."""

    measure: Callable[[], Finding | NotShown]  # runs it; an error of `CANNOT_RUN` shows nothing
    name: str = ""
    side_knowledge: str = ""  # where it is not the attack's
    control: bool = False
    what_if: bool = False


@dataclass(frozen=True)
class Attack:
    """An attack as the audit runs it."""

    name: str  # in reports
    adversary: str  # which party, and how it behaves
    side_knowledge: str  # what it is given beside its view
    # The figure for a subject, or its settings where there are several
    measure: Callable[[Subject], Finding | NotShown | Iterable[AttackCase]]
    immune: Reason = lambda _: ""  # by structure
    takes_head: bool = False  # whether it has something to read where the label party has a head
    # Whether it is about algorithms whose parties exchange components in place of predictions and
    # residuals; no attack is about both
    of_components: bool = False
    place: int = LAST  # where its row stands among the others
    cost: float = 0.3  # how long it takes beside the others, roughly: progress is weighed by it
    quick: bool = True  # whether a first look takes it

    def __call__(self, subject: Subject) -> Iterator[Measurement]:
        """A measurement for every case; one alone where the exchange is immune."""
        if subject.algorithm.own_components != self.of_components:
            yield self.without_figure(self._other_algorithm(subject))
            return
        try:
            if reason := self.immune(subject):
                denied = subject.contradiction
                yield self.without_figure(NotShown(denied) if denied else Immune(reason))
                return
            if subject.plan.representation is not None and not self.takes_head:
                raise ConfigError(UNDER_A_HEAD)
            found = self.measure(subject)
            if isinstance(found, Finding | NotShown):
                yield self.without_figure(found)
                return
            for case in found:
                yield Measurement(
                    self.name,
                    _tried(case),
                    case.name,
                    self.adversary,
                    case.side_knowledge or self.side_knowledge,
                    control=case.control,
                    what_if=case.what_if,
                )
        except CANNOT_RUN as error:
            yield self.without_figure(NotShown(str(error)))

    def _other_algorithm(self, subject: Subject) -> Immune | NotShown:
        if self.of_components:
            return Immune("parties exchange predictions and residuals, no components")
        name = subject.algorithm.name
        return NotShown(f"algorithm = {name!r}: this attack is about predictions and residuals")

    def without_figure(self, outcome: Outcome) -> Measurement:
        """What there is to say of all cases together."""
        return Measurement(self.name, outcome, "", self.adversary, self.side_knowledge)


def _tried(case: AttackCase) -> Outcome:
    try:
        return case.measure()
    except CANNOT_RUN as error:
        return NotShown(str(error))


_ATTACKS: dict[str, Attack] = {}


def add_attack(attack: Attack) -> Attack:
    """Make an attack known under its name; as a decorator, above what makes it an `Attack`."""
    if attack.name in _ATTACKS:
        raise ConfigError(f"attack {attack.name!r}: the name is taken")
    _ATTACKS[attack.name] = attack
    return attack


def known_attacks() -> Mapping[str, Attack]:
    """Every attack by name, in the order of rows: all of the folder `measures`, and added ones."""
    folder = import_module("securevfl.auditing.measures")
    for module in iter_modules(folder.__path__, f"{folder.__name__}."):
        import_module(module.name)
    return dict(sorted(_ATTACKS.items(), key=lambda item: item[1].place))
