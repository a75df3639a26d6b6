"""Attacks between the parties of transfer learning, measured.

The bar for labels is the best model of the attacker's own columns, the bar for X a regression on
the attacker's own columns, fitted to the same known rows.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np

from securevfl.attacks.factored_features import factor_of_units, features_from_units, spread_anchors
from securevfl.attacks.labels_from_unit_gradients import UnitVisit, labels_from_unit_gradients
from securevfl.attacks.labels_in_clear import labels_from_components, units_from_components
from securevfl.auditing.figures import (
    best,
    feature_error,
    features_alone,
    label_finding,
    own_models,
)
from securevfl.auditing.judging import RELATIVE_ERROR, Finding, NotRun
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Recording, Subject
from securevfl.auditing.views import clear_arrays, components_of, gradients_of
from securevfl.errors import ConfigError
from securevfl.models.layers import DenseLayer
from securevfl.protocols.transfer.objective import Components, FeatureObjective, settings_of

EPOCHS = 3
MOST_ROWS, MOST_VISITS = 1024, 4  # of a batch: the fit takes time cubic in its rows


def _encrypted(subject: Subject) -> str:
    return "components travel encrypted" if subject.exchange.encrypts else ""


@add_attack
@partial(
    Attack,
    "labels_from_components",
    "feature party",
    "the schedule of batches",
    immune=_encrypted,
    of_components=True,
    place=90,
)
def component_labels(subject: Subject) -> Finding:
    """Read labels off V·Φ of components in clear."""
    recording, party = _epochs(subject, 1), subject.feature_party
    estimate = labels_from_components(components_of(recording.view(party)), recording.batches)
    alone = own_models(recording.adversary(party).inputs, recording.labels)
    return label_finding(estimate, recording.labels, alone, recording.described)


@add_attack
@partial(
    Attack,
    "labels_from_unit_gradients",
    "feature party",
    "its columns and weights, the schedule, the plan; the best model of its columns",
    of_components=True,
    place=100,
)
def unit_labels(subject: Subject) -> Iterable[AttackCase]:
    """Read labels off its layer's gradients, computed from components if these are in clear."""
    size = subject.plan.most_batch_rows
    if size <= MOST_ROWS:
        yield AttackCase(partial(_unit_labels, subject), "this job's batches")
        return
    reason = NotRun(f"batches of {size} rows: the fit supports at most {MOST_ROWS}")
    yield AttackCase(lambda: reason, "this job's batches")
    small = subject.with_rows(MOST_ROWS)
    yield AttackCase(partial(_unit_labels, small), f"{MOST_ROWS} rows", what_if=True)


def _unit_labels(subject: Subject) -> Finding:
    recording, party = _epochs(subject, EPOCHS), subject.feature_party
    alone = own_models(recording.adversary(party).inputs, recording.labels)
    estimate = labels_from_unit_gradients(
        _visits(recording, party), settings_of(recording.plan).alignment, best(alone).probabilities
    )
    return label_finding(estimate, recording.labels, alone, recording.described)


def _visits(recording: Recording, party: str) -> list[UnitVisit]:
    """The first few visits of each batch, with the party's own weights at that time."""
    adversary, view = recording.adversary(party), recording.view(party)
    learned, given = gradients_of(view), components_of(view)
    gamma, counts = settings_of(recording.plan).alignment, dict[bytes, int]()
    visits = []
    steps = zip(recording.batches, recording.weights(party), strict=True)
    for index, (rows, weights) in enumerate(steps):
        counts[rows.tobytes()] = counts.get(rows.tobytes(), 0) + 1
        if counts[rows.tobytes()] > MOST_VISITS:
            continue
        layer = DenseLayer(weights, activation=settings_of(recording.plan).activation)
        inputs = adversary.inputs[rows]
        units, slopes = layer.with_slopes(inputs)
        if learned:
            gradient = learned[index]
        else:
            values, phi = given[index]
            gradient = FeatureObjective(layer, inputs, gamma).gradient(
                Components(values, phi[None])
            )
        visits.append(UnitVisit(rows, inputs, units, slopes, gradient))
    return visits


@add_attack
@partial(
    Attack,
    "features_from_units",
    "either party",
    "as many of the other's rows as their rank; the activation",
    immune=_encrypted,
    of_components=True,
    place=110,
)
def unit_features(subject: Subject) -> Iterable[AttackCase]:
    """Each party's X from its units of the first batch, by the other party."""
    feature, label = subject.feature_party, subject.dataset.label_party
    yield AttackCase(partial(_from_units, subject, feature, label), "the feature party's")
    yield AttackCase(partial(_from_units, subject, label, feature), "the label party's")


def _from_units(subject: Subject, target: str, by: str) -> Finding:
    """The error of the estimate of one party's columns of the first batch by the other party."""
    recording = subject.record(rounds=1)
    settings = settings_of(recording.plan)
    if target == subject.feature_party:
        ((_, (units, *_)),) = clear_arrays(recording.view(by), "units")
    else:
        ((values, phi),) = components_of(recording.view(by))
        units = units_from_components(values, phi, settings.alignment)
    rows = recording.batches[0]
    own = recording.adversary(by).inputs[rows]
    features = recording.adversary(target).inputs[rows][:, :-1]  # its constant column is known
    factor = factor_of_units(units, settings.activation)
    generator = np.random.default_rng([subject.seed, 5])
    known = spread_anchors(factor, factor.shape[1], generator)
    if len(known) >= len(rows):
        raise ConfigError(
            f"{len(rows)} rows of rank {factor.shape[1]}: too few, as many as the rank are known"
        )
    estimate = features_from_units(factor, known, features[known])
    alone = features_alone(own, features, known)
    return Finding(
        RELATIVE_ERROR,
        feature_error(estimate, features, known),
        chance=1.0,
        model_alone=feature_error(alone, features, known),
        detail={"anchors": len(known), "rows": len(rows)},
    )


def _epochs(subject: Subject, epochs: int) -> Recording:
    rounds = epochs * subject.plan.schedule.batches
    return subject.record(rounds=min(rounds, subject.job.job.rounds))
