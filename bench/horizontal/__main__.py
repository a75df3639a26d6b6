"""FedBCGD beside FedAvg and others: floats to an accuracy, or to an optimum.

A run that was interrupted goes on where it was when the same command is given again; with
`--set fresh=true` it begins anew.
"""

from collections.abc import Sequence
from typing import Any

from bench.documents import by_columns
from bench.experiment import Experiment, Run, main
from bench.horizontal.comparison import horizontal
from bench.horizontal.rows import (
    CHANGES,
    CONVEX,
    COSTS,
    HORIZONTAL,
    HORIZONTAL_NOTES,
    MOMENTUM,
    WITH_PAPERS,
    horizontal_page,
)
from bench.horizontal.settings import HorizontalSettings
from securevfl.reports.tables import Row

MAIN = ("fedavg", "fedbcgd", "fedbcgd+", "scaffold", "feddc")
WHOLE = ("fedavg", "fedavgm", "fedadam", "top-k", "fedpaq")
MOMENTA = (
    *(f"fedbcgd+:momentum={each}" for each in (0, 0.2, 0.45, 0.6, 0.8)),
    *(f"fedbcgd:momentum={each}" for each in (0, 0.8)),
)
LENET5_MOMENTA = (
    *(f"fedbcgd:momentum={each}" for each in (0.45, 0.8)),
    *(f"fedbcgd+:momentum={each}" for each in (0, 0.8)),
)
CODINGS = "fedbcgd:qsgd", "fedbcgd+:qsgd"
FEW_RATES = {"learning_rate": (0.03, 0.1), "tuning_rounds": 60}
RATES = {"learning_rate": (0.03, 0.1, 0.3), "tuning_rounds": 60}


def of_cifar10(dirichlet: float, *methods: str, **more: object) -> dict[str, Any]:
    """Settings of a run on CIFAR-10 at one D."""
    return {"images": ("cifar10",), "dirichlet": (dirichlet,), "methods": methods, **more}


def of_mnist(dirichlet: float) -> dict[str, Any]:
    """Settings of a run on MNIST, which is learnt sooner, at one D."""
    return {
        "images": ("mnist",),
        "dirichlet": (dirichlet,),
        "methods": MAIN,
        "max_rounds": 60,
        **RATES,
    }


def of_logistic(dirichlet: float, rounds: int) -> dict[str, Any]:
    """Settings of a run on logistic regression, to a hundredth of the way from its optimum."""
    return {
        "images": ("mnist",),
        "dirichlet": (dirichlet,),
        "methods": (*MAIN, "fedbcgd+:printed"),
        "model": "logistic",
        "shared_layers": ("bias",),
        "learning_rate": (0.3, 1.0, 2.0),
        "max_rounds": rounds,
        "tuning_rounds": None,
        "target_accuracy": 0.99,
    }


def notes(rows: Sequence[Row]) -> list[str]:
    """The targets of the rows, and what the columns are."""
    targets = [
        f"{row['dataset']}, D = {row['dirichlet']:g}, to {100 * row['target_accuracy']:g} %; "
        f"medians of {row['repeats']}"
        for row in rows
    ]
    return [*dict.fromkeys(targets), *HORIZONTAL_NOTES]


EXPERIMENT = Experiment(
    name="horizontal",
    about=__doc__ or "",
    runs={
        "cifar10-0.6": Run(1100, of_cifar10(0.6, *MAIN, **FEW_RATES)),
        "whole-0.6": Run(900, of_cifar10(0.6, *WHOLE)),
        "printed-0.6": Run(500, of_cifar10(0.6, "fedbcgd+:printed", **FEW_RATES)),
        "lenet5-momentum": Run(1000, of_cifar10(0.6, *LENET5_MOMENTA, **FEW_RATES)),
        "cifar10-0.1": Run(1000, of_cifar10(0.1, *MAIN, **RATES)),
        "mnist-0.6": Run(350, of_mnist(0.6)),
        "mnist-0.1": Run(350, of_mnist(0.1)),
        "convex-0.6": Run(350, of_logistic(0.6, 1000)),
        "convex-0.1": Run(350, of_logistic(0.1, 1000)),
        "momentum": Run(200, {**of_logistic(0.6, 200), "methods": MOMENTA}),
        "blocks": Run(450, of_cifar10(0.6, "fedbcgd", blocks=(2, 10), **FEW_RATES)),
        # Of their methods' rates, 0.1 was chosen.
        "codings": Run(450, of_cifar10(0.6, *CODINGS, learning_rate=(0.1,))),
        "epochs": Run(1000, of_cifar10(0.6, *MAIN, epochs=5, max_rounds=50, learning_rate=(0.1,))),
        "layers": Run(150, of_cifar10(0.6, "fedbcgd", cut="layers")),
    },
    quick={
        "methods": ("fedavg", "fedbcgd"),
        "images": ("digits",),
        "clients": 20,
        "max_rounds": 40,
        "learning_rate": (0.1,),
        "repeats": 1,
    },
    settings=HorizontalSettings,
    measure=horizontal,
    columns=HORIZONTAL,
    notes=notes,
    tables={
        "horizontal": by_columns(*WITH_PAPERS),
        "horizontal-whole": lambda rows: by_columns(*WITH_PAPERS)(
            [row for row in rows if row["method"] in WHOLE]
        ),
        "horizontal-changes": by_columns(*CHANGES),
        "horizontal-costs": by_columns(*COSTS),
        "horizontal-convex": by_columns(*CONVEX),
        "horizontal-momentum": by_columns(*MOMENTUM),
    },
    html=horizontal_page,
)

if __name__ == "__main__":
    main(EXPERIMENT)
