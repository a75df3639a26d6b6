"""Made files of the size of a published benchmark, and a job on them.

    python -m bench.growth.published FOLDER ROWS BANK_COLUMNS SHOP_COLUMNS [LATENCY_MS MBIT_PER_S]
    securevfl train FOLDER/job.toml

Normal columns in float32; every tenth is informative, and labels, which the bank has, are drawn by
the logistic model of these. Prints the AUC of that model.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.metrics import roc_auc_score

JOB = """[job]
name = "published"
rounds = 12

[exchange]
scheme = "bfv"

[network]
latency_ms = {latency}
bandwidth_mbit = {bandwidth}

[output]
directory = "models"

[[party]]
name = "bank"
role = "label"
data = "bank.parquet"
id_column = "id"
label_column = "y"

[[party]]
name = "shop"
role = "feature"
data = "shop.parquet"
id_column = "id"
"""


def main(folder: Path, rows: int, columns: tuple[int, int], line: tuple[float, float]) -> None:
    """Write both parties' files, one after the other, and the job."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn, score = np.random.default_rng(7), np.zeros(rows, np.float32)
    weight, ids = 2.08 / (sum(columns) / 10) ** 0.5, [f"p{row:08d}" for row in range(rows)]

    def table(name: str, count: int) -> list[pl.Series]:
        found = [pl.Series("id", ids)]
        for place in range(count):
            values = drawn.standard_normal(rows, np.float32)
            if place % 10 == 0:
                score[:] += np.float32(drawn.normal() * weight) * values
            found.append(pl.Series(f"{name}{place}", values))
        return found

    def write(name: str, series: list[pl.Series]) -> None:
        pl.DataFrame(series).write_parquet(folder / f"{name}.parquet", compression="uncompressed")

    write("shop", table("shop", columns[1]))
    of_bank = table("bank", columns[0])
    labels = (drawn.random(rows) < 1 / (1 + np.exp(-score - 1))).astype(np.int8)
    write("bank", [*of_bank, pl.Series("y", labels)])
    (folder / "job.toml").write_text(JOB.format(latency=line[0], bandwidth=line[1]), "utf-8")
    print(f"AUC of the model behind the labels: {roc_auc_score(labels, score):.4f}")  # noqa: T201


if __name__ == "__main__":
    where, rows, first, second, *more = sys.argv[1:]
    line = (float(more[0]), float(more[1])) if more else (0.5, 1000.0)
    main(Path(where), int(rows), (int(first), int(second)), line)
