"""The row that a finished job reports."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from securevfl.reports.rows import DERIVED, cost_figures
from securevfl.reports.train_rows import TrainRow

if TYPE_CHECKING:
    from securevfl.data.tables import VerticalDataset
    from securevfl.sparse import Matrix
    from securevfl.training import TrainingResult


def columns_a_label(result: "TrainingResult", dataset: "VerticalDataset[Matrix]") -> float:
    """P/(N·v) of all feature parties where they learn gradients, else 0."""
    from securevfl.protocols.guards.person_record import label_variance

    if not result.plan.learns.gradients:
        return 0.0
    feature_parties = (each for each in dataset.parties if each.name != dataset.label_party)
    columns = sum(len(each.columns) for each in feature_parties)
    return columns / (result.plan.facts.rows * label_variance(dataset.train_labels))


def training_row(result: "TrainingResult", dataset: "VerticalDataset[Matrix]") -> TrainRow:
    """What a finished job reports."""
    job, exchange = result.job.job, result.job.exchange
    score = result.scores[-1] if result.scores else None
    calibration = result.calibration
    exact = result.exact_score if result.privacy and score else None
    target = job.target_auc
    rate = None if job.learning_rate == "auto" else job.learning_rate
    return {
        "dataset": dataset.name,
        "exchange": exchange.scheme,
        "hide": exchange.hide if result.key_fingerprints else None,
        "algorithm": job.algorithm,
        "local_steps": result.plan.local_steps,
        "he_per_step": exchange.he_per_step,
        "parties": len(dataset.parties),
        "batch_size": result.plan.batch_size,
        "rounds": result.rounds,
        "rounds_before": result.rounds_before,
        "learned": result.learned,
        "ended": result.ended,
        "reached_target": target is None or (score is not None and score.auc >= target),
        "auc": score.class_auc if score else None,
        "auc_exact": exact.class_auc if exact else None,
        "accuracy": score.class_accuracy if score else None,
        "brier": calibration.brier if calibration else None,
        "log_loss": calibration.log_loss if calibration else None,
        "calibration_error": calibration.expected_error if calibration else None,
        "reliability": [asdict(each) for each in calibration.curve] if calibration else None,
        "r2": score.r2 if score else None,
        "r2_exact": exact.r2 if exact else None,
        "rmse": score.rmse if score else None,
        "mae": score.mae if score else None,
        "binormal": score is not None and score.binormal,
        **cost_figures(result.costs()),
        "label_guard_ratio": result.label_guard_ratio,
        "learning_rate": rate,
        "learning_rate_chosen": "given" if rate else DERIVED,
        "key_bits": result.key_bits,
        "key_fingerprints": result.key_fingerprints,
        "job_hash": result.job.hash().hex(),
        "privacy": result.privacy.row() if result.privacy else None,
        "curve": [
            {
                "rounds": each.rounds,
                "total_s": result.costs(each.rounds).total_s,
                "auc": each.class_auc,
                "accuracy": each.class_accuracy,
                "r2": each.r2,
                "rmse": each.rmse,
            }
            for _, each in sorted({each.rounds: each for each in result.scores}.items())
        ],
        "losses": list(result.outcomes[dataset.label_party].losses),
        "dropped_rows": dict(result.dropped),
        "notes": [note.line for note in dataset.notes],
        "kept_rounds": result.kept_rounds,
        "status": result.status,
        "warnings": [{"kind": each.kind, "text": each.text} for each in result.warnings],
        "alone": {
            name: {
                "auc": each.score.class_auc,
                "accuracy": each.score.class_accuracy,
                "r2": each.score.r2,
                "rmse": each.score.rmse,
                "binormal": each.score.binormal,
                "rows": each.rows,
                "labels_lent": each.labels_lent,
            }
            for name, each in result.alone.items()
        },
        "wall_s": result.wall_s,
    }
