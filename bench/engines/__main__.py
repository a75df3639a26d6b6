"""What one encrypted product costs, by engine, and a whole small job."""

from bench.documents import by_columns
from bench.experiment import Experiment, Run, Settings, main
from securevfl.reports.benchmarks import CRYPTO, CryptoRow
from securevfl.reports.tables import Column, seconds

FULL_BATCHES = "bench crypto --scheme bfv --rounds 20 --network wan"

RUNS = {
    "tradeoff": Run(20, "bench tradeoff", "--repeats 1 --max-rounds 3 --learning-rate 0.1"),
    "crypto": Run(180, "bench crypto"),
    "crypto-large-binary": Run(10, f"{FULL_BATCHES} --samples 32561 --features 56 --zero-one"),
    "crypto-large": Run(
        70,
        f"{FULL_BATCHES} --samples 24000,8000,8000,11982,60000 --features 15,114,357,392,392",
    ),
}


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds(value)


PHASES: tuple[Column[CryptoRow], ...] = (
    *CRYPTO[:2],
    ("keys", lambda row: _seconds(row.get("seconds_keys"))),
    ("prepare", lambda row: _seconds(row.get("seconds_prepare"))),
    ("encrypt", lambda row: _seconds(row.get("seconds_encrypt"))),
    ("evaluate", lambda row: _seconds(row.get("seconds_evaluate"))),
    ("decrypt", lambda row: _seconds(row.get("seconds_decrypt"))),
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
