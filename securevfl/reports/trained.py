"""Jobs as pages, with what `securevfl train` reports of one, and `bench tradeoff` of many."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from securevfl.models.ranking import Cutoffs
from securevfl.reports.page import lines, render, rows_page
from securevfl.reports.rows import (
    DERIVED,
    Figures,
    TradeoffRow,
    TrainRow,
    any_offline,
    calibration_figures,
    cost_figures,
    made_offline,
    offline_s,
)
from securevfl.reports.tables import (
    TRADEOFF,
    Column,
    Row,
    exchange_text,
    grouped,
    interval_notes,
    privacy_notes,
    score_text,
    seconds,
    size,
    tradeoff_notes,
    varied,
    with_offline,
)
from securevfl.reports.training import PARTIES, before, brought
from securevfl.shown import counted, curve

if TYPE_CHECKING:
    from securevfl.arrays import FloatArray
    from securevfl.data.tables import VerticalDataset
    from securevfl.protocols.session.scoring import Score
    from securevfl.sparse import Matrix
    from securevfl.training import TrainingResult

SCORES = {
    "auc": "AUC",
    "average_precision": "average precision",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "log_loss": "log loss",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "MAE",
}
LENT = " *"
ENDINGS = {
    "rounds": "ended after all rounds",
    "target": "ended at the target AUC",
    "settled": "ended because the training loss had settled",
    "no way down": "ended because no step lowered the training loss: the best model is kept",
}
PHASES = {
    "local": "steps on own data",
    "encrypt": "encryption",
    "evaluate": "products under encryption",
    "decrypt": "decryption",
    "offline": "work that did not fit into waiting",
}


def training_row(result: "TrainingResult", dataset: "VerticalDataset[Matrix]") -> TrainRow:
    """What a finished job reports."""
    job, exchange = result.job.job, result.job.exchange
    score = result.scores[-1] if result.scores else None
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
        **_figures(score),
        "auc_exact": exact.class_auc if exact else None,
        "ranking": result.ranking,
        "class_weight": job.class_weight,
        "weighted_rows": result.plan.facts.weight_bits > 0,
        **calibration_figures(result.calibration),
        "r2_exact": exact.r2 if exact else None,
        "mae": score.mae if score else None,
        "binormal": score is not None and score.binormal,
        **cost_figures(result.costs()),
        "links": asdict(result.links) if result.links else None,
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
                **_figures(each),
            }
            for _, each in sorted({each.rounds: each for each in result.scores}.items())
        ],
        "losses": list(result.outcomes[dataset.label_party].losses),
        "dropped_rows": dict(result.dropped),
        "notes": [note.line for note in dataset.notes],
        "before": before(result.plan, dataset),
        "brought": brought(result.plan, dataset),
        "kept_rounds": result.kept_rounds,
        "status": result.status,
        "warnings": [{"kind": each.kind, "text": each.text} for each in result.warnings],
        "alone": {
            name: {
                **_figures(each.score),
                "binormal": each.score.binormal,
                "rows": each.rows,
                "labels_lent": each.labels_lent,
                "average_precision": _precision(result, each.predictions),
            }
            for name, each in result.alone.items()
        },
        "wall_s": result.wall_s,
    }


def _precision(result: "TrainingResult", own: "FloatArray") -> float | None:
    """Average precision of a party alone, where the joint model has one."""
    return Cutoffs(own[:, 0], result.test_labels).average_precision if result.ranking else None


def _figures(score: "Score | None") -> Figures:
    return {
        "auc": score.class_auc if score else None,
        "accuracy": score.class_accuracy if score else None,
        "r2": score.r2 if score else None,
        "rmse": score.rmse if score else None,
    }


def compared(row: Row) -> tuple[list[Column[Row]], list[Row]]:
    """The joint model and each party's own, with the scores that all of them have."""
    models: list[Row] = [{**row, **(row["ranking"] or {}), "model": "joint"}]
    for party, own in row.get("alone", {}).items():
        models.append({**own, "model": f"{party} alone{LENT if own['labels_lent'] else ''}"})
    columns: list[Column[Row]] = [("model", lambda each: str(each["model"]))]
    columns += [
        (heading, _score(key))
        for key, heading in SCORES.items()
        if all(each.get(key) is not None for each in models)
    ]
    return columns, models


def comparison_notes(row: Row) -> list[str]:
    """Why training ended, what marks in the table mean, and how good the joint one's scores are."""
    notes = [ENDINGS[row["ended"]], *interval_notes(row)]
    if any(own["labels_lent"] for own in row.get("alone", {}).values()):
        notes.append("* with the labels, lent for this figure: no real party has both")
    if row.get("brier") is not None:
        notes.append(f"Brier score {row['brier']:.4f}, log loss {row['log_loss']:.4f} (joint)")
    if row.get("class_weight") or row.get("weighted_rows"):
        notes.append(
            "weights: probabilities, and what measures them, are of weighted rows, not of these "
            "people"
        )
    return notes


def _score(key: str) -> Callable[[Row], str]:
    return lambda row: score_text(row, key)


def curves(row: Row) -> list[dict[str, Any]]:
    """Held-out scores and the training loss as training went on, by rounds and by seconds."""
    points: Sequence[Row] = row["curve"]
    owns: Mapping[str, Row] = row.get("alone", {})
    figures = []
    key = next((each for each in ("auc", "r2") if any(p.get(each) is not None for p in points)), "")
    if key and len(points) > 1:
        alone = {
            f"{party} alone": own[key] for party, own in owns.items() if own.get(key) is not None
        }
        for x, label in (("rounds", "rounds"), ("total_s", "seconds")):
            figures.append(
                curve(
                    f"Held-out {SCORES[key]} by {label}",
                    label,
                    SCORES[key],
                    [float(f"{point[x]:.4g}") for point in points],
                    {"joint": [point[key] for point in points]},
                    lines=alone,
                )
            )
    losses: Sequence[float] = row["losses"]
    if len(losses) > 1:
        begins = row["rounds_before"] + 1
        rounds = range(begins, begins + len(losses))
        title = "Training loss by rounds"
        figures.append(curve(title, "rounds", "loss as exchanged", rounds, {"joint": losses}))
    bins: Sequence[Row] = row.get("reliability") or ()
    if bins:
        predicted = [float(f"{each['predicted']:.3g}") for each in bins]
        observed = [each["observed"] for each in bins]
        shares = {"joint": observed, "as predicted": predicted}
        title = "Calibration of held-out rows"
        figures.append(curve(title, "predicted share", "observed share", predicted, shares))
    return figures


def train_page(result: Mapping[str, Any]) -> str:
    """The page of a run of `train`, from what its JSON holds."""
    (row,) = result["rows"]
    columns, models = compared(row)
    parties = f"{row['parties']} parties"
    return render(
        "train.html",
        result=result,
        title=f"A model of {row['dataset']} by {parties}",
        lead=f"{row['algorithm']} under {row['exchange']}, {counted(row['rounds'], 'round')}. "
        "Computation was measured on the machine named below; the network is a model.",
        warnings=[each["text"] for each in row.get("warnings", ())],
        figures=[{"title": each["title"], "curve": each} for each in curves(row)],
        models=([heading for heading, _ in columns], lines(columns, models)),
        costs=(["what", "time"], costs(row)),
        # What was made offline is in the costs below, and too wide here.
        job=([heading for heading, _ in TRADEOFF], lines(TRADEOFF, [row])),
        parties=(PARTIES, row.get("brought", ())),
        before=[*row.get("before", ()), *row["notes"]],
        compared=comparison_notes(row),
        notes=[*tradeoff_notes([row]), *privacy_notes(row)],
    )


def costs(row: Row) -> list[tuple[str, str]]:
    """Seconds of the critical path by what they were spent on, and what was sent."""
    phases = row["compute_by_phase_s"]
    offline, rounds = any_offline([row]), row["total_s"] - offline_s(row)
    network, made = made_offline(row, "offline_communication_s"), []
    if offline:
        made = [
            ("computation before rounds", seconds(made_offline(row, "offline_compute_s"))),
            ("network before rounds", seconds(network)),
            ("in all", seconds(row["total_s"])),
        ]
    return [
        *((text, seconds(phases[phase])) for phase, text in PHASES.items() if phases[phase]),
        ("network", seconds(row["communication_s"] - network)),
        ("all rounds", seconds(rounds)),
        *made,
        ("set-up before them", seconds(row["setup_s"])),
        ("on this machine's clock", seconds(row["wall_s"])),
        ("sent", size(row["bytes_sent"])),
        *([("of it offline", size(made_offline(row, "offline_bytes")))] if offline else []),
    ]


TO_TARGET: Column[TradeoffRow] = ("to AUC", lambda row: f"{row['target_auc']:g}")
RoundsFigure = Literal["training_loss", "auc"]
ROUNDS_FIGURES: Mapping[RoundsFigure, str] = {
    "training_loss": "training loss",
    "auc": "held-out AUC",
}


def _name(row: TradeoffRow, rows: Sequence[TradeoffRow]) -> str:
    """What distinguishes a cell from the others, except its Q."""
    values = [dict(each.get("varied", {})) for each in rows]
    names = [exchange_text(row) + (", HE" if row.get("he_per_step") else "")]
    for key, value in row.get("varied", {}).items():
        shown = key in {"exchange.scheme", "exchange.he_per_step", "job.local_steps"}
        if not shown and len({str(each.get(key)) for each in values}) > 1:
            names.append(f"{key.rpartition('.')[2]} = {value}")
    return ", ".join(names)


def _in_one_exchange(rows: Sequence[TradeoffRow]) -> list[TradeoffRow]:
    """The rows of the first exchange to the first target: rounds are the same under others."""
    first = rows[0]
    return [
        row
        for row in rows
        if (row["exchange"], row["target_auc"]) == (first["exchange"], first["target_auc"])
    ]


def rounds_curve(rows: Sequence[TradeoffRow], figure: RoundsFigure) -> dict[str, Any]:
    """One figure of the first run of every row, by rounds."""
    runs = {
        f"Q = {row['local_steps']}, {_name(row, rows)}": row["runs"][0]["curve"] for row in rows
    }
    rounds = sorted({point["rounds"] for points in runs.values() for point in points})
    values = {
        name: {point["rounds"]: point[figure] for point in points} for name, points in runs.items()
    }
    first = rows[0]
    return curve(
        f"{first['dataset']}, K = {first['parties']}",
        "rounds",
        ROUNDS_FIGURES[figure],
        rounds,
        {name: [found.get(each) for each in rounds] for name, found in values.items()},
        lines={"target": first["target_auc"]} if figure == "auc" else None,
    )


def time_curve(rows: Sequence[TradeoffRow]) -> dict[str, Any]:
    """Total seconds of runs to one target by local steps, a series for each exchange."""
    steps = list(dict.fromkeys(str(row["local_steps"]) for row in rows))
    series: dict[str, dict[str, float]] = {}
    for row in rows:
        series.setdefault(_name(row, rows), {})[str(row["local_steps"])] = row["total_s"]
    found = curve(
        f"{rows[0]['dataset']}, to AUC {rows[0]['target_auc']:g}",
        "local steps Q",
        "seconds in all",
        range(len(steps)),
        {name: [by_steps.get(each) for each in steps] for name, by_steps in series.items()},
        log_y=True,
    )
    return {**found, "ticks": steps}


def tradeoff_page(result: Mapping[str, Any]) -> str:
    """The page of a run of `bench tradeoff`, from what its JSON holds."""
    rows: Sequence[TradeoffRow] = result["rows"]
    first, own = rows[0], varied(rows)
    columns = with_offline((own[0], TO_TARGET, *own[1:]), rows)
    of_data = grouped(rows, "dataset", "parties").values()
    return rows_page(
        result,
        columns,
        title=f"What an exchange costs on {first['dataset']}",
        lead=f"Training by {first['parties']} parties to a held-out AUC, S = "
        f"{first['batch_size']}, medians of {first['repeats']}. Computation was measured on "
        "the machine named below; the network is a model. Scoring is no part of the total.",
        figures=[
            (
                f"Time to AUC {own[0]['target_auc']:g}"
                + ("" if all(row["reached_target"] for row in own) else ", which not all reach"),
                time_curve(own),
            )
            for own in grouped(rows, "dataset", "parties", "target_auc").values()
        ]
        + [
            (f"K = {own[0]['parties']}: {ROUNDS_FIGURES[figure]}", rounds_curve(own, figure))
            for own in map(_in_one_exchange, of_data)
            for figure in ROUNDS_FIGURES
        ],
        heading="Every setting",
        notes=tradeoff_notes(rows),
    )
