"""Encrypted FedBCD-p against FedSGD in clear: a9a on three networks, and two smaller data sets.

The runs `opening-…` are shown in docs/reference/exchanges.md.
"""

from bench.documents import by_columns
from bench.experiment import Experiment, Run, Settings, main
from bench.tables import BATCH, NETWORK, shown

GRID = "bench tradeoff --exchange plain,bfv"
A9A = (
    f"{GRID} --dataset a9a --local-steps 1,10 --target-auc 0.90 --max-rounds 600 --eval-every 2 "
    "--learning-rate 0.5"
)
OPENING = f"{GRID} --local-steps 1,10,exact --tuning per-q --network wan --repeats 3"

RUNS = {
    **{
        f"a9a-{size}-{network}": Run(70, f"{A9A} --batch-size {size} --network {network}")
        for size in (256, 1024)
        for network in ("lan", "wan", "intercontinental")
    },
    "opening-breast_cancer": Run(20, OPENING),
    "opening-credit": Run(60, f"{OPENING} --dataset credit --batch-size 256 --target-auc 0.71"),
}

EXPERIMENT: Experiment[Settings] = Experiment(
    name="encrypted_or_clear",
    about=__doc__ or "",
    runs=RUNS,
    quick="--repeats 1 --max-rounds 3 --learning-rate 0.5",
    tables={
        "networks": by_columns(
            NETWORK, BATCH, *shown("exchange", "Q", "rounds", "a round", "total")
        )
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
