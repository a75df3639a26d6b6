"""Labels from the parameters that training ends with, which every exchange leaves to their owner.

Where the loss is least, λθ_k = −X_kᵀd/N (the intercept's entry 0): the end of a job is the gradient
of its last round, P equations in all residuals, whatever hides the rounds. Another job on the same
people that differs in columns or rows ends in other equations in nearly the same residuals. As far
as training was from its end the equations are off, which `solve_labels` gauges by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.gradient_visits import Visit
from securevfl.attacks.label_estimate import LabelEstimate
from securevfl.attacks.labels_from_gradients import GUESSED, solve_labels
from securevfl.attacks.row_spaces import RowSpace
from securevfl.errors import ConfigError


@dataclass(frozen=True, eq=False)
class EndKnowledge:
    """Side knowledge: what a party holds when a job is over.

    Attributes:
        inputs: its X with the intercept's column, if any, scaled as in training, shape (N, P).
        parameters: its θ_k, shape (P, C).
        penalty: λ of every parameter, shape (P,).
        people: of each row the number among all people, shape (N,).
    """

    inputs: FloatArray
    parameters: FloatArray
    penalty: FloatArray
    people: IntArray


def labels_from_parameters(jobs: Sequence[EndKnowledge], own_model: FloatArray) -> LabelEstimate:
    """Read labels off the ends of some jobs.

    Args:
        jobs: one entry for each job, and for each of the parties that pool theirs.
        own_model: what the best model of all columns that the attacker used says of every person,
            probabilities of shape (people, 1) for class 1 or (people, C).

    Returns:
        An estimate for all people.

    Raises:
        ConfigError: no jobs, or shapes that do not fit.
    """
    if not jobs:
        raise ConfigError("parameters of no job, expected at least 1")
    visits, guesses = [], []
    for job in jobs:
        if job.parameters.shape != (job.inputs.shape[1], own_model.shape[1]):
            raise ConfigError(
                f"parameters of shape {job.parameters.shape}, expected "
                f"{(job.inputs.shape[1], own_model.shape[1])}"
            )
        space = RowSpace.of(job.inputs)
        product = -len(job.inputs) * job.penalty[:, None] * job.parameters
        predictions = job.inputs @ job.parameters
        visits.append(Visit(job.people, space, space.coordinates(product), predictions))
        guesses.append(np.asarray(own_model[job.people]))
    return solve_labels(visits, guesses, own_model, GUESSED)
