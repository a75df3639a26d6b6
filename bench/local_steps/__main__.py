"""What local steps save under encryption, on vertical logistic regression: Table 2 of FedBCD."""

from bench.documents import by_columns
from bench.experiment import Experiment, Run, Settings, main
from bench.tables import RATE, by_target, homomorphic_s, shown
from securevfl.reports.tables import seconds

GRID = "bench tradeoff --local-steps 1,5,10"
CREDIT = (
    f"{GRID} --dataset credit --exchange plain,bfv --batch-size 256 --target-auc 0.69,0.70,0.71 "
    "--max-rounds 600 --repeats 3"
)
PER_STEP = f"{GRID} --exchange paillier,bfv --key-bits 2048 --he-per-step false,true"

RUNS = {
    "credit-one-rate": Run(30, f"{CREDIT} --learning-rate 0.1"),
    "credit-own-rates": Run(40, f"{CREDIT} --tuning per-q"),
    "he-per-step-breast_cancer": Run(100, f"{PER_STEP} --repeats 3"),
    "he-per-step-credit": Run(
        300,
        f"{PER_STEP} --dataset credit --batch-size 256 --target-auc 0.69,0.70 --max-rounds 60 "
        "--learning-rate 1",
    ),
}

TARGETS = by_target(
    ("AUC", lambda row: f"{row['target_auc']:.2f}"),
    *shown("exchange", "Q"),
    RATE,
    *shown("rounds", "compute", "network", "total", "a round"),
)


EXPERIMENT: Experiment[Settings] = Experiment(
    name="local_steps",
    about=__doc__ or "",
    runs=RUNS,
    quick="--repeats 1 --max-rounds 3 --learning-rate 0.1",
    tables={
        "targets": TARGETS,
        "cost-shape": by_columns(
            *shown("exchange"),
            ("products", lambda row: "every step" if row["he_per_step"] else "once a round"),
            ("Q", lambda row: str(row["local_steps"])),
            *shown("rounds"),
            ("R x Q", lambda row: f"{row['rounds'] * row['local_steps']:g}"),
            ("homomorphic", lambda row: seconds(homomorphic_s(row))),
            ("a round", lambda row: seconds(homomorphic_s(row) / row["rounds"])),
            *shown("compute", "network", "total"),
            ("messages", lambda row: f"{row['messages']:g}"),
        ),
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
