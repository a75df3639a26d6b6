"""Labels from the aggregated gradients of several jobs over the same people.

A job's gradients are as many equations in the labels as its batches have ranks together. Another
job that differs in anything (columns, rows, batches) brings other equations in the same labels, and
nothing in either says that they belong together but the people. So what each job may show by itself
adds up: all of it is solved at once.

Parties that pool what they saw are so many more entries of the same jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.gradient_visits import TrainingKnowledge, Visit
from securevfl.attacks.label_estimate import LabelEstimate
from securevfl.attacks.labels_from_gradients import GUESSED, solve_labels, told_by_gradients
from securevfl.attacks.row_spaces import RowSpace
from securevfl.errors import ConfigError


@dataclass(frozen=True, eq=False)
class JobKnowledge:
    """Side knowledge: one job at one party, and who its rows are.

    Attributes:
        training: what the party holds of that job; its own model is of the job's rows.
        people: of each of its rows the number among all N people, shape (rows of the job,).
    """

    training: TrainingKnowledge
    people: IntArray


def labels_across_jobs(
    gradients: Sequence[Sequence[FloatArray]], jobs: Sequence[JobKnowledge], own_model: FloatArray
) -> LabelEstimate:
    """Read labels off all gradients of all jobs.

    Args:
        gradients: of each job Xᵀd/S as the attacker learned it, one a round, shapes (P, C).
        jobs: what else the attacker has of each.
        own_model: what the best model of all columns that the attacker used says of every person,
            probabilities of shape (N, 1) for class 1 or (N, C).

    Returns:
        An estimate for all N people.

    Raises:
        ConfigError: no jobs, or gradients that do not fit the batches or the features.
    """
    if not jobs or len(gradients) != len(jobs):
        raise ConfigError(f"gradients of {len(gradients)} jobs, expected {len(jobs)}, at least 1")
    visits: list[Visit] = []
    guesses: list[FloatArray] = []
    signs: list[tuple[IntArray, FloatArray]] = []
    spaces: dict[tuple[bytes, bytes], RowSpace] = {}
    for seen, job in zip(gradients, jobs, strict=True):
        told = told_by_gradients(seen, job.training)
        for visit in told.visits:
            people = job.people[visit.rows]
            # The same columns of the same people are the same equations in whichever job.
            key = (people.tobytes(), visit.space.basis.tobytes())
            visits.append(replace(visit, rows=people, space=spaces.setdefault(key, visit.space)))
        guesses += told.guesses
        signs += [(job.people[rows], labels) for rows, labels in told.signs]
    return solve_labels(visits, guesses, own_model, GUESSED, signs)
