"""Federated transfer learning to an AUC by Q: Table 2 and Figures 3 and 4 of FedBCD.

Local steps are exact, with a product in every step under encryption as in FATE (`he_per_step`), or
linearized, with one product a round. In clear they are the same steps without the products.
"""

import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from math import inf
from typing import Any, Literal

from bench.documents import Cells, by_columns
from bench.experiment import DataSettings, Experiment, Run, Several, main
from bench.held import (
    BEST,
    BY_SEED,
    FIRST,
    LAST,
    TYPICAL,
    Timed,
    or_never,
    rows_of,
    runs_of,
)
from bench.tables import RATE, homomorphic_s, shown
from securevfl.benchmarks.progress import Report
from securevfl.crypto.schemes import SCHEMES
from securevfl.job import Job
from securevfl.reports.rows import cost_figures
from securevfl.reports.tables import Column, Row, seconds, size

OPERATIONS = ("encryptions", "products", "decryptions")
Steps = Literal["exact", "linearized"]


class TransferSettings(DataSettings):
    """A grid over local steps and their rule; `held` scorings in a row, 1 ends a run there."""

    dataset: str = "credit-swapped"
    scheme: str = "plain"
    overlap: int = 4000
    units: int = 16
    batch_size: int | Literal["full"] = 256
    learning_rate: float = 3
    schedule: str = "constant"
    rounds: int = 60
    steps: Several[Steps] = ("exact",)
    local_steps: Several[int] = (1, 5, 10)
    target_aucs: Several[float] = (0.70, 0.73, 0.75)
    held: int = 3
    repeats: int = 5

    def job(self, steps: Steps, local_steps: int) -> Job:
        """One cell's job."""
        encrypts, exact = self.scheme in SCHEMES, steps == "exact"
        hidden = {"hide": "both", "he_per_step": exact} if encrypts else {}
        sized = {"key_bits": 2048} if encrypts and SCHEMES[self.scheme].key_sizes else {}
        return Job.of(
            job={
                "name": "transfer",
                "algorithm": "ftl",
                "rounds": self.rounds,
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
                "schedule": self.schedule,
                "local_steps": local_steps,
                "local_rule": "curvature" if exact else "gauss-newton",
                "eval_every": 1,
                "seed": self.seed,
                "allow_label_leak": True,
                **({"target_auc": max(self.target_aucs)} if self.held == 1 else {}),
            },
            ftl={"overlap": self.overlap, "units": self.units, "alignment": 0.001},
            exchange={"scheme": self.scheme, **hidden, **sized},
        )


def transfer(settings: TransferSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for every cell and target; costs are of the rounds to it, or of all, of first runs."""
    dataset = settings.load()
    for steps, local_steps in product(settings.steps, settings.local_steps):
        job, what = settings.job(steps, local_steps), f"{steps}, Q = {local_steps}, "
        runs = runs_of(job, dataset, settings.repeats, report, what)
        for row in rows_of(runs, settings.target_aucs, settings.held):
            yield {
                "dataset": dataset.name,
                "exchange": settings.scheme,
                "steps": steps,
                "local_steps": local_steps,
                "learning_rate": settings.learning_rate,
                "batch_size": settings.batch_size,
                "units": settings.units,
                "rounds_run": settings.rounds,
                **row,
                **_costs(runs, row["runs"][0]["rounds"]),
            }


def _costs(runs: Sequence[Timed], rounds: int) -> dict[str, Any]:
    first, _ = runs[0]
    counts = [each.operations for each in first.ledgers.values()]
    return {
        "rounds": rounds,
        "hide": "both" if first.plan.exchange.encrypts else None,
        "key_bits": first.key_bits,
        **{f"{name}_per_round": sum(c[name] for c in counts) / first.rounds for name in OPERATIONS},
        **cost_figures(first.costs(rounds)),
    }


TARGET: Column[Any] = ("AUC", lambda row: f"{row['target_auc']:g}")
Q: Column[Any] = ("Q", lambda row: str(row["local_steps"]))
DATA: Column[Any] = ("data", lambda row: str(row["dataset"]))
MU: Column[Any] = ("μ", lambda row: f"{row['proximal']:g}")
STEPS: Column[Any] = ("steps", lambda row: row["steps"])
PRODUCTS: Column[Any] = (
    "products",
    lambda row: "every step" if row["steps"] == "exact" else "once a round",
)


def _a_round(heading: str, of_row: Any) -> Column[Any]:  # noqa: ANN401
    return heading, lambda row: seconds(of_row(row) / row["rounds"])


A_ROUND = by_columns(
    *shown("exchange"),
    PRODUCTS,
    Q,
    *((name, lambda row, name=name: f"{row[f'{name}_per_round']:g}") for name in OPERATIONS),
    _a_round("homomorphic", homomorphic_s),
    _a_round("compute", lambda row: row["compute_s"]),
    _a_round("network", lambda row: row["communication_s"]),
    ("messages", lambda row: f"{row['messages'] / row['rounds']:g}"),
    ("sent", lambda row: size(row["bytes_sent"] / row["rounds"])),
)

TO_TARGET = by_columns(
    TARGET,
    *shown("exchange"),
    PRODUCTS,
    Q,
    ("R", lambda row: f"{row['rounds']:g}{'' if row['runs'][0]['reached'] else ' *'}"),
    ("R x Q", lambda row: f"{row['rounds'] * row['local_steps']:g}"),
    ("homomorphic", lambda row: seconds(homomorphic_s(row))),
    *shown("compute", "network", "total", "sent"),
)

PAPER = {
    (0.70, 1): (17, 11.33),
    (0.70, 5): (4, 13.40),
    (0.70, 10): (2, 10.87),
    (0.75, 1): (30, 20.50),
    (0.75, 5): (8, 26.78),
    (0.75, 10): (4, 23.73),
}
"""Rounds and minutes of computation, by AUC and Q (Liu et al., Table 2)."""


def table_2(rows: Sequence[Row]) -> Cells:
    """Rounds of the runs in clear times what a round costs under encryption, beside the paper's."""
    cost = {(r["steps"], r["local_steps"]): r for r in rows if r["exchange"] != "plain"}
    own = ["R", "R x Q", "compute", "to Q = 1"]
    cells = [["AUC", "products", "Q", *own, "paper: R", "compute", "to Q = 1"]]
    base: dict[tuple[float, str], float] = {}
    in_clear = [row for row in rows if row["exchange"] == "plain"]
    for row in sorted(in_clear, key=lambda row: (row["target_auc"], row["steps"] == "linearized")):
        target, steps, q = row["target_auc"], row["steps"], row["local_steps"]
        rounds = statistics.median(run["first_at_target"] or inf for run in row["runs"])
        spent = rounds * cost[steps, q]["compute_s"] / cost[steps, q]["rounds"]
        first = base.setdefault((target, steps), spent)
        ratio = "-" if inf in (spent, first) else f"{spent / first:.2f}"
        paper = ["-", "-", "-"]
        if steps == "exact" and (target, q) in PAPER:
            published, minutes = PAPER[target, q]
            paper = [f"{published}", f"{minutes:g} min", f"{minutes / PAPER[target, 1][1]:.2f}"]
        ours = [or_never(rounds), or_never(rounds * q), "-" if spent == inf else seconds(spent)]
        cells.append([f"{target:g}", PRODUCTS[1](row), str(q), *ours, ratio, *paper])
    return cells


BEST_Q = {
    "scheme": "plain",
    "units": 64,
    "batch_size": "full",
    "schedule": "inverse-sqrt",
}
MFEAT = {**BEST_Q, "dataset": "mfeat-even-odd", "overlap": 400, "target_aucs": (0.83, 0.85)}
ALL_Q = (1, 5, 15, 25, 50, 100)
BOTH = ("exact", "linearized")
GRID = "bench tradeoff --algorithm ftl --alignment 0.001 --batch-size full --repeats 3"

RUNS = {
    "credit-clear": Run(60, {"steps": BOTH}),
    "credit-bfv": Run(
        100, {"scheme": "bfv", "steps": BOTH, "held": 1, "target_aucs": 0.70, "repeats": 1}
    ),
    "round-paillier": Run(
        200,
        {
            "scheme": "paillier",
            "steps": BOTH,
            "held": 1,
            "target_aucs": 0.99,
            "rounds": 1,
            "repeats": 1,
        },
    ),
    "mfeat-0.3": Run(
        160, {**MFEAT, "learning_rate": 0.3, "rounds": 20, "local_steps": ALL_Q, "repeats": 7}
    ),
    "mfeat-3": Run(
        40,
        {**MFEAT, "learning_rate": 3, "rounds": 20, "local_steps": (1, 5, 15, 50), "repeats": 3},
    ),
    "credit-paper": Run(
        90,
        f"{GRID} --exchange plain --dataset credit --overlap 4000 --learning-rate 3 "
        "--local-steps 1,5,10 --target-auc 0.60,0.62 --max-rounds 25",
        quick="--local-steps 1 --repeats 1",
    ),
    "wikipedia": Run(
        120,
        f"{GRID} --exchange plain --dataset wikipedia-biology --overlap 600 --learning-rate 1 "
        "--target-auc 0.75 --max-rounds 15 --schedule inverse-sqrt "
        "--local-steps 1,5,15,25,50,100 --proximal 0,0.1",
        quick="--local-steps 1 --repeats 1",
    ),
    "audit": Run(
        600,
        "audit bench/transfer/job.toml --exchange plain,bfv --hide both --repeats 3",
        quick="--repeats 1",
    ),
}

ROUNDS = (STEPS, Q, TARGET, TYPICAL, BY_SEED, FIRST, BEST, LAST)

EXPERIMENT = Experiment(
    name="transfer",
    about=__doc__ or "",
    runs=RUNS,
    quick={"local_steps": 1, "repeats": 1, "rounds": 3},
    settings=TransferSettings,
    measure=transfer,
    columns=ROUNDS,
    tables={
        "a-round": A_ROUND,
        "to-target": TO_TARGET,
        "table-2": table_2,
        "transfer-rounds": by_columns(DATA, TARGET, Q, MU, RATE, *shown("rounds"), BEST),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
