"""Result rows and tables of benchmarks; see `rows` and `tables`."""

from typing import NotRequired

from typing_extensions import TypedDict

from securevfl.reports.tables import Column, seconds, size


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


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1e5:  # noqa: PLR2004
        return f"{value:.1e}x"
    return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"  # noqa: PLR2004


def _scheme(row: CryptoRow) -> str:
    if row["scheme"] == "none":
        return "in clear"
    names = [row["scheme"], row["engine"], row["key_bits"]]
    if row["key_bits"] is None:
        names = names[:1] if row["engine"] == "tenseal" else names[:2]
    workers = f" ({row['workers']})" if row["workers"] > 1 else ""
    return " ".join(map(str, names)) + workers


def _offline(value: float) -> str:
    return seconds(value) if value > 1e-5 else "-"  # noqa: PLR2004


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
