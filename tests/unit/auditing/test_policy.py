"""Which rows keep a policy: only those that were shown to."""

from typing import Any

import pytest

from securevfl.auditing.matrix import violations


def row(
    verdict: str, attack: str = "gram", exchange: str = "bfv", case: str = ""
) -> dict[str, Any]:
    shown = verdict in {"leaks", "resists"}
    return {
        "attack": attack,
        "exchange": exchange,
        "metric": "relative_error" if shown else None,
        "value": 0.00123 if shown else None,
        "verdict": verdict,
        "detail": {
            "case": case,
            "control": False,
            "what_if": False,
            "reason": "it takes too long",
        },
    }


@pytest.mark.parametrize("verdict", ["resists", "immune"])
def test_what_resists_or_cannot_be_attacked_keeps_a_policy(verdict: str) -> None:
    assert violations([row(verdict)], ["gram"], ["bfv"]) == []


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        ("leaks", "gram leaks under bfv (batches): relative_error 0.00123"),
        ("not_shown", "gram is not shown to resist under bfv (batches): it takes too long"),
        ("anything else", "gram is not shown to resist under bfv (batches): it takes too long"),
    ],
)
def test_a_leak_and_whatever_is_not_shown_break_it(verdict: str, says: str) -> None:
    (broken,) = violations([row(verdict, case="batches"), row("resists")], ["gram"], ["bfv"])
    assert broken.says == says
    assert (broken.attack, broken.exchange, broken.case) == ("gram", "bfv", "batches")


def test_every_exchange_needs_a_row_of_its_own() -> None:
    rows = [row("resists", exchange="plain")]
    assert violations(rows, ["gram"], ["plain"]) == []
    (broken,) = violations(rows, ["gram"], ["plain", "bfv", "bfv"])
    assert (broken.exchange, broken.attack) == ("bfv", "gram")
    assert "nothing was measured" in broken.says
    (broken,) = violations(rows, ["gram", "anchors", "anchors"], ["plain"])
    assert broken.attack == "anchors"
    (broken,) = violations([], ["gram"], ["plain"])
    assert "nothing was measured" in broken.says


@pytest.mark.parametrize("another", ["control", "what_if"])
@pytest.mark.parametrize("verdict", ["leaks", "not_shown", "resists"])
def test_controls_and_what_ifs_neither_break_a_policy_nor_keep_it(
    another: str, verdict: str
) -> None:
    rows = [row("resists"), row(verdict)]
    rows[1]["detail"][another] = True
    assert violations(rows, ["gram"], ["bfv"]) == []
    (broken,) = violations(rows[1:], ["gram"], ["bfv"])
    assert "nothing was measured of this job's own settings" in broken.says


def test_other_attacks_and_other_exchanges_break_nothing() -> None:
    rows = [row("resists"), row("leaks", attack="anchors"), row("leaks", exchange="plain")]
    assert violations(rows, ["gram"], ["bfv"]) == []
    assert violations(rows, [], ["bfv", "plain"]) == []
