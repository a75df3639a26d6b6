"""What people who decide read first: every attack has its sentence, and leaks come first."""

import re
from typing import Any

import pytest

from securevfl.auditing.advice import CHANGES
from securevfl.auditing.measuring import known_attacks
from securevfl.reports.findings import REMAINS, SENTENCES, findings

ABOUT = {"label_party": "laboratory", "feature_party": "bank", "columns": 14, "people": 1200}
CHANGE = {"settings": {"exchange": {"scheme": "blind"}, "privacy": {}}, "why": "immune"}
SECTIONS = {"exchange": {"scheme": "bfv"}, "job": {"batch_size": "full", "eval_every": 0}}
PERMITTED = {"settings": SECTIONS, "why": "permitted by the guard"}


def row(attack: str, verdict: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    figures = {"metric": "auc", "value": 0.9, "chance": 0.5, "model_alone": 0.6}
    if verdict in ("immune", "not_run"):
        figures = dict.fromkeys(figures)
        changes = {"reason": "so it is", **changes}
    figures |= {name: changes.pop(name) for name in figures.keys() & changes.keys()}
    detail = {"case": "", "control": False, "what_if": False, "values": [0.9] * 5, **changes}
    return {"attack": attack, "exchange": "bfv", "verdict": verdict, **figures, "detail": detail}


def said(*rows: dict[str, Any]) -> list[str]:
    ((exchange, found),) = findings(rows)
    assert exchange == "bfv"
    return [" ".join(each) for each in found]


def test_every_attack_of_the_audit_has_a_sentence_and_changes_that_are_tried() -> None:
    own = "securevfl.auditing.measures"
    found = {name for name, each in known_attacks().items() if own in each.measure.__module__}
    assert found
    assert found <= SENTENCES.keys() <= known_attacks().keys()
    assert CHANGES.keys() == SENTENCES.keys()
    assert REMAINS.keys() <= SENTENCES.keys()


def test_leaks_stand_first_with_names_and_numbers_and_what_to_change() -> None:
    rows = [
        row("gram", "no_leak_found"),
        row("jacobi_symbol", "immune"),
        row("epsilon", "not_run", reason="no noise: no epsilon is claimed"),
        row("ckks_key", "not_run", reason="too few rows"),
        row("equality_solving", "not_run", reason="too few rows"),
        row("components", "undecided", about=ABOUT, to_change=[PERMITTED]),
        row(
            "anchors", "leaks", about=ABOUT, anchors=15, to_change=[CHANGE, PERMITTED],
            metric="relative_error", value=3e-11,
        ),
        row("anchors", "no_leak_found", case="another"),
        row("crafted_query", "leaks", about=ABOUT, to_change=[], model_alone=None),
        row("binary_columns", "leaks", control=True),
        row("labels_across_jobs", "leaks", what_if=True),
    ]  # fmt: skip
    assert said(*rows) == [
        "Leaks: someone at laboratory who knows 15 people could compute bank's 14 values of all "
        "1,200 people. Tried (anchors): everyone's columns, by somebody at the label party who "
        "knows a few people; error 3e-11 (guessing 0.5, the model alone 0.6; 5 seeds). To change: "
        "[exchange] scheme = 'blind' without [privacy] (leaves nothing to read), or [exchange] "
        "scheme = 'bfv' with [job] batch_size = 'full', eval_every = 0 (a guard then limits what "
        "can be read).",
        "Leaks: bank could get the key by cheating, and with it every label. Tried "
        "(crafted_query): the secret key, by a feature party that sends forged replies; AUC 0.9 "
        "(guessing 0.5; 5 seeds). No setting that this job accepts takes it away: take only "
        "partners who follow the protocol.",
        "Open: whether laboratory could estimate single columns of bank without knowing anybody. "
        "5 seeds cannot decide; run more (--repeats). Tried (components): the other party's "
        "columns one by one, as they do not depend on each other; AUC 0.9 (guessing 0.5, the model "
        "alone 0.6; 5 seeds). To change: [exchange] scheme = 'bfv' with [job] batch_size = 'full', "
        "eval_every = 0 (a guard then limits what can be read).",
        "Tried, and no leak found: how far any two people are from each other, from predictions in "
        "training.",
        "The exchange leaves nothing to read for: features, from a number-theoretic trace in "
        "Paillier replies.",
        "Not run: whether the noise protects as well as the job claims (no noise: no epsilon is "
        "claimed); the secret key, from decrypted values that travel back; columns, from scores, "
        "by somebody who knows the whole model (too few rows).",
    ]


@pytest.mark.parametrize("attack", SENTENCES)
def test_results_of_earlier_versions_have_no_numbers_and_advise_nothing(attack: str) -> None:
    (text,) = said(row(attack, "leaks", known_rows=15))
    assert "To change" not in text
    assert "No setting" not in text
    assert not re.search(r"[{}0-9]", text.split("; AUC")[0])


def test_an_estimate_is_no_computation() -> None:
    (text,) = said(row("anchors", "leaks", metric="relative_error", value=0.4))
    assert "who knows some people could estimate the feature party's values of people." in text


def test_of_several_cases_the_worst_counts_and_one_that_was_not_run_is_said() -> None:
    cases = [row("gram", "no_leak_found"), row("gram", "not_run", case="another", reason="why")]
    assert said(*cases) == [
        "Not run: how far any two people are from each other, from predictions in training (why)."
    ]


def test_an_attack_from_elsewhere_is_named() -> None:
    (text,) = said(row("elsewhere", "leaks"))
    assert text.startswith("Leaks: an attack from another package succeeds")
    assert "Tried (elsewhere): elsewhere; AUC 0.9" in text
