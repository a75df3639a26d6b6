"""What a policy asks of an audit, and what breaks it: a leak, and whatever was not shown to resist.

Negative controls are no attacks, and what-ifs are other jobs: neither keeps a policy nor breaks it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from securevfl.errors import ConfigError

Row = Mapping[str, Any]
KEPT = ("resists", "immune")


@dataclass(frozen=True)
class Violation:
    """An attack that must resist, under one exchange and in one case, and was not shown to.

    Attributes:
        attack: its name.
        exchange: under which.
        case: which of its settings; empty where it has one only, or nothing was measured.
        says: in one line that it leaks, or why nothing is shown.
    """

    attack: str
    exchange: str
    case: str
    says: str


def check_policy(must_resist: Sequence[str], attacks: Sequence[str]) -> None:
    """Check that a policy is about attacks that are run.

    Raises:
        ConfigError: it is not.
    """
    for name in must_resist:
        if name not in attacks:
            raise ConfigError(f"must_resist: {name!r} is not run; run are {', '.join(attacks)}")


def violations(
    rows: Sequence[Row], must_resist: Iterable[str], exchanges: Iterable[str]
) -> list[Violation]:
    """What breaks a policy, exchange by exchange.

    Args:
        rows: of the audit.
        must_resist: attacks by name, each of which needs a row that shows it.
        exchanges: what the policy is about, audited or not.
    """
    names = dict.fromkeys(must_resist)
    broken = []
    for exchange in dict.fromkeys(exchanges):
        for name in names:
            own = [row for row in rows if _is_about(row, name, exchange)]
            if not own:
                reason = "nothing was measured of this job's own settings"
                broken.append(_not_shown(name, exchange, "", reason))
            broken += [_violation(row) for row in own if row["verdict"] not in KEPT]
    return broken


def _is_about(row: Row, attack: str, exchange: str) -> bool:
    detail = row["detail"]
    another = detail["control"] or detail["what_if"]
    return (row["attack"], row["exchange"]) == (attack, exchange) and not another


def _violation(row: Row) -> Violation:
    attack, exchange, case = row["attack"], row["exchange"], row["detail"]["case"]
    if row["verdict"] != "leaks":
        return _not_shown(attack, exchange, case, row["detail"]["reason"])
    says = f"{attack} leaks under {_where(exchange, case)}: {row['metric']} {row['value']:.3g}"
    return Violation(attack, exchange, case, says)


def _not_shown(attack: str, exchange: str, case: str, reason: str) -> Violation:
    says = f"{attack} is not shown to resist under {_where(exchange, case)}: {reason}"
    return Violation(attack, exchange, case, says)


def _where(exchange: str, case: str) -> str:
    return f"{exchange} ({case})" if case else exchange
