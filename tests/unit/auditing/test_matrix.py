import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from securevfl.auditing import matrix
from securevfl.auditing.judging import ACCURACY, WORST_FIRST, Finding
from securevfl.auditing.matrix import AuditSettings, audit, violations
from securevfl.auditing.measuring import Attack, Measurement
from securevfl.auditing.subject import Subject, with_columns
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.errors import ConfigError
from securevfl.interrupts import Interrupted
from securevfl.job import Job
from securevfl.processes import Tell

KEYS = {
    "attack", "exchange", "adversary", "side_knowledge", "metric", "value", "chance",
    "model_alone", "verdict", "detail",
}  # fmt: skip


def job(scheme: str, **settings: object) -> Job:
    return Job.of(
        job={"batch_size": 115, "learning_rate": 0.1, **settings}, exchange={"scheme": scheme}
    )


def rows_of(
    dataset: VerticalDataset, *schemes: str, attacks: tuple[str, ...], repeats: int = 2
) -> list[dict[str, Any]]:
    jobs = {scheme: job(scheme) for scheme in schemes}
    return audit(dataset, AuditSettings(jobs, attacks, repeats))


def of_plain(
    dataset: VerticalDataset, *attacks: str, repeats: int = 1, **settings: object
) -> list[dict[str, Any]]:
    jobs = {"plain": job("plain", **settings)}
    return audit(dataset, AuditSettings(jobs, attacks, repeats))


def narrow(columns: int) -> VerticalDataset:
    """breast_cancer with so many columns at the feature party: attacks on X take fewer rounds."""
    return with_columns(load("breast_cancer"), "party2", range(columns))


@pytest.fixture(scope="module")
def labels() -> list[dict[str, Any]]:
    names = ("labels_from_residuals", "labels_from_gradients", "gram", "anchors")
    return rows_of(narrow(5), "plain", "bfv", attacks=names, repeats=1)


def verdicts(rows: list[dict[str, Any]], attack: str, case: str = "") -> dict[str, str]:
    return {
        row["exchange"]: row["verdict"]
        for row in rows
        if row["attack"] == attack and row["detail"]["case"] == case
    }


def test_rows_have_the_contracts_keys_and_are_json(labels: list[dict[str, Any]]) -> None:
    for row in labels:
        assert set(row) == KEYS
        assert row["verdict"] in WORST_FIRST
        assert row["adversary"]
        assert row["side_knowledge"]
    assert json.loads(json.dumps(labels, allow_nan=False)) == labels


def test_plain_residuals_are_labels_and_encrypted_ones_are_not_there(
    labels: list[dict[str, Any]],
) -> None:
    assert verdicts(labels, "labels_from_residuals") == {"plain": "leaks", "bfv": "immune"}
    (plain,) = [
        row
        for row in labels
        if row["attack"] == "labels_from_residuals" and row["exchange"] == "plain"
    ]
    assert plain["value"] == 1
    assert plain["chance"] < plain["model_alone"] < 1


def test_gradients_tell_the_same_under_encryption(labels: list[dict[str, Any]]) -> None:
    values = {
        (row["exchange"], row["detail"]["case"]): row["value"]
        for row in labels
        if row["attack"] == "labels_from_gradients"
    }
    cases = {case for _, case in values}
    assert len(cases) == 4
    for case in cases:
        assert abs(values["plain", case] - values["bfv", case]) < 0.01


def test_predictions_in_clear_leave_x_up_to_a_rotation(labels: list[dict[str, Any]]) -> None:
    case = "this job's batches"
    assert verdicts(labels, "gram", case) == {"plain": "leaks", "bfv": "leaks"}
    assert verdicts(labels, "anchors") == {"plain": "leaks", "bfv": "leaks"}


def test_masked_predictions_leave_no_single_party() -> None:
    names = ("gram", "anchors", "components", "binary_columns")
    rows = rows_of(load("breast_cancer", parties=3), "masked", attacks=names, repeats=1)
    assert {row["verdict"] for row in rows} == {"immune"}
    assert {row["detail"]["reason"] for row in rows} == {
        "the label party sees no single party's predictions"
    }


def test_a_job_that_can_score_nothing_is_audited() -> None:
    both = Job.of(job={"loss": "taylor-logistic"}, exchange={"scheme": "bfv", "hide": "both"})
    settings = AuditSettings({"bfv": both}, ("changed_labels",), 1)
    rows = audit(load("breast_cancer", parties=3), settings)
    (own,) = [row for row in rows if row["detail"]["case"] == "ends"]
    assert own["verdict"] == "no_leak_found"


def test_an_exchange_that_does_not_fit_says_why_in_every_row() -> None:
    rows = rows_of(load("breast_cancer"), "masked", attacks=("gram", "crafted_query"))
    assert [row["attack"] for row in rows] == ["gram", "crafted_query"]
    assert all("at least 3 parties" in row["detail"]["reason"] for row in rows)
    assert {row["verdict"] for row in rows} == {"not_run"}


@pytest.mark.parametrize("rounds", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_rotation_twins_and_their_controls_are_distinguished(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securevfl.auditing.measures.rotation.ROUNDS", rounds)
    twins = rows_of(load("breast_cancer"), "plain", attacks=("rotation_twin",), repeats=1)
    by_case = {row["detail"]["case"]: row for row in twins}
    assert len(by_case) == 5
    for case, row in by_case.items():
        assert row["detail"]["control"] == case.startswith("control")
        assert row["verdict"] == ("leaks" if row["detail"]["control"] else "no_leak_found")
        if row["detail"]["control"]:
            assert row["value"] >= 1e-3
        else:
            assert row["value"] <= 1e-11
            assert row["detail"]["relative_distance"] >= 0.1
            assert row["detail"]["rounds"] == rounds


def test_equality_solving_takes_as_many_classes_as_features() -> None:
    binary = rows_of(load("breast_cancer"), "plain", attacks=("equality_solving",), repeats=5)
    assert binary[0]["verdict"] == "no_leak_found"
    ten: dict[str, Any] = {"loss": "multinomial", "learning_rate": 0.001}
    (digits,) = of_plain(load("digits", parties=16), "equality_solving", **ten)  # 4 columns a party
    assert digits["verdict"] == "leaks"
    assert digits["value"] <= 1e-6
    (row,) = of_plain(load("breast_cancer"), "equality_solving", loss="squared")
    assert "no probabilities" in row["detail"]["reason"]
    assert row["verdict"] == "not_run"


def test_bits_come_back_from_a_run() -> None:
    dataset = load("breast_cancer")
    table = dataset.parties[1]
    middle = np.median(table.train, axis=0)
    # Of 15 columns one or another is missed, by chance; of eight none was, on no CPU.
    bits = replace(
        table,
        columns=table.columns[:8],
        train=(table.train > middle)[:, :8].astype(np.float64),
        test=(table.test > middle)[:, :8].astype(np.float64),
    )
    dataset = replace(dataset, parties=(dataset.parties[0], bits), standardize=False)
    (row,) = rows_of(dataset, "plain", attacks=("binary_columns",), repeats=1)
    assert row["verdict"] == "leaks"
    assert row["value"] > 0.8


def test_settings_that_an_attack_cannot_take_are_a_reason() -> None:
    attacks = ("gram", "anchors", "labels_from_residuals", "labels_from_gradients")
    settings: dict[str, Any] = {"sampling": "shuffle", "l2": 0.1, "loss": "squared"}
    rows = of_plain(load("breast_cancer"), *attacks, learning_rate=0.01, **settings)
    assert {row["verdict"] for row in rows if "reason" in row["detail"]} == {"not_run"}
    reasons = [row["detail"].get("reason", "") for row in rows]
    assert any("reshuffled" in reason for reason in reasons)
    assert any("l2 with several" in reason for reason in reasons)
    assert any("squared" in reason for reason in reasons)


@pytest.mark.parametrize(
    "settings",
    [{"loss": "squared-hinge", "learning_rate": 0.01}, {"loss": "hinge", "local_rule": "frozen"}],
    ids=["squared hinge", "hinge"],
)
def test_residuals_of_hinges_tell_every_row_that_was_within_the_margin(
    settings: dict[str, Any],
) -> None:
    attacks = ("labels_from_residuals", "labels_from_gradients")
    first, *others = of_plain(narrow(5), *attacks, **settings)
    assert (first["verdict"], first["value"]) == ("leaks", 1.0)
    assert [row["detail"]["case"] for row in others] == [
        "as the guard permits",
        "without the guard",
    ]
    assert {row["verdict"] for row in others} == {"leaks"}  # nothing guards residuals in clear


def test_steps_that_follow_the_loss_itself_are_not_run_where_attacks_repeat_others() -> None:
    attacks = ("labels_from_residuals", "labels_from_gradients", "gram")
    rows = of_plain(narrow(5), *attacks, local_rule="exact")
    leaks = [row for row in rows if row["attack"] == "labels_from_residuals"]
    assert [row["verdict"] for row in leaks] == ["leaks"]
    unshown = [row for row in rows if row["verdict"] == "not_run"]
    assert {row["attack"] for row in unshown} == {"labels_from_gradients", "gram"}
    assert all("steps that follow the loss itself" in row["detail"]["reason"] for row in unshown)


def test_reshuffled_single_steps_leave_x_up_to_a_rotation_too() -> None:
    settings: dict[str, Any] = {"sampling": "shuffle", "local_steps": 1}
    (row, _) = of_plain(some_rows(load("breast_cancer"), 40), "gram", batch_size=20, **settings)
    assert row["verdict"] == "leaks"
    assert row["value"] <= 1e-4
    (row, _) = of_plain(load("breast_cancer"), "gram", **settings)
    assert "reshuffled, need about" in row["detail"]["reason"]


def test_a_seed_that_shows_nothing_leaves_the_cell_open(monkeypatch: pytest.MonkeyPatch) -> None:
    @partial(Attack, "gram", "label party", "nothing")
    def sometimes(subject: Subject) -> Finding:
        if subject.seed == 1:
            raise ConfigError("not under this seed")
        return Finding(ACCURACY, 0.5, chance=0.5)

    monkeypatch.setattr("securevfl.auditing.matrix.known_attacks", lambda: {"gram": sometimes})
    (row,) = rows_of(load("breast_cancer"), "plain", attacks=("gram",))
    assert (row["verdict"], row["value"]) == ("not_run", 0.5)
    (broken,) = violations([row], ["gram"], ["plain"])
    assert broken.says.endswith("not under this seed")


def test_full_batches_do_not_stand_in_for_the_jobs_own() -> None:
    own, other = of_plain(load("breast_cancer"), "anchors", sampling="shuffle")
    assert (own["verdict"], own["detail"]["case"]) == ("not_run", "this job's batches")
    assert (other["verdict"], other["detail"]["case"]) == ("leaks", "full batches")
    (broken,) = violations([own, other], ["anchors"], ["plain"])
    assert "reshuffled" in broken.says


def test_a_policy_is_about_attacks_on_this_job(labels: list[dict[str, Any]]) -> None:
    assert not violations(labels, ["labels_from_residuals"], ["bfv"])
    (broken,) = violations(labels, ["labels_from_residuals"], ["plain", "bfv"])
    assert broken.exchange == "plain"
    # Reshuffled batches are a what-if that would violate a policy, and break nothing.
    cases = {
        row["detail"]["case"]
        for row in labels
        if row["detail"]["what_if"] and row["verdict"] not in matrix.KEPT
    }
    assert any(case.startswith("reshuffled") for case in cases)
    broken_cases = {each.case for each in violations(labels, ["labels_from_gradients"], ["plain"])}
    assert not broken_cases & cases


def test_an_unknown_attack_is_refused() -> None:
    with pytest.raises(ConfigError, match="attack = 'gramm': unknown"):
        rows_of(load("breast_cancer"), "plain", attacks=("gramm",))


@pytest.mark.slow
def test_several_processes_give_the_same_rows() -> None:
    dataset = load("breast_cancer")
    jobs = {"plain": job("plain"), "masked": job("masked")}
    progress: dict[int, list[tuple[str, float, int]]] = {1: [], 2: []}

    def audited(workers: int) -> list[dict[str, Any]]:
        def hear(what: str, done: float, total: int) -> None:
            progress[workers].append((what, done, total))

        settings = AuditSettings(jobs, ("labels_from_gradients",), 1, workers)
        return audit(dataset, settings, hear)

    assert audited(1) == audited(2)
    for heard in progress.values():
        # Which exchange is done first is chance where there are two processes.
        assert ("plain, seed 1: labels_from_gradients", 100) in {
            (each[0], each[2]) for each in heard
        }
        assert heard[-1][1:] == (100, 100)
    # Within a seed, as it trains.
    assert any(", round 3 of " in what for what, _, _ in progress[1])


def test_a_run_is_made_once_for_the_same_settings() -> None:
    subject = Subject(job("plain"), load("breast_cancer"), 0)
    first = subject.record(rounds=2)
    assert subject.record(rounds=2) is first
    assert subject.record(rounds=3) is not first
    assert subject.with_rows(100) is subject.with_rows(100)
    assert subject.with_rows(10_000) is subject
    assert len(np.unique(subject.with_rows(2).dataset.train_labels)) == 2


def row(
    verdict: str, attack: str = "gram", exchange: str = "bfv", case: str = ""
) -> dict[str, Any]:
    shown = verdict in {"leaks", "undecided", "no_leak_found"}
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
            "values": [0.1, 0.00123],
        },
    }


@pytest.mark.parametrize("verdict", ["no_leak_found", "immune"])
def test_what_finds_no_leak_or_cannot_be_attacked_keeps_a_policy(verdict: str) -> None:
    assert violations([row(verdict)], ["gram"], ["bfv"]) == []


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        ("leaks", "gram leaks under bfv (batches): relative_error 0.00123"),
        (
            "undecided",
            "gram is undecided under bfv (batches): relative_error 0.00123 with 2 seeds; more "
            "decide (--repeats)",
        ),
        ("not_run", "gram was not run under bfv (batches): it takes too long"),
        ("anything else", "gram was not run under bfv (batches): it takes too long"),
    ],
)
def test_a_leak_and_whatever_is_open_break_it(verdict: str, says: str) -> None:
    (broken,) = violations([row(verdict, case="batches"), row("no_leak_found")], ["gram"], ["bfv"])
    assert broken.says == says
    assert (broken.attack, broken.exchange, broken.case) == ("gram", "bfv", "batches")


def test_every_exchange_needs_a_row_of_its_own() -> None:
    rows = [row("no_leak_found", exchange="plain")]
    assert violations(rows, ["gram"], ["plain"]) == []
    (broken,) = violations(rows, ["gram"], ["plain", "bfv", "bfv"])
    assert (broken.exchange, broken.attack) == ("bfv", "gram")
    assert "nothing was measured" in broken.says
    (broken,) = violations(rows, ["gram", "anchors", "anchors"], ["plain"])
    assert broken.attack == "anchors"
    (broken,) = violations([], ["gram"], ["plain"])
    assert "nothing was measured" in broken.says


@pytest.mark.parametrize("another", ["control", "what_if"])
@pytest.mark.parametrize("verdict", ["leaks", "undecided", "not_run", "no_leak_found"])
def test_controls_and_what_ifs_neither_break_a_policy_nor_keep_it(
    another: str, verdict: str
) -> None:
    rows = [row("no_leak_found"), row(verdict)]
    rows[1]["detail"][another] = True
    assert violations(rows, ["gram"], ["bfv"]) == []
    (broken,) = violations(rows[1:], ["gram"], ["bfv"])
    assert "nothing was measured of this job's own settings" in broken.says


def test_other_attacks_and_other_exchanges_break_nothing() -> None:
    rows = [row("no_leak_found"), row("leaks", attack="anchors"), row("leaks", exchange="plain")]
    assert violations(rows, ["gram"], ["bfv"]) == []
    assert violations(rows, [], ["bfv", "plain"]) == []


def test_an_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = matrix._measured

    def cut(
        dataset: VerticalDataset,
        settings: AuditSettings,
        modules: tuple[str, ...],
        task: tuple[str, int],
        tell: Tell,
    ) -> list[Measurement]:
        if task[1] == 1:
            raise KeyboardInterrupt
        return measured(dataset, settings, modules, task, tell)

    monkeypatch.setattr(matrix, "_measured", cut)
    with pytest.raises(Interrupted) as progress:
        rows_of(narrow(5), "plain", attacks=("labels_from_residuals",))
    assert [row["verdict"] for row in progress.value.rows] == ["leaks"]
    assert len(progress.value.missing) == 1
