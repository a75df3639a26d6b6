"""Theorem 1 tried: twin runs where it holds, and where it must not.

A row is one pair of runs of the whole protocol. `expected` says what theory does: `holds` rows
deviate by rounding only, `breaks` rows are negative controls, which a wrong rotation, a wrong
comparison or a check of the first rounds alone would not tell apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field
from scipy.stats import ortho_group

from bench.experiment import DataSettings, Experiment, Run, main
from bench.tables import or_dash
from securevfl.arrays import FloatArray
from securevfl.auditing.measures.rotation import DECAY, TINY, adam, lasso, nearly_orthogonal
from securevfl.auditing.twins import Twin, TwinSetting, compare_twins
from securevfl.benchmarks.progress import Report
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.linear import Rule
from securevfl.models.local_model import require_torch
from securevfl.reports.tables import Column, Row

if TYPE_CHECKING:
    from torch import nn

HIDDEN = 4
LEARNING_RATE = 0.1
CLIP = 1e-3


@dataclass(frozen=True)
class Case:
    """One pair of runs.

    Attributes:
        name: what is special about it.
        holds: whether Theorem 1 covers it.
        settings: of the job beside the common ones.
        twin: of the comparison; its party is filled in.
        label_party: turn the label party's data in place of a feature party's.
    """

    name: str
    holds: bool
    settings: dict[str, Any] = field(default_factory=dict)
    twin: dict[str, Any] = field(default_factory=dict)
    label_party: bool = False


def identity_network(features: int, outputs: int) -> "nn.Module":
    """One linear layer: the paper's reduction of a network whose transformation is the identity."""
    import torch  # noqa: PLC0415  # may not be installed
    from torch import nn  # noqa: PLC0415

    return nn.Linear(features, outputs, bias=False, dtype=torch.float64)


def small_network(features: int, outputs: int) -> "nn.Module":
    """A network with fewer hidden units than features, which leaves directions to turn in."""
    from torch import nn  # noqa: PLC0415  # may not be installed

    return nn.Sequential(
        nn.Linear(features, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs)
    ).double()


def any_orthogonal(fixed: FloatArray, generator: np.random.Generator) -> FloatArray:
    """A Haar draw that does not care what it should fix."""
    rotation: FloatArray = ortho_group.rvs(len(fixed), random_state=generator)
    return rotation


def standardize_again(features: FloatArray) -> FloatArray:
    """What standardizing does to a twin."""
    spread = features.std(axis=0)
    scaled: FloatArray = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled


def momentum(*, nesterov: bool = False) -> Rule:
    """Heavy ball: the velocity v ← 0.9v + s, and a step of v; of 0.9v + s in Nesterov's form."""
    velocity: FloatArray | float = 0.0

    def rule(_: FloatArray, step: FloatArray) -> FloatArray:
        nonlocal velocity
        velocity = DECAY * velocity + step
        return DECAY * velocity + step if nesterov else velocity

    return rule


def adagrad(rate: float = 0.1, *, scalar: bool = False) -> Rule:
    """Adagrad by coordinate, s/√Σs², or AdaGrad-norm, one scalar for all."""
    total: FloatArray | float = 0.0

    def rule(_: FloatArray, step: FloatArray) -> FloatArray:
        nonlocal total
        total = total + (np.sum(step**2) if scalar else step**2)
        return rate * step / np.sqrt(total + TINY)

    return rule


def sign_step(weights: FloatArray, step: FloatArray) -> FloatArray:
    """The signSGD step."""
    return 0.01 * np.sign(step)


def clip_coordinates(weights: FloatArray, step: FloatArray) -> FloatArray:
    """Each coordinate of the step clipped to ±CLIP."""
    return np.clip(step, -CLIP, CLIP)


def clip_length(weights: FloatArray, step: FloatArray) -> FloatArray:
    """The whole step clipped to length CLIP."""
    return step * min(1.0, CLIP / max(float(np.linalg.norm(step)), TINY))


def project_on_ball(weights: FloatArray, step: FloatArray) -> FloatArray:
    """θ projected on the ball of radius 1."""
    moved = weights - step
    return weights - moved * min(1.0, 1.0 / max(float(np.linalg.norm(moved)), TINY))


def cases() -> list[Case]:
    """What Theorem 1 covers, then its negative controls."""
    return [
        Case("FedBCD-p, Q = 5", True),
        Case("FedSGD", True, {"algorithm": "fedsgd"}),
        Case("Q = 50", True, {"local_steps": 50, "learning_rate": 0.02}),
        Case("FedBCD-s", True, {"algorithm": "fedbcd-s"}),
        Case(
            "frozen rule, L2, proximal", True, {"local_rule": "frozen", "l2": 0.01, "proximal": 0.1}
        ),
        Case("reshuffled batches", True, {"sampling": "shuffle"}),
        Case("theta0 = 0", True, {"start": "zero"}),
        Case("the label party's data", True, label_party=True),
        Case("momentum", True, twin={"rule": momentum}),
        Case("Nesterov", True, twin={"rule": lambda: momentum(nesterov=True)}),
        Case("length clipping", True, twin={"rule": lambda: clip_length}),
        Case("AdaGrad-norm", True, twin={"rule": lambda: adagrad(scalar=True)}),
        Case("ball projection", True, twin={"rule": lambda: project_on_ball}),
        Case("network, identity", True, {"model": "custom"}, {"modules": identity_network}),
        Case(f"network, {HIDDEN} hidden", True, {"model": "custom"}, {"modules": small_network}),
        Case("Adam", False, twin={"rule": adam}),
        Case("Adagrad", False, twin={"rule": adagrad}),
        Case("signSGD", False, twin={"rule": lambda: sign_step}),
        Case("coordinate clipping", False, twin={"rule": lambda: clip_coordinates}),
        Case("L1, 1e-2", False, twin={"rule": lambda: lasso(1e-2 * LEARNING_RATE)}),
        Case("L1, 1e-3", False, twin={"rule": lambda: lasso(1e-3 * LEARNING_RATE)}),
        Case("standardized again", False, twin={"change": standardize_again}),
        Case("U moves theta0", False, twin={"rotation": any_orthogonal}),
        Case("U off by 1e-3", False, twin={"rotation": nearly_orthogonal}),
    ]


class Theorem1Settings(DataSettings):
    """Every case, once."""

    rounds: int = Field(1000, ge=1)
    batch_size: int = Field(64, ge=1)


def run_case(case: Case, dataset: VerticalDataset, settings: Theorem1Settings) -> Twin:
    """One pair of runs over the exchange in clear."""
    names = [table.name for table in dataset.parties if table.name != dataset.label_party]
    party = dataset.label_party if case.label_party else names[0]
    job = Job.of(
        job={
            "rounds": settings.rounds,
            "batch_size": settings.batch_size,
            "learning_rate": LEARNING_RATE,
            "local_steps": 5,
            "eval_every": 0,
            "seed": settings.seed,
            **case.settings,
        }
    )
    twin = dict(case.twin)
    if "modules" in twin:
        twin["modules"] = dict.fromkeys((table.name for table in dataset.parties), twin["modules"])
    generator = np.random.default_rng([settings.seed, 1])
    return compare_twins(job, dataset, TwinSetting(party, **twin), generator)


FIGURES = (
    *("deviation", "absolute_deviation", "relative_distance", "orthogonality_error"),
    *("free_dimensions", "group_dimension", "set_up_differs", "wall_s"),
)


def theorem1(settings: Theorem1Settings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for each case, with figures as `Twin` has them.

    A network's case without torch has no figures, and `needs` says what to install.
    """
    todo, dataset = cases(), settings.load()
    for done, case in enumerate(todo):
        report(case.name, done, len(todo))
        row = {
            "dataset": dataset.name,
            "case": case.name,
            "expected": "holds" if case.holds else "breaks",
            "rounds": settings.rounds,
        }
        try:
            if "modules" in case.twin:
                require_torch()
        except ConfigError as error:
            yield {**row, **dict.fromkeys(FIGURES), "needs": str(error)}
            continue
        twin = run_case(case, dataset, settings)
        yield {**row, **{name: getattr(twin, name) for name in FIGURES}}


COLUMNS: tuple[Column[Row], ...] = (
    ("case", lambda row: row["case"]),
    ("expected", lambda row: row["expected"]),
    ("deviation", lambda row: or_dash(row["deviation"], "{:.1e}".format)),
    ("distance", lambda row: or_dash(row["relative_distance"], "{:.2f}".format)),
    ("UtU - I", lambda row: or_dash(row["orthogonality_error"], "{:.0e}".format)),
    ("dim O(n)", lambda row: or_dash(row["group_dimension"], str)),
)

EXPERIMENT = Experiment(
    name="theorem1",
    about="Theorem 1 of FedBCD: do X and XU give all others the same messages?",
    runs={"theorem1": Run(70)},
    quick={"rounds": 20},
    settings=Theorem1Settings,
    measure=theorem1,
    columns=COLUMNS,
    notes=lambda rows: [f"{row['case']}: {row['needs']}" for row in rows if "needs" in row],
)

if __name__ == "__main__":
    main(EXPERIMENT)
