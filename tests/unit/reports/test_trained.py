"""A finished job beside each party alone, and its figures."""

from typing import Any

from securevfl.reports.tables import interval_notes
from securevfl.reports.trained import compared, comparison_notes, curves

POINT = {"accuracy": 0.8, "r2": None, "rmse": None}
ROW: dict[str, Any] = {
    "ended": "rounds",
    "auc": 0.9,
    "accuracy": 0.85,
    "r2": None,
    "mae": 0.1,
    "brier": 0.12,
    "log_loss": 0.4,
    "ranking": None,
    "rounds_before": 6,
    "alone": {
        "bank": {"auc": 0.7, "accuracy": 0.6, "r2": None, "rows": 9, "labels_lent": False},
        "shop": {"auc": 0.8, "accuracy": 0.7, "r2": None, "rows": 9, "labels_lent": True},
    },
    "curve": [
        {**POINT, "rounds": 7, "total_s": 0.123456, "auc": 0.6},
        {**POINT, "rounds": 8, "total_s": 0.2, "auc": 0.9},
    ],
    "losses": [0.6, 0.5],
    "reliability": [
        {"rows": 5, "predicted": 0.1, "observed": 0.2},
        {"rows": 4, "predicted": 0.9, "observed": 0.8},
    ],
}


def test_models_stand_beside_each_other_by_the_scores_that_all_have() -> None:
    columns, models = compared(ROW)
    assert [heading for heading, _ in columns] == ["model", "AUC", "accuracy"]
    assert [[show(each) for _, show in columns] for each in models] == [
        ["joint", "0.9000", "0.8500"],
        ["bank alone", "0.7000", "0.6000"],
        ["shop alone *", "0.8000", "0.7000"],
    ]
    ended, lent, probabilities = comparison_notes(ROW)
    assert ended == "ended after all rounds"
    assert lent.startswith("* with the labels, lent")
    assert probabilities == "Brier score 0.1200, log loss 0.4000 (joint)"
    assert comparison_notes({**ROW, "class_weight": "balanced"})[-1].startswith("weights: ")


def test_an_interval_needs_enough_rows_of_a_class() -> None:
    counts = {"rows": 1285, "positives": 35}
    row = {**ROW, "ranking": {"average_precision": 0.4, "auc_interval": None, **counts}}
    positives = "positives: 35 of 1,285 rows; average precision by chance 0.0272"
    assert interval_notes(row) == [
        positives,
        "no interval of the AUC: a class has fewer than 10 rows, or all pairs are in the same "
        "order",
    ]
    gain = {"auc_gain": 0.2, "auc_gain_interval": (-0.1, 0.3)}
    row["ranking"] |= {"auc_interval": (0.81, 0.94), **gain}
    assert interval_notes(row) == [
        positives,
        "95 % interval of the AUC: 0.8100 to 0.9400",
        "AUC above the label party alone: +0.2000, 95 % -0.1000 to 0.3000",
    ]


def test_scores_of_sums_are_marked() -> None:
    bank = {**ROW["alone"]["bank"], "binormal": True, "accuracy": None}
    alone = {**ROW["alone"], "bank": bank}
    columns, models = compared({**ROW, "binormal": True, "alone": alone})
    shown = [[show(each) for _, show in columns] for each in models]
    assert shown[0] == ["joint", "≈0.90"]
    assert shown[1] == ["bank alone", "≈0.70"]
    assert shown[2] == ["shop alone *", "0.8000"]


def test_errors_of_real_targets_fit_even_where_training_diverged() -> None:
    alone = {"auc": None, "accuracy": None, "r2": 0.28, "rmse": 1620.4656}
    row = {**ROW, "auc": None, "accuracy": None, "r2": -1.234e104, "rmse": 2.5e55}
    row["alone"] = {"bank": {**alone, "labels_lent": False}}
    columns, models = compared(row)
    assert [heading for heading, _ in columns] == ["model", "R²", "RMSE"]
    assert [show(models[0]) for _, show in columns] == ["joint", "-1.23e+104", "2.5e+55"]
    assert [show(models[1]) for _, show in columns] == ["bank alone", "0.2800", "1620.4656"]


def test_figures_are_of_scores_losses_and_calibration() -> None:
    by_rounds, by_seconds, losses, calibration = curves(ROW)
    assert (by_rounds["x"], by_seconds["x"]) == ([7, 8], [0.1235, 0.2])
    assert by_rounds["lines"] == {"bank alone": 0.7, "shop alone": 0.8}
    # Those before it was interrupted are not known.
    assert (losses["x"], losses["series"]) == ([7, 8], {"joint": [0.6, 0.5]})
    assert calibration["series"] == {"joint": [0.2, 0.8], "as predicted": [0.1, 0.9]}


def test_what_was_not_seen_has_no_figure() -> None:
    assert curves({**ROW, "curve": ROW["curve"][:1], "losses": [], "reliability": None}) == []
