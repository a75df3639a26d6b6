"""A run of `securevfl train` as a page: its course, its costs, and each party's own model."""

from collections.abc import Mapping, Sequence
from typing import Any

from securevfl.auditing.curves import curve
from securevfl.reports.comparison import SCORES, compared, comparison_notes
from securevfl.reports.page import render
from securevfl.reports.privacy import privacy_notes
from securevfl.reports.rows import AheadFigure, ahead_s, any_ahead, made_ahead
from securevfl.reports.tables import TRADEOFF, Column, seconds, size, tradeoff_notes, with_ahead

Row = Mapping[str, Any]
PHASES = {
    "local": "steps on own data",
    "encrypt": "encryption",
    "evaluate": "products under encryption",
    "decrypt": "decryption",
    "offline": "work that did not fit into waiting",
}

AHEAD: Mapping[AheadFigure, str] = {
    "ahead_compute_s": "computation ahead of rounds",
    "ahead_communication_s": "network ahead of rounds",
}


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
    job = with_ahead(TRADEOFF, [row])
    parties = f"{row['parties']} parties"
    return render(
        "train.html",
        result=result,
        title=f"A model of {row['dataset']} by {parties}",
        lead=f"{row['algorithm']} under {row['exchange']}, {row['rounds']} rounds. Computation was "
        "measured on the machine named below; the network is a model.",
        warnings=[each["text"] for each in row.get("warnings", ())],
        figures=[{"title": each["title"], "curve": each} for each in curves(row)],
        models=([heading for heading, _ in columns], _lines(columns, models)),
        costs=(["what", "time"], costs(row)),
        job=([heading for heading, _ in job], _lines(job, [row])),
        notes=[
            *(
                f"{name}: {count} rows left out"
                for name, count in row["dropped_rows"].items()
                if count
            ),
            *comparison_notes(row),
            *tradeoff_notes([row]),
            *privacy_notes(row),
        ],
    )


def costs(row: Row) -> list[tuple[str, str]]:
    """Seconds of the critical path by what they were spent on, and what was sent."""
    phases = row["compute_by_phase_s"]
    ahead, rounds = any_ahead([row]), row["total_s"] - ahead_s(row)
    network = made_ahead(row, "ahead_communication_s")
    return [
        *((text, seconds(phases[phase])) for phase, text in PHASES.items() if phases[phase]),
        ("network", seconds(row["communication_s"] - network)),
        ("all rounds", seconds(rounds)),
        *((text, seconds(made_ahead(row, figure))) for figure, text in AHEAD.items() if ahead),
        *([("in all", seconds(row["total_s"]))] if ahead else []),
        ("set-up before them", seconds(row["setup_s"])),
        ("on this machine's clock", seconds(row["wall_s"])),
        ("sent", size(row["bytes_sent"])),
        *([("of it ahead", size(made_ahead(row, "ahead_bytes")))] if ahead else []),
    ]


def _lines(columns: Sequence[Column[Any]], rows: Sequence[Row]) -> list[list[str]]:
    return [[show(row) for _, show in columns] for row in rows]
