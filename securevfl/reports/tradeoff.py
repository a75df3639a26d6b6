"""`bench tradeoff` as a page: time to the target over local steps, beside the table."""

from collections.abc import Mapping, Sequence
from typing import Any

from securevfl.auditing.curves import curve
from securevfl.reports.page import rows_page
from securevfl.reports.rows import TradeoffRow
from securevfl.reports.tables import (
    TRADEOFF,
    Column,
    exchange_text,
    grouped,
    tradeoff_notes,
    with_ahead,
)

WITH_TARGET: tuple[Column[TradeoffRow], ...] = (
    TRADEOFF[0],
    ("to AUC", lambda row: f"{row['target_auc']:g}"),
    *TRADEOFF[1:],
)


def time_curve(rows: Sequence[TradeoffRow]) -> dict[str, Any]:
    """Total seconds of runs to one target by local steps, a series for each exchange."""
    steps = list(dict.fromkeys(str(row["local_steps"]) for row in rows))
    series: dict[str, dict[str, float]] = {}
    for row in rows:
        name = exchange_text(row) + (", HE" if row.get("he_per_step") else "")
        series.setdefault(name, {})[str(row["local_steps"])] = row["total_s"]
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
    first, columns = rows[0], with_ahead(WITH_TARGET, rows)
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
            for own in grouped(rows, "target_auc").values()
        ],
        heading="Every setting",
        notes=tradeoff_notes(rows),
    )
