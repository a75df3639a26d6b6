"""Federated transfer learning to an AUC by Q and μ: Table 2 and Figures 3 and 4 of FedBCD.

Each run says the rule of local steps that its exchange has: encrypted steps follow a linearization.
"""

from typing import Any

from bench.documents import by_columns
from bench.experiment import Experiment, Run, Settings, main
from bench.tables import RATE, by_target, homomorphic_s, shown
from securevfl.reports.tables import Column, seconds

GRID = "bench tradeoff --algorithm ftl --alignment 0.001 --repeats 3"
ROLES = f"{GRID} --overlap 4000 --learning-rate 3 --local-steps 1,5,10"
CREDIT = f"{ROLES} --dataset credit-swapped"
CLEAR = "--exchange plain --batch-size full"
HIDDEN = "--hide both --local-rule gauss-newton --repeats 1"
BFV = f"{CREDIT} --exchange bfv {HIDDEN}"
PAILLIER = f"{CREDIT} --exchange paillier --key-bits 2048 {HIDDEN}"
BEST_Q = "--schedule inverse-sqrt --local-steps 1,5,15,25,50,100 --proximal 0,0.1"

RUNS = {
    "round-bfv": Run(60, f"{BFV} --batch-size 64 --max-rounds 2"),
    "round-paillier": Run(200, f"{PAILLIER} --batch-size 64 --max-rounds 1"),
    "credit": Run(120, f"{CREDIT} {CLEAR} --target-auc 0.70,0.72,0.74 --max-rounds 40"),
    "credit-paper": Run(
        90, f"{ROLES} --dataset credit {CLEAR} --target-auc 0.60,0.62 --max-rounds 25"
    ),
    "credit-bfv": Run(400, f"{BFV} --batch-size 256 --target-auc 0.70 --max-rounds 14"),
    "credit-paillier": Run(1500, f"{PAILLIER} --batch-size 256 --target-auc 0.70 --max-rounds 14"),
    "wikipedia": Run(
        120,
        f"{GRID} --dataset wikipedia-biology --overlap 600 {CLEAR} --learning-rate 1 "
        f"--target-auc 0.75 --max-rounds 15 {BEST_Q}",
    ),
    "mfeat": Run(
        200,
        f"{GRID} --dataset mfeat-even-odd --overlap 400 {CLEAR} --learning-rate 0.3 "
        f"--target-auc 0.90 --max-rounds 12 {BEST_Q}",
    ),
    "audit": Run(600, "audit bench/transfer/job.toml --exchange plain,bfv --hide both --repeats 3"),
}

TARGET: Column[Any] = ("AUC", lambda row: f"{row['target_auc']:g}")
CELL: tuple[Column[Any], ...] = (
    *shown("Q"),
    ("μ", lambda row: f"{row['proximal']:g}"),
    RATE,
    ("R", shown("rounds")[0][1]),
)
COSTS = by_target(
    TARGET,
    *shown("exchange"),
    *CELL,
    *shown("compute", "network", "total"),
    ("HE, a round", lambda row: seconds(homomorphic_s(row) / row["rounds"])),
)


EXPERIMENT: Experiment[Settings] = Experiment(
    name="transfer",
    about=__doc__ or "",
    runs=RUNS,
    quick="--local-steps 1 --repeats 1",
    tables={
        "transfer": COSTS,
        "transfer-rounds": by_columns(
            ("data", lambda row: str(row["dataset"])),
            TARGET,
            *CELL,
            ("best AUC", lambda row: f"{row['best_auc']:.4f}"),
        ),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
