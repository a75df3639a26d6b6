"""What one encrypted product costs, by engine, and a whole small job."""

from typing import Any

from bench.documents import by_columns
from bench.experiment import Experiment, Run, Settings, main
from bench.tables import or_dash
from securevfl.reports.benchmarks import CRYPTO
from securevfl.reports.tables import Column, Row, seconds

FULL_BATCHES = "bench crypto --scheme bfv --rounds 20 --network wan"

RUNS = {
    "tradeoff": Run(20, "bench tradeoff", "--repeats 1 --max-rounds 3 --learning-rate 0.1"),
    "crypto": Run(180, "bench crypto"),
    "crypto-large-binary": Run(10, f"{FULL_BATCHES} --samples 32561 --features 56 --zero-one"),
    "crypto-large": Run(
        70, f"{FULL_BATCHES} --samples 24000,8000,8000,11982,60000 --features 15,114,357,392,392"
    ),
}


def _phase(name: str) -> Column[Row]:
    return name, lambda row: or_dash(row.get(f"seconds_{name}"), seconds)


PHASES: tuple[Column[Any], ...] = (
    *CRYPTO[:2],
    *map(_phase, ("keys", "prepare", "encrypt", "evaluate", "decrypt")),
    CRYPTO[3],  # offline
    *CRYPTO[6:],  # up and down
)

EXPERIMENT: Experiment[Settings] = Experiment(
    name="engines",
    about=__doc__ or "",
    runs=RUNS,
    quick="--samples 64 --features 15 --repeats 1",
    tables={"crypto": by_columns(*CRYPTO), "crypto-phases": by_columns(*PHASES)},
)

if __name__ == "__main__":
    main(EXPERIMENT)
