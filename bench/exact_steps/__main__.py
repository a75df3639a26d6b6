"""Encrypted exact steps against FedSGD in clear: a9a to two AUCs on two networks."""

from bench.documents import by_columns
from bench.experiment import Experiment, Run, Settings, main
from bench.tables import BATCH, NETWORK, RATE, shown

A9A = "bench tradeoff --dataset a9a --repeats 3 --network"
TARGETS, SIZES = ("0.90", "0.9015"), ("256", "1024", "full")

RUNS = {
    name: run
    for network in ("wan", "intercontinental")
    for name, run in {
        f"exact-a9a-{network}": Run(
            20,
            f"{A9A} {network} --exchange plain,bfv --local-steps exact "
            f"--target-auc {','.join(TARGETS)}",
        ),
        **{
            f"fedsgd-a9a-{size}-{target}-{network}": Run(
                100,
                f"{A9A} {network} --exchange plain --local-steps 1 --batch-size {size} "
                f"--target-auc {target} --max-rounds 600",
            )
            for target in TARGETS
            for size in SIZES
        },
    }.items()
}

EXPERIMENT: Experiment[Settings] = Experiment(
    name="exact_steps",
    about=__doc__ or "",
    runs=RUNS,
    quick="--repeats 1 --max-rounds 3",
    tables={
        "exact_steps": by_columns(
            NETWORK,
            ("AUC", lambda row: f"{row['target_auc']:.4f}"),
            BATCH,
            RATE,
            *shown("exchange", "Q", "rounds", "a round", "total"),
        )
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
