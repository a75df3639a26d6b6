"""What a party of a job needs to keep, and what the label party goes by."""

import numpy as np

from securevfl.arrays import Labels
from securevfl.models.scores import auc_error, r2_error
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.course import LONGEST_WINDOW, SHORTEST_WINDOW
from securevfl.protocols.session.keeping import Hindsight, Keeper, snapshot_rounds
from securevfl.protocols.vertical.program import Training


def baseline_of(plan: Plan, labels: Labels) -> float:
    """The loss of the best prediction that is the same for all training rows."""
    constant = np.broadcast_to(plan.loss.constant(labels), (len(labels), plan.loss.outputs))
    return plan.loss.value(constant, labels)


def window_of(plan: Plan) -> int:
    """Rounds whose mean loss counts as one: all batches, or as many as noise needs."""
    if plan.full_batches and not plan.exchange.adds_noise:
        return 1
    return min(max(plan.schedule.batches, SHORTEST_WINDOW), LONGEST_WINDOW)


def keeper_of(training: Training, agreement: Agreement) -> Keeper:
    """A party's snapshots, and at the label party what it has of all."""
    party, plan, data = training.party, training.plan, training.workplace.data
    largest = plan.given * max(agreement.own_columns, *agreement.columns.values())
    hindsight = None
    if party.holds_labels:
        labels, held_out = data.train_labels, data.test_labels
        assert labels is not None and held_out is not None  # noqa: S101, PT018
        chance = r2_error(len(held_out)) if plan.facts.real_targets else auc_error(held_out)
        hindsight = Hindsight(baseline_of(plan, labels), window_of(plan), chance)
    every = range(1, plan.rounds + 1)
    return Keeper(
        party,
        training.model,
        # What is kept has its score, where there is one.
        snapshot_rounds([*filter(plan.timetable.due, every)] or every, largest),
        told=plan.learns.residuals != "noisy",
        hindsight=hindsight,
    )
