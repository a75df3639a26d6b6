"""A noise sweep for people: a table of 80 columns, sentences, and a page with FDML's Fig. 4."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from securevfl.reports.page import rows_page
from securevfl.reports.rows import DERIVED, NoiseRow
from securevfl.reports.tables import Column, epsilon_text, grouped
from securevfl.shown import curve


def _spread(mean: float, deviation: float | None) -> str:
    return f"{mean:.4f}" + ("" if deviation is None else f" ±{deviation:.4f}")


NOISE: tuple[Column[NoiseRow], ...] = (
    ("model", lambda row: str(row["model"])),
    ("own", lambda row: row["own_prediction"] or "-"),
    ("z", lambda row: f"{row['noise_multiplier']:g}"),
    ("eps release", lambda row: epsilon_text(row["epsilon_release"])),
    ("end to end", lambda row: epsilon_text(row["epsilon_end_to_end"])),
    ("AUC exact rows", lambda row: _spread(row["auc_mean"], row["auc_std"])),
    ("AUC noisy rows", lambda row: _spread(row["auc_noisy_mean"], row["auc_noisy_std"])),
    ("gain", lambda row: f"{row['auc_mean'] - row['auc_local_only']:+.4f}"),
)

NOT_PROMISED = (
    "The release guarantee is about a sample's own released predictions, the model taken as given. "
    "A sample also moves its party's weights and so every later prediction: without noise on "
    "gradients nothing bounds that.",
    "It is per party: who is known to several parties composes.",
    "Scaling, the spread of random starts, feature selection and the choice of the learning rate "
    "are taken as public.",
)


def sweep_notes(rows: Sequence[NoiseRow]) -> list[str]:
    """What a doubter asks of a sweep, a line each."""
    notes = []
    for model, own in grouped(rows, "model").items():
        first = own[0]
        summed = (
            f" (sum of the parties' networks {first['auc_sum_in_one_place']:.4f})"
            if model == "nn"
            else ""
        )
        rate = first["learning_rate"]
        notes.append(
            f"{model}: best party alone ({first['local_only_party']}) "
            f"{first['auc_local_only']:.4f}, all columns in one place "
            f"{first['auc_centralized']:.4f}{summed}; "
            + (f"step sizes {DERIVED}" if rate is None else f"learning rate {rate:g}")
        )
        notes += [
            f"{model}{'' if name is None else f', own {name}'}: {highest_gain(curve_rows)}"
            for name, curve_rows in by_own_prediction(own).items()
        ]
    first = rows[0]
    if first["own_prediction"] is not None:
        notes.append(
            "own: what a party adds to the others' noisy sum: its exact prediction, or the noisy "
            "one that it pushed (the paper's)"
        )
    spread = "deviation" if first["mechanism"] == "gaussian" else "scale"
    notes += [
        f"{first['mechanism']} noise, z = {spread} over twice the clip, clip = {first['clip']:g}, "
        f"releases of a sample = {first['releases']}, delta = {first['delta']:g}, "
        f"{first['repeats']} seeds",
        "release: the model taken as given; end to end: the whole view"
        + (
            f" ({rows[-1]['epsilon_end_to_end_text']})"
            if first["gradient_clip"] is None
            else f", gradients clipped to {first['gradient_clip']:g}, noise "
            f"{first['gradient_noise_multiplier']:g}"
        ),
        "noisy rows: held-out rows scored with noise, one release more of each; gain: exact rows "
        "over the best party alone",
        str(first["noise"]),
    ]
    return notes


def by_own_prediction(rows: Sequence[NoiseRow]) -> dict[str | None, list[NoiseRow]]:
    """One model's rows, a list for each curve, by rising noise."""
    return {
        name: sorted(own, key=lambda row: row["noise_multiplier"])
        for name, own in grouped(rows, "own_prediction").items()
    }


def highest_gain(levels: Sequence[NoiseRow]) -> str:
    """Up to which level training together is better than the best party alone, in words."""
    above = [*takewhile(lambda row: row["auc_mean"] > row["auc_local_only"], levels)]
    if not above:
        return "together no better than it at any level"
    # Beyond the last level nothing is known.
    more = " at least" if len(above) == len(levels) else ""
    return f"together better up to z = {above[-1]['noise_multiplier']:g}{more}"


def sweep_curve(rows: Sequence[NoiseRow]) -> dict[str, Any]:
    """One model's AUC over noise, with bands of one deviation, and the lines.

    Levels stand evenly, each with its ε below it. Of fdml one curve for each `own_prediction`.
    """
    curves = {
        "exact rows" if name is None else f"own prediction {name}": levels
        for name, levels in by_own_prediction(rows).items()
    }
    levels = next(iter(curves.values()))
    first, noises = levels[0], [row["noise_multiplier"] for row in levels]
    one_place = {"one place": first["auc_centralized"]}
    if first["model"] == "nn":
        one_place["sum in one place"] = first["auc_sum_in_one_place"]
    found = curve(
        f"{first['dataset']}, {first['model']}",
        "noise multiplier z\nepsilon of releases",
        "held-out AUC",
        noises,
        {name: [row["auc_mean"] for row in each] for name, each in curves.items()},
        lines={f"{first['local_only_party']} alone": first["auc_local_only"], **one_place},
    )
    found["bands"] = {
        name: [row["auc_std"] or 0.0 for row in each] for name, each in curves.items()
    }
    epsilons = [row["epsilon_release"] for row in levels]
    ends = ["∞" if epsilon is None else epsilon_text(epsilon) for epsilon in epsilons]
    found["ticks"] = [f"{noise:g}\n{end}" for noise, end in zip(noises, ends, strict=True)]
    return found


def _title(rows: Sequence[NoiseRow]) -> str:
    gains = "; ".join(
        f"{'' if name is None else f'own {name}: '}{highest_gain(levels)}"
        for name, levels in by_own_prediction(rows).items()
    )
    return f"{rows[0]['model']}: {gains}"


def sweep_page(result: Mapping[str, Any]) -> str:
    """The page of a sweep, from what its JSON holds."""
    rows: Sequence[NoiseRow] = result["rows"]
    settings = result["settings"]
    return rows_page(
        result,
        NOISE,
        title=f"Noise sweep on {settings['dataset']}",
        lead="What differential-privacy noise on shared predictions costs, and what it promises: "
        f"real training runs ({settings['algorithm']}) at each level, {rows[0]['repeats']} seeds, "
        "beside the best party alone and all columns in one place.",
        figures=[(_title(own), sweep_curve(own)) for own in grouped(rows, "model").values()],
        heading="Every level",
        notes=sweep_notes(rows),
        not_promised=NOT_PROMISED,
    )
