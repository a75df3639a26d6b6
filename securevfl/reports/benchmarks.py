"""Result rows and tables of benchmarks; see `rows` and `tables`."""

from typing import NotRequired

from typing_extensions import TypedDict

from securevfl.reports.tables import Column, Row, seconds, size


class CryptoRow(TypedDict):
    """One engine on one shape; NumPy's row lacks what only encryption has."""

    operation: str
    scheme: str
    engine: str
    key_bits: int | None
    workers: int
    samples: int
    features: int
    seconds_median: float
    seconds_min: float
    seconds_encrypt: NotRequired[float]
    seconds_evaluate: NotRequired[float]
    seconds_decrypt: NotRequired[float]
    seconds_offline: NotRequired[float]
    seconds_keys: NotRequired[float]
    seconds_prepare: NotRequired[float]
    extrapolated: bool
    timed_part: NotRequired[tuple[int, int]]
    bytes_up: int
    bytes_down: int
    bytes_key: NotRequired[int]
    exact: bool
    largest_error: NotRequired[float]
    value_fraction_bits: NotRequired[int]
    matrix_fraction_bits: NotRequired[int]
    rounds: NotRequired[int]
    runs: int
    ratio_to_phe_2048: float | None
    ratio_to_phe_3072: float | None


class LabelGuardRow(TypedDict):
    """What a feature party reads at one ratio: means over seeds.

    `own_` is the best model of its columns, figure by figure; `bound_` an attacker that knows all
    predictions as well; `rarest` the share of the rarest class.
    """

    dataset: str
    rows: int
    columns: int
    rarest: float
    ratio: float
    batch_size: int
    sampling: str
    rounds: int
    auc: float
    auc_std: float
    own_auc: float
    bound_auc: float
    top_precision: float
    own_top_precision: float
    bound_top_precision: float
    true_positives: float
    own_true_positives: float
    bound_true_positives: float
    accuracy: float
    own_accuracy: float
    exposed_rows: int


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1e5:  # noqa: PLR2004
        return f"{value:.1e}x"
    return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"  # noqa: PLR2004


def _scheme(row: CryptoRow) -> str:
    if row["scheme"] == "none":
        return "in clear"
    if row["key_bits"] is None:
        return str(row["scheme"])
    workers = f" ({row['workers']})" if row["workers"] > 1 else ""
    return f"{row['scheme']} {row['engine']} {row['key_bits']}{workers}"


def _offline(value: float) -> str:
    return seconds(value) if value > 1e-5 else "-"  # noqa: PLR2004


def _times(row: Row, figure: str) -> str:
    """The attack's and the bound's over the own model's."""
    own = row[f"own_{figure}"]
    if not own:
        return "-"
    return f"x{row[figure] / own:.2f} {row[f'bound_{figure}'] / own:.2f}"


def _seconds_or_dash(value: float | None) -> str:
    return "-" if value is None else seconds(value)


CRYPTO: tuple[Column[CryptoRow], ...] = (
    ("scheme", _scheme),
    ("S x P", lambda row: f"{row['samples']} x {row['features']}"),
    ("online", lambda row: seconds(row["seconds_median"]) + ("~" if row["extrapolated"] else "")),
    ("offline", lambda row: _offline(row.get("seconds_offline", 0.0))),
    ("phe-2048", lambda row: _ratio(row["ratio_to_phe_2048"])),
    ("phe-3072", lambda row: _ratio(row["ratio_to_phe_3072"])),
    ("up", lambda row: size(row["bytes_up"])),
    ("down", lambda row: size(row["bytes_down"])),
)

CRYPTO_PHASES: tuple[Column[CryptoRow], ...] = (
    *CRYPTO[:2],
    ("keys", lambda row: _seconds_or_dash(row.get("seconds_keys"))),
    ("prepare", lambda row: _seconds_or_dash(row.get("seconds_prepare"))),
    ("encrypt", lambda row: _seconds_or_dash(row.get("seconds_encrypt"))),
    ("evaluate", lambda row: _seconds_or_dash(row.get("seconds_evaluate"))),
    ("decrypt", lambda row: _seconds_or_dash(row.get("seconds_decrypt"))),
    CRYPTO[3],  # offline
    *CRYPTO[6:],  # up and down
)

LABEL_GUARD: tuple[Column[LabelGuardRow], ...] = (
    ("ratio", lambda row: f"{row['ratio']:.4f}"),
    ("S", lambda row: str(row["batch_size"])),
    ("rounds", lambda row: str(row["rounds"])),
    ("own AUC", lambda row: f"{row['own_auc']:.4f}"),
    ("more", lambda row: f"{row['auc'] - row['own_auc']:+.4f}"),
    ("bound", lambda row: f"{row['bound_auc'] - row['own_auc']:+.4f}"),
    ("top 1 %", lambda row: _times(row, "top_precision")),
    ("1 % FPR", lambda row: _times(row, "true_positives")),
    ("leverage 1", lambda row: str(row["exposed_rows"])),
)
