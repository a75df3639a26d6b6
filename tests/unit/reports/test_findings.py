"""What people who decide read first: every attack has its sentence, and leaks come first."""

from typing import Any

from securevfl.auditing.measuring import known_attacks
from securevfl.reports.findings import SENTENCES, findings


def row(attack: str, verdict: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    figures = {"metric": "auc", "value": 0.9, "chance": 0.5, "model_alone": 0.6}
    if verdict in ("immune", "not_run"):
        figures = dict.fromkeys(figures)
    detail = {"case": "", "control": False, "what_if": False, "values": [0.9] * 5, **changes}
    return {"attack": attack, "exchange": "bfv", "verdict": verdict, **figures, "detail": detail}


def test_every_attack_of_the_audit_has_a_sentence() -> None:
    own = "securevfl.auditing.measures"
    found = {name for name, each in known_attacks().items() if own in each.measure.__module__}
    assert found
    assert found <= set(SENTENCES) <= set(known_attacks())


def test_leaks_stand_first_with_what_they_mean_and_what_to_change() -> None:
    rows = [
        row("gram", "no_leak_found"),
        row("jacobi_symbol", "immune"),
        row("components", "undecided"),
        row("changed_labels", "leaks"),
        row("changed_labels", "no_leak_found", case="another"),
        row("binary_columns", "leaks", control=True),
        row("anchors", "leaks", what_if=True),
    ]
    ((exchange, said),) = findings(rows)
    assert exchange == "bfv"
    assert said == [
        "Tried whose label was corrected between two jobs (changed_labels). AUC 0.9 (guessing 0.5, "
        "the model alone 0.6; 5 seeds): a feature party names the person whose label changed, and "
        "how. To change: train on the earlier labels until enough have changed.",
        "Tried the other party's columns one by one, as they do not depend on each other "
        "(components). AUC 0.9 (guessing 0.5, the model alone 0.6; 5 seeds): open, as 5 seeds "
        "cannot decide; run more (--repeats).",
        "Tried, and no leak found: how far any two people are from each other, from predictions in "
        "training.",
        "The exchange leaves nothing to read for: jacobi_symbol.",
    ]


def test_an_attack_from_elsewhere_is_named() -> None:
    ((_, (said,)),) = findings([row("elsewhere", "leaks")])
    assert said.startswith("Tried elsewhere (elsewhere). AUC 0.9")
