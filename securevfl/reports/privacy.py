"""What a job's noise promises, in sentences."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def epsilon_text(value: float | None) -> str:
    """Three digits, or that nothing is promised."""
    return "inf" if value is None else f"{value:.3g}"


def spent_text(promise: Row) -> str:
    """What has been spent, for a progress bar."""
    release, whole = (epsilon_text(promise[f"epsilon_{k}"]) for k in ("release", "end_to_end"))
    return f"epsilon {release} of releases, {whole} end to end"


def privacy_notes(row: Row) -> list[str]:
    """What a job with noise promised, a line each; nothing for a job without.

    Args:
        row: of `train`, with `privacy`.
    """
    promise = row["privacy"]
    if promise is None:
        return []
    notes = [
        f"noise: {promise['mechanism']}, z = {promise['noise_multiplier']:.4g}, clip = "
        f"{promise['clip']:g}, releases of a sample = {promise['releases']}, delta = "
        f"{promise['delta']:g}",
        f"epsilon of releases {epsilon_text(promise['epsilon_release'])}, end to end "
        f"{promise['epsilon_end_to_end_text']}",
        f"held-out rows: releases = {promise['held_out_releases']}, epsilon "
        f"{epsilon_text(promise['epsilon_held_out'])}",
    ]
    if promise["label_noise_multiplier"]:
        notes.append(
            f"labels: z = {promise['label_noise_multiplier']:g}, releases = "
            f"{promise['label_releases']}, epsilon {epsilon_text(promise['epsilon_label'])}"
        )
    elif promise["label_releases"]:
        notes.append("labels: no noise on residuals, which tell them")
    else:
        notes.append("labels: known to all parties")
    if row["auc"] is not None:
        notes.append(
            f"AUC {row['auc']:.4f} of noisy held-out predictions, {row['auc_exact']:.4f} of exact "
            "ones, which no party sees"
        )
    return [*notes, promise["noise"], f"not covered: {promise['not_covered']}"]
