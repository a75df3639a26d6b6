"""What a policy asks of an audit, and what breaks it: a leak, and whatever was not shown to resist.

Negative controls are no attacks, and what-ifs are other jobs: neither keeps a policy nor breaks it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from securevfl.errors import ConfigError

Row = Mapping[str, Any]
KEPT = ("resists", "immune")
ATTACKS = (
    "rotation_twin",
    "gram",
    "anchors",
    "components",
    "binary_columns",
    "held_out_features",
    "labels_from_residuals",
    "labels_from_gradients",
    "labels_from_components",
    "labels_from_unit_gradients",
    "features_from_units",
    "integer_decoding",
    "labels_across_jobs",
    "labels_from_parameters",
    "words_of_rounds",
    "ciphertext_ratio",
    "ciphertext_noise",
    "jacobi_symbol",
    "ckks_key",
    "crafted_query",
    "selection_matrix",
    "equality_solving",
    "epsilon",
)
"""What a policy and a command line may name, to be had before any attack is loaded."""


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
    rows: Sequence[Row],
    must_resist: Iterable[str],
    exchanges: Iterable[str],
    unfit: str = "",
) -> list[Violation]:
    """What breaks a policy, exchange by exchange.

    Args:
        rows: of the audit.
        must_resist: attacks by name, each of which needs a row that shows it.
        exchanges: what the policy is about, audited or not.
        unfit: why these rows are no basis for a policy, which is broken then; empty where they are.
    """
    broken = []
    for exchange, attack in product(dict.fromkeys(exchanges), dict.fromkeys(must_resist)):
        own = _own(rows, attack, exchange)
        broken += [_violation(attack, exchange, row) for row in own if row["verdict"] not in KEPT]
        if unfit:
            says = f"{attack} is not shown to resist under {exchange}: {unfit}"
            broken.append(Violation(attack, exchange, "", says))
        elif not own:
            broken.append(_violation(attack, exchange, None))
    return broken


def _own(rows: Sequence[Row], attack: str, exchange: str) -> list[Row]:
    """The rows about the job as it is."""
    return [
        row
        for row in rows
        if (row["attack"], row["exchange"]) == (attack, exchange)
        and not (row["detail"]["control"] or row["detail"]["what_if"])
    ]


def _violation(attack: str, exchange: str, row: Row | None) -> Violation:
    case = row["detail"]["case"] if row else ""
    where = f"{exchange} ({case})" if case else exchange
    if row and row["verdict"] == "leaks":
        says = f"{attack} leaks under {where}: {row['metric']} {row['value']:.3g}"
    else:
        why = row["detail"]["reason"] if row else "nothing was measured of this job's own settings"
        says = f"{attack} is not shown to resist under {where}: {why}"
    return Violation(attack, exchange, case, says)
