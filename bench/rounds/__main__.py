"""Rounds to a target AUC by algorithm, Q, K and μ: Table 1 and Figures 2 to 5 of FedBCD.

All runs are in clear: how many rounds a job takes does not depend on how its exchanges are
protected.
"""

from collections.abc import Mapping, Sequence

from bench.documents import Cells, by_columns
from bench.experiment import Experiment, Run, Settings, main
from securevfl.errors import DataError
from securevfl.reports.rows import TradeoffRow
from securevfl.reports.tables import Column, Row, rate, rounds_text

GRID = "bench tradeoff --exchange plain --start zero"
A9A = f"{GRID} --dataset a9a --batch-size 256 --target-auc 0.90 --max-rounds 1500 --repeats 3"
CARE = f"{GRID} --dataset icu2012-714 --target-auc 0.82"
CARE_256 = f"{CARE} --algorithm fedbcd-p,fedbcd-s --local-steps 5 --batch-size 256 --repeats 3"
CARE_64 = f"{CARE} --batch-size 64 --schedule inverse-sqrt --repeats 3"
TABLE_1 = f"{CARE_64} --algorithm fedsgd,fedbcd-p,fedbcd-s --local-steps 1,5,50"
THREE = "--algorithm fedsgd,fedbcd-p,fedbcd-s --local-steps 5"
OPTIMUM = (
    f"{GRID} --dataset a9a --algorithm fedbcd-p --batch-size 64 --target-auc 0.897 "
    "--max-rounds 300 --eval-every 5 --repeats 3"
)
RANDOM = CARE_256.replace("--start zero", "--start random")


def _by_square_root() -> dict[str, Run]:
    """Step sizes over the root of K, and of the number of rounds."""
    more = "--schedule inverse-sqrt --divide-by-sqrt-parties true --vary parties=2,5,17"
    return {
        f"icu2012-sqrt-{start}-{step:g}": Run(
            60, f"{grid} --max-rounds 100 --learning-rate {step:g} {more}"
        )
        for start, grid in (("zero", CARE_256), ("random", RANDOM))
        for step in (0.03, 0.1)
    }


RUNS = {
    **{
        f"a9a-{step:g}": Run(100, f"{A9A} {THREE} --learning-rate {step:g}")
        for step in (0.1, 0.3, 0.5, 1)
    },
    "a9a-tuned": Run(360, f"{A9A} {THREE} --tuning per-q"),
    **{
        f"a9a-decay-{step}": Run(
            300,
            f"{A9A} --algorithm fedsgd,fedbcd-p --local-steps 5 --schedule inverse-sqrt "
            f"--learning-rate {step}",
        )
        for step in (1, 3)
    },
    "icu2012": Run(
        300,
        f"{CARE_256.replace('fedbcd-p', 'fedsgd,fedbcd-p')} --vary parties=2,5,17 "
        "--max-rounds 1000 --learning-rate 0.003",
    ),
    "icu2012-random": Run(
        100, f"{RANDOM} --vary parties=2,5,17 --max-rounds 100 --learning-rate 0.003"
    ),
    **_by_square_root(),
    "icu2012-64-tuned": Run(200, f"{TABLE_1} --max-rounds 500 --tuning per-q"),
    "icu2012-64-0.003": Run(200, f"{TABLE_1} --max-rounds 1500 --learning-rate 0.003"),
    "icu2012-64-0.01": Run(200, f"{TABLE_1} --max-rounds 1500 --learning-rate 0.01"),
    "icu2012-64-curves": Run(
        60,
        f"{GRID} --dataset icu2012-714 --algorithm fedsgd,fedbcd-p,fedbcd-s --local-steps 5,50 "
        "--batch-size 64 --schedule inverse-sqrt --target-auc 1 --max-rounds 300 "
        "--learning-rate 0.01 --eval-every 5",
    ),
    "icu2012-parties-0.01": Run(
        150,
        f"{CARE_64} --algorithm fedbcd-p,fedbcd-s --local-steps 5 --vary parties=2,5,17 "
        "--divide-by-sqrt-parties true --max-rounds 500 --learning-rate 0.01",
    ),
    "optimum": Run(
        150, f"{OPTIMUM} --local-steps 1,5,15,25,50,100 --proximal 0,0.1 --learning-rate 0.3"
    ),
    "optimum-0.05": Run(150, f"{OPTIMUM} --local-steps 1,5,15,50,100 --learning-rate 0.05"),
    "optimum-tuned": Run(150, f"{OPTIMUM} --local-steps 1,5,15,50,100 --tuning per-q"),
}

# Rounds to AUC 0.84 on MIMIC-III in Table 1 of Liu et al.
PAPER_ROUNDS: Mapping[tuple[str, int], int] = {
    ("fedsgd", 1): 334,
    ("fedbcd-p", 1): 334,
    ("fedbcd-p", 5): 71,
    ("fedbcd-p", 50): 52,
    ("fedbcd-s", 1): 407,
    ("fedbcd-s", 5): 74,
    ("fedbcd-s", 50): 52,
}

ROUNDS: tuple[Column[TradeoffRow], ...] = (
    ("algorithm", lambda row: str(row["algorithm"])),
    ("Q", lambda row: str(row["local_steps"])),
    ("K", lambda row: str(row["parties"])),
    ("proximal", lambda row: f"{row['proximal']:g}"),
    ("learning rate", lambda row: rate(row["learning_rate"])),
    ("rounds", rounds_text),
    ("best AUC", lambda row: f"{row['best_auc']:.4f}"),
)


def _in_paper(row: Row) -> str:
    return str(PAPER_ROUNDS.get((row["algorithm"], row["local_steps"]), "-"))


def loss_curves(rows: Sequence[Row]) -> Cells:
    """Training loss and AUC of every row's first run: points 1, 2, 4, … of its curve, and the last.

    Raises:
        DataError: the runs were not scored after the same rounds.
    """
    curves = [row["runs"][0]["curve"] for row in rows]
    if len({tuple(point["rounds"] for point in curve) for curve in curves}) > 1:
        raise DataError("curves side by side: the runs were not scored after the same rounds")
    last = len(curves[0]) - 1
    counts = [*(2**power - 1 for power in range(last.bit_length())), last]
    headings = [f"{row['algorithm']}, Q = {row['local_steps']}" for row in rows]
    return [
        ["rounds", *headings],
        *(
            [
                f"{curves[0][count]['rounds']}",
                *(f"{_loss(points[count])}, {points[count]['auc']:.4f}" for points in curves),
            ]
            for count in counts
        ),
    ]


def _loss(point: Row) -> str:
    return "-" if point["training_loss"] is None else f"{point['training_loss']:.4f}"


EXPERIMENT: Experiment[Settings] = Experiment(
    name="rounds",
    about=__doc__ or "",
    runs=RUNS,
    quick="--repeats 1 --max-rounds 3 --learning-rate 0.1",
    tables={
        "rounds": by_columns(*ROUNDS),
        "table1": by_columns(*ROUNDS, ("paper", _in_paper)),
        "curves": loss_curves,
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
