"""Rotation twins, measured: whether Theorem 1 holds for an exchange.

A rotation of X by U rotates all gradients by Uᵀ. Steps that only add, scale by lengths or project
on balls commute with that. The negative controls use steps that treat coordinates one by one, which
no job does, or a U that is not orthogonal.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.auditing.judging import DEVIATION, Finding
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Subject, with_section
from securevfl.auditing.twins import Twin, TwinSetting, compare_twins, stabilizer_rotation
from securevfl.crypto.schemes import SCHEMES
from securevfl.models.linear import Rule
from securevfl.protocols.session import gathering
from securevfl.shown import curve

IN_SHARES = "no number of a round is in clear; words_of_rounds tests the shares"
ROUNDING = 1e-11
# By how much twins in fixed point may deviate, beside features that moved by about one unit.
BEYOND_ROUNDING = 3
ROUNDS = 1000
ENCRYPTED_ROUNDS, SLOW_ROWS = 50, 32
CURVE_POINTS = 60
DERIVED_RATE = 0.1
TINY, DECAY, SECOND_DECAY = 1e-12, 0.9, 0.999


@add_attack
@partial(
    Attack,
    "rotation_twin",
    "all other parties together",
    "everything but X: both runs' theta0, seeds and messages",
    immune=lambda subject: IN_SHARES if subject.exchange.shares_parameters else "",
    place=10,
    cost=5.0,
    quick=False,
)
def rotation_twins(subject: Subject) -> Iterable[AttackCase]:
    """A feature party's twin, the label party's, and, in clear, the negative controls."""
    for role, party in (("feature", subject.feature_party), ("label", subject.dataset.label_party)):
        name = f"{role} party's data"
        yield AttackCase(partial(_pair, subject, TwinSetting(party)), name)
    if subject.exchange.adds_noise or not _exact(subject):
        return
    party = subject.feature_party
    rate = subject.job.job.learning_rate
    strength = 1e-2 * (DERIVED_RATE if rate == "auto" else rate)
    controls = {
        "Adam": TwinSetting(party, rule=adam),
        "L1, 1e-2": TwinSetting(party, rule=lambda: lasso(strength)),
        "U off by 1e-3": TwinSetting(party, rotation=nearly_orthogonal),
    }
    for name, setting in controls.items():
        yield AttackCase(partial(_pair, subject, setting), f"control: {name}", control=True)


def _pair(subject: Subject, setting: TwinSetting) -> Finding:
    rounds = ROUNDS if subject.in_clear else ENCRYPTED_ROUNDS
    job = subject.job.with_settings(rounds=rounds)
    if subject.exchange.adds_noise:  # both runs draw the same noise, which Theorem 1 is not about
        job = with_section(job, "privacy", noise_seed=subject.seed)
    size = subject.plan.batch_size
    if subject.is_slow and size != "full":
        job = job.with_settings(batch_size=min(size, SLOW_ROWS))
    generator = np.random.default_rng([subject.seed, 2])
    setting = replace(setting, keys=subject.keys)
    twin = compare_twins(job, subject.dataset, setting, generator)
    allowed = ROUNDING
    if not _exact(subject):
        # X and XU are rounded differently, by up to half a unit per entry.
        moved = replace(setting, rotation=partial(moved_by_units, 2.0 ** -_fraction_bits(subject)))
        allowed = compare_twins(job, subject.dataset, moved, generator).absolute_deviation
        allowed = max(BEYOND_ROUNDING * allowed, ROUNDING)
    return _finding(subject, twin, rounds, allowed)


def _finding(subject: Subject, twin: Twin, rounds: int, allowed: float) -> Finding:
    exact = _exact(subject)
    picked = np.unique(np.linspace(0, len(twin.steps) - 1, CURVE_POINTS).astype(int))
    return Finding(
        DEVIATION,
        twin.deviation if exact else twin.absolute_deviation,
        allowed=allowed,
        detail={
            "rounds": rounds,
            "relative_distance": twin.relative_distance,
            "orthogonality_error": twin.orthogonality_error,
            "free_dimensions": twin.free_dimensions,
            "group_dimension": twin.group_dimension,
            "set_up_differs": list(twin.set_up_differs),
            "deviation_is": "relative" if exact else "absolute",
            "curves": [
                curve(
                    "What tells twins apart",
                    "round",
                    "relative deviation",
                    (twin.steps[picked] + 1).tolist(),
                    {"deviation": twin.deviations[picked].tolist()},
                    log_y=True,
                )
            ],
        },
    )


def _exact(subject: Subject) -> bool:
    """Whether all numbers travel as floating-point numbers."""
    return subject.in_clear and subject.learns.predictions == "singly"


def _fraction_bits(subject: Subject) -> int:
    if subject.in_clear:
        return gathering.FRACTION_BITS
    exchange = subject.job.exchange
    return exchange.feature_fraction_bits or SCHEMES[exchange.scheme].fraction_bits[0][1]


def moved_by_units(unit: float, fixed: FloatArray, generator: np.random.Generator) -> FloatArray:
    """No rotation, but errors that move standardized features by about one unit each."""
    size = len(fixed)
    error: FloatArray = generator.standard_normal((size, size)) / np.sqrt(size)
    return np.eye(size) + unit * error


def nearly_orthogonal(fixed: FloatArray, generator: np.random.Generator) -> FloatArray:
    """A rotation of the right kind, with errors of about 1e-3 in its entries."""
    error = 1e-3 * generator.standard_normal((len(fixed), len(fixed)))
    return stabilizer_rotation(fixed, generator) + error


def adam(rate: float = 0.02) -> Rule:
    """Adam (Kingma and Ba 2015), with steps of about the size of the original ones."""
    first: FloatArray | float = 0.0
    second: FloatArray | float = 0.0
    steps = 0

    def rule(_: FloatArray, step: FloatArray) -> FloatArray:
        nonlocal first, second, steps
        steps += 1
        first = DECAY * first + (1 - DECAY) * step
        second = SECOND_DECAY * second + (1 - SECOND_DECAY) * step**2
        mean = first / (1 - DECAY**steps)
        spread = np.sqrt(second / (1 - SECOND_DECAY**steps))
        return rate * mean / (spread + TINY)

    return rule


def lasso(strength: float) -> Rule:
    """Adds a subgradient of λ‖θ‖₁ to the loss: the step s + ηλ·sign(θ), with strength ηλ."""
    return lambda weights, step: step + strength * np.sign(weights)
