"""A noise sweep for people: a table of 80 columns, sentences, and a page with FDML's Fig. 4."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

from securevfl.reports.page import rows_page
from securevfl.reports.rows import DERIVED, NoiseRow
from securevfl.reports.tables import Column, epsilon_text, grouped
from securevfl.shown import counted, curve


def _spread(mean: float, deviation: float | None) -> str:
    return f"{mean:.3f}" + ("" if deviation is None else f" ±{deviation:.3f}")


def _settles(row: NoiseRow) -> str:
    point = row["over_rounds"][row["settled"]]
    return f"{point['rounds']}: {epsilon_text(point['epsilon_release'])}"


def _own(name: str | None) -> str:
    return "" if name is None else f", own {name}"


NOISE: tuple[Column[NoiseRow], ...] = (
    ("model", lambda row: str(row["model"])),
    ("own", lambda row: row["own_prediction"] or "-"),
    ("z", lambda row: f"{row['noise_multiplier']:g}"),
    ("eps", lambda row: epsilon_text(row["epsilon_release"])),
    ("end to end", lambda row: epsilon_text(row["epsilon_end_to_end"])),
    ("exact AUC", lambda row: _spread(row["auc_mean"], row["auc_std"])),
    ("released AUC", lambda row: _spread(row["auc_noisy_mean"], row["auc_noisy_std"])),
    ("gain", lambda row: f"{row['auc_noisy_mean'] - row['auc_local_only']:+.3f}"),
    ("settles: eps", _settles),
)

NOT_PROMISED = (
    "The release guarantee is about a sample's own released predictions, the model taken as given. "
    "A sample also moves its party's weights and so every later prediction: without noise on "
    "gradients nothing bounds that.",
    "It is per party: who is known to several parties composes.",
    "The release guarantee takes scaling, the spread of random starts, feature selection and the "
    "choice of the learning rate as public.",
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
            f"{model}{_own(name)}: {highest_gain(curve_rows)}, by "
            f"released predictions (by exact ones, which nobody gets, "
            f"{highest_gain(curve_rows, 'auc_mean')})"
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
        f"{counted(first['repeats'], 'seed')}",
        "eps: of releases, the model taken as given; end to end: of the whole view"
        + (
            f" ({rows[-1]['epsilon_end_to_end_text']})"
            if first["gradient_clip"] is None
            else f", gradients clipped to {first['gradient_clip']:g}, noise "
            f"{first['gradient_noise_multiplier']:g}"
        ),
        "released: held-out predictions with noise, as parties get them, one release more of each; "
        "gain: their AUC above that of the best party alone",
        "settles: the fewest rounds whose released AUC is within 0.005 of the best, and eps after "
        f"them, in place of {first['over_rounds'][-1]['rounds']} rounds; the held-out rows choose "
        "them, so judge your choice by other rows",
        str(first["noise"]),
    ]
    return notes


def by_own_prediction(rows: Sequence[NoiseRow]) -> dict[str | None, list[NoiseRow]]:
    """One model's rows, a list for each curve, by rising noise."""
    return {
        name: sorted(own, key=lambda row: row["noise_multiplier"])
        for name, own in grouped(rows, "own_prediction").items()
    }


def highest_gain(
    levels: Sequence[NoiseRow], auc: Literal["auc_noisy_mean", "auc_mean"] = "auc_noisy_mean"
) -> str:
    """Up to which level training together is better than the best party alone, in words."""
    above = [*takewhile(lambda row: row[auc] > row["auc_local_only"], levels)]
    if not above:
        return "together no better than it at any level"
    # Beyond the last level nothing is known.
    more = " at least" if len(above) == len(levels) else ""
    return f"together better up to z = {above[-1]['noise_multiplier']:g}{more}"


def sweep_curve(rows: Sequence[NoiseRow]) -> dict[str, Any]:
    """One model's AUC over noise, with bands of one deviation, and the lines.

    Levels stand evenly, each with its ε below it. Released and exact predictions have a curve each;
    of fdml for each `own_prediction`.
    """
    by_own = by_own_prediction(rows)
    levels = next(iter(by_own.values()))
    first, noises = levels[0], [row["noise_multiplier"] for row in levels]
    one_place = {"one place": first["auc_centralized"]}
    if first["model"] == "nn":
        one_place["sum in one place"] = first["auc_sum_in_one_place"]
    series, bands = {}, {}
    for name, own in by_own.items():
        whose = "" if name is None else f"own {name}, "
        released, exact = f"{whose}released", f"{whose}exact"
        series[released] = [row["auc_noisy_mean"] for row in own]
        series[exact] = [row["auc_mean"] for row in own]
        bands[released] = [row["auc_noisy_std"] or 0.0 for row in own]
        bands[exact] = [row["auc_std"] or 0.0 for row in own]
    found = curve(
        f"{first['dataset']}, {first['model']}",
        "noise multiplier z\nepsilon of releases",
        "held-out AUC",
        noises,
        series,
        lines={f"{first['local_only_party']} alone": first["auc_local_only"], **one_place},
    )
    found["bands"] = bands
    epsilons = [row["epsilon_release"] for row in levels]
    ends = ["∞" if epsilon is None else epsilon_text(epsilon) for epsilon in epsilons]
    found["ticks"] = [f"{noise:g}\n{end}" for noise, end in zip(noises, ends, strict=True)]
    return found


def rounds_curve(levels: Sequence[NoiseRow]) -> dict[str, Any]:
    """The released AUC over rounds, a curve for each level, and the exact one of the last."""
    first, last = levels[0], levels[-1]
    series = {
        f"z = {row['noise_multiplier']:g}": [p["auc_noisy_mean"] for p in row["over_rounds"]]
        for row in levels
    }
    exact = [point["auc_mean"] for point in last["over_rounds"]]
    return curve(
        f"{first['dataset']}, {first['model']}{_own(first['own_prediction'])}, over rounds",
        "rounds",
        "held-out AUC",
        [point["rounds"] for point in first["over_rounds"]],
        {**series, f"exact, z = {last['noise_multiplier']:g}": exact},
        lines={f"{first['local_only_party']} alone": first["auc_local_only"]},
        log_x=True,
    )


def _title(rows: Sequence[NoiseRow]) -> str:
    gains = "; ".join(
        f"{'' if name is None else f'own {name}: '}{highest_gain(levels)}"
        for name, levels in by_own_prediction(rows).items()
    )
    return f"{rows[0]['model']}: {gains}"


def _figures(rows: Sequence[NoiseRow]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model, own in grouped(rows, "model").items():
        yield _title(own), sweep_curve(own)
        for name, levels in by_own_prediction(own).items():
            yield f"{model}{_own(name)}: released AUC over rounds", rounds_curve(levels)


def sweep_page(result: Mapping[str, Any]) -> str:
    """The page of a sweep, from what its JSON holds."""
    rows: Sequence[NoiseRow] = result["rows"]
    settings = result["settings"]
    return rows_page(
        result,
        NOISE,
        title=f"Noise sweep on {settings['dataset']}",
        lead="What differential-privacy noise on shared predictions costs, and what it promises: "
        f"real training runs ({settings['algorithm']}) at each level, "
        f"{counted(rows[0]['repeats'], 'seed')}, "
        "beside the best party alone and all columns in one place.",
        figures=[*_figures(rows)],
        heading="Every level",
        notes=sweep_notes(rows),
        not_promised=NOT_PROMISED,
    )
