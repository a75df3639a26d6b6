"""Which batches keep labels: measured for the data, model and sampling at hand.

Runs in clear stand in for encrypted ones, since gradients are the same up to rounding. A batch size
or a number of epochs is safe as far as this attack goes: it reads no more labels than the
attacker's own model and the margins.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import numpy as np

from securevfl.attacks.leverage import Exposure, exposure
from securevfl.attacks.row_spaces import LEVERAGE_ONE
from securevfl.auditing.curves import curve
from securevfl.auditing.judging import Finding
from securevfl.auditing.seats import Recording, table_of
from securevfl.auditing.subject import Subject
from securevfl.errors import ConfigError

SAMPLINGS = {"partition": "fixed batches", "shuffle": "reshuffled"}
ROWS = 4096
BATCH_SIZES, EPOCHS, MOST_EPOCHS = 7, 3, 5
RANK_FLAG = 0.5
ROUNDS = 20
# What a job with nothing set does, whatever this one says.
EXACT_STEPS: dict[str, object] = {
    "algorithm": "fedbcd-p",
    "rounds": 100,
    "local_steps": "exact",
    "learning_rate": "auto",
    "batch_size": "full",
    "acceleration": None,
    "l2": None,
    "schedule": None,
    "divide_by_sqrt_parties": False,
    "local_rule": "curvature",
}
Read = Callable[[Recording], Finding]


@dataclass(frozen=True)
class Advice:
    """What a person can act on.

    Attributes:
        exposure: of this job's batches over its epochs.
        zero_start: whether θ⁰ = 0, where one gradient of a small batch reads labels.
        safe_batch_size: by sampling, the smallest S of the curve from which on labels keep; None
            where none does.
        safe_epochs: by sampling, how many epochs of this job's S keep labels, of `MOST_EPOCHS`.
        exact_steps: what exact steps on full batches tell and what this job does, on the same rows;
            None where it takes them itself, or cannot.
        curves: AUC by batch size and by epochs, fixed batches beside reshuffled ones.
    """

    exposure: Exposure
    zero_start: bool
    safe_batch_size: dict[str, int | None]
    safe_epochs: dict[str, int]
    exact_steps: "ExactSteps | None"
    curves: list[dict[str, Any]]

    @property
    def flags(self) -> list[str]:
        """What should not stay as it is."""
        found = []
        if self.exposure.max_leverage > LEVERAGE_ONE:
            found.append(
                f"{self.exposure.exposed_rows} rows have leverage 1 in a batch: one gradient tells "
                "their residual, at any guard ratio"
            )
        if self.exposure.rank_share > RANK_FLAG:
            found.append(
                f"gradients span {self.exposure.rank_share:.2f} of the labels' space after "
                f"{self.exposure.epochs} epochs"
            )
        if self.zero_start:
            found.append("theta0 = 0: residuals of the first round are known but for the label")
        return found

    def row(self) -> dict[str, Any]:
        """As JSON has it, without the curves."""
        return {
            "exposure": asdict(self.exposure),
            "zero_start": self.zero_start,
            "safe_batch_size": self.safe_batch_size,
            "safe_epochs": self.safe_epochs,
            "exact_steps": self.exact_steps.row() if self.exact_steps else None,
            "flags": self.flags,
        }


@dataclass(frozen=True)
class ExactSteps:
    """Labels read from exact steps on full batches, beside those read from this job.

    Attributes:
        theirs: of exact steps, to their own end.
        this_job: of as many of its rounds as the audit attacks.
    """

    theirs: Finding
    this_job: Finding

    @property
    def recommended(self) -> bool:
        """Whether they keep labels, and tell less than this job."""
        return self.theirs.keeps and self.theirs.value < self.this_job.value

    def row(self) -> dict[str, Any]:
        """As JSON has it."""
        found = {"theirs": self.theirs, "this_job": self.this_job}
        figures = {
            name: {
                "auc": each.value,
                "own_model": each.model_alone,
                "rounds": each.detail["rounds"],
                "batch_size": each.detail["batch_size"],
            }
            for name, each in found.items()
        }
        return {**figures, "recommended": self.recommended}


def advise(subject: Subject, read: Read, epochs: int) -> Advice:
    """Measure the curves on some rows, and the exposure of this job on all.

    Args:
        subject: the job at hand.
        read: the attack and its score.
        epochs: of this job, for its exposure.
    """
    clear = subject.job.without_protection
    small = Subject(clear, subject.with_rows(ROWS).dataset, subject.seed)
    rows = len(small.dataset.train_labels)
    inputs = table_of(subject.dataset, subject.feature_party).train
    least = min(inputs.shape[1], rows)
    sizes = np.unique(np.geomspace(least, rows, BATCH_SIZES).astype(int)).tolist()
    size = subject.plan.batch_size
    at_hand = rows if size == "full" else min(size, rows)
    all_epochs = list(range(1, MOST_EPOCHS + 1))
    by_size = {
        name: [_at(small, read, sampling, each, EPOCHS) for each in sizes]
        for sampling, name in SAMPLINGS.items()
    }
    by_epoch = {
        name: [_at(small, read, sampling, at_hand, each) for each in all_epochs]
        for sampling, name in SAMPLINGS.items()
    }
    reference = next(iter(by_size.values()))[0]
    bars = {"own model": reference.model_alone or 0.0, "chance": reference.chance or 0.0}
    return Advice(
        exposure=exposure(inputs, subject.plan.schedule, epochs),
        zero_start=subject.job.job.start == "zero",
        safe_batch_size={name: _from_on(sizes, found) for name, found in by_size.items()},
        safe_epochs={name: _until(found) for name, found in by_epoch.items()},
        exact_steps=exact_steps(small, read, at_hand),
        curves=[
            _curve(f"Labels by batch size, {EPOCHS} epochs", "rows a batch", sizes, by_size, bars),
            _curve(f"Labels by epochs, S = {at_hand}", "epochs", all_epochs, by_epoch, bars),
        ],
    )


def exact_steps(subject: Subject, read: Read, size: int) -> ExactSteps | None:
    """Measure them beside the job; None where it takes them itself, or cannot.

    Args:
        subject: the job in clear.
        read: the attack and its score.
        size: S of the job.
    """
    if subject.plan.rule.exact and subject.plan.full_batches:
        return None
    try:
        theirs = read(subject.record(**EXACT_STEPS))
    except ConfigError:
        return None
    settings = subject.job.job
    batches = len(subject.dataset.train_labels) // size
    epochs = max(EPOCHS, min(settings.rounds, ROUNDS) // batches)
    return ExactSteps(theirs, _at(subject, read, settings.sampling, size, epochs))


def _at(subject: Subject, read: Read, sampling: str, size: int, epochs: int) -> Finding:
    rounds = epochs * (len(subject.dataset.train_labels) // size)
    return read(subject.record(rounds=rounds, batch_size=size, sampling=sampling))


def _from_on(sizes: list[int], found: list[Finding]) -> int | None:
    """The smallest size from which on all keep labels."""
    safe = None
    for size, finding in reversed(list(zip(sizes, found, strict=True))):
        if not finding.keeps:
            break
        safe = size
    return safe


def _until(found: list[Finding]) -> int:
    """How many epochs keep labels before one does not."""
    return next((index for index, each in enumerate(found) if not each.keeps), len(found))


def _curve(
    title: str,
    x_label: str,
    x: list[int],
    found: dict[str, list[Finding]],
    bars: dict[str, float],
) -> dict[str, Any]:
    series = {name: [each.value for each in findings] for name, findings in found.items()}
    log_x = ceil(x[-1] / x[0]) > 2 * MOST_EPOCHS
    return curve(title, x_label, "AUC", x, series, lines=bars, log_x=log_x)
