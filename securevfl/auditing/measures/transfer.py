"""What the parties of transfer learning read of each other, as rows of the audit.

Labels are judged against the best model of the attacker's own columns, X against what the same
known rows tell by the attacker's own columns, as elsewhere.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.anchors import AnchorKnowledge, spread_anchors
from securevfl.attacks.features_from_units import UnitsSeen, features_from_units
from securevfl.attacks.labels_from_components import labels_from_components, units_from_components
from securevfl.attacks.labels_from_unit_gradients import UnitVisit, labels_from_unit_gradients
from securevfl.auditing.judging import RELATIVE_ERROR, Finding
from securevfl.auditing.label_figures import label_finding
from securevfl.auditing.measuring import Case, attack_in_cases
from securevfl.auditing.own_model import best, features_alone, own_models
from securevfl.auditing.scoring import feature_error
from securevfl.auditing.seats import Recording, Seat
from securevfl.auditing.subject import Subject
from securevfl.auditing.views import components_of, gradients_of, units_of
from securevfl.errors import ConfigError
from securevfl.models.layers import DenseLayer
from securevfl.protocols.transfer.objective import Components, FeatureObjective
from securevfl.protocols.transfer.settings import settings_of

EPOCHS = 3
# The fit takes the cube of a batch's rows, and one more visit is a block of equations more.
MOST_ROWS, MOST_VISITS = 1024, 4


def _encrypted(subject: Subject) -> str:
    return "components travel encrypted" if subject.exchange.encrypts else ""


on_components = partial(attack_in_cases, of_components=True)


@on_components(
    "labels_from_components", "feature party", "the schedule of batches", immune=_encrypted
)
def component_labels(subject: Subject) -> Iterable[Case]:
    """V·Φ of the components in clear."""
    yield Case(lambda: _component_labels(subject))


def _component_labels(subject: Subject) -> Finding:
    recording = _epochs(subject, 1)
    seat = recording.seat(subject.feature_party)
    labels = recording.dataset.train_labels
    estimate = labels_from_components(components_of(seat.view), recording.batches)
    return label_finding(estimate, labels, own_models(seat.inputs, labels), _detail(recording))


@on_components(
    "labels_from_unit_gradients",
    "feature party",
    "its columns and weights, the schedule, the plan; the best model of its columns",
)
def unit_labels(subject: Subject) -> Iterable[Case]:
    """The gradient of its layer, made from components where these travel in clear."""
    size = subject.plan.most_batch_rows
    if size <= MOST_ROWS:
        yield Case(lambda: _unit_labels(subject), "this job's batches")
        return
    yield Case(partial(_too_large, size), "this job's batches")
    small = subject.with_rows(MOST_ROWS)
    yield Case(lambda: _unit_labels(small), f"{MOST_ROWS} rows", what_if=True)


def _too_large(size: int) -> Finding:
    raise ConfigError(f"batches of {size} rows: the fit takes no more than {MOST_ROWS}")


def _unit_labels(subject: Subject) -> Finding:
    recording = _epochs(subject, EPOCHS)
    seat = recording.seat(subject.feature_party)
    labels = recording.dataset.train_labels
    alone = own_models(seat.inputs, labels)
    estimate = labels_from_unit_gradients(
        _visits(recording, seat), settings_of(recording.plan).alignment, best(alone).probabilities
    )
    return label_finding(estimate, labels, alone, _detail(recording))


def _visits(recording: Recording, seat: Seat) -> list[UnitVisit]:
    """What a party saw of every batch, at its own weights then; the first few of each batch."""
    learned = gradients_of(seat.view)
    given = components_of(seat.view)
    gamma, counts = settings_of(recording.plan).alignment, dict[bytes, int]()
    visits = []
    steps = zip(recording.batches, recording.weights(seat.name), strict=True)
    for index, (rows, weights) in enumerate(steps):
        counts[rows.tobytes()] = counts.get(rows.tobytes(), 0) + 1
        if counts[rows.tobytes()] > MOST_VISITS:
            continue
        layer = DenseLayer(weights, activation=settings_of(recording.plan).activation)
        inputs = seat.inputs[rows]
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


@on_components(
    "features_from_units",
    "either party",
    "as many of the other's rows as their rank; the activation",
    immune=_encrypted,
)
def unit_features(subject: Subject) -> Iterable[Case]:
    """X from the units of the first batch, of either party by the other."""
    yield Case(lambda: _feature_partys(subject), "the feature party's")
    yield Case(lambda: _label_partys(subject), "the label party's")


def _feature_partys(subject: Subject) -> Finding:
    recording = subject.record(rounds=1)
    (units,) = units_of(recording.seat(subject.dataset.label_party).view)
    return _from_units(
        subject, recording, units, (subject.feature_party, subject.dataset.label_party)
    )


def _label_partys(subject: Subject) -> Finding:
    recording = subject.record(rounds=1)
    ((values, phi),) = components_of(recording.seat(subject.feature_party).view)
    units = units_from_components(values, phi, settings_of(recording.plan).alignment)
    return _from_units(
        subject, recording, units, (subject.dataset.label_party, subject.feature_party)
    )


def _from_units(
    subject: Subject, recording: Recording, units: FloatArray, whose_by: tuple[str, str]
) -> Finding:
    """The error of a party's columns of the first batch, by the other's seat."""
    rows = recording.batches[0]
    whose, by = (recording.seat(name).inputs[rows] for name in whose_by)
    features = whose[:, :-1]  # its constant column is known
    factor = UnitsSeen(units, settings_of(recording.plan).activation).factor()
    generator = np.random.default_rng([subject.seed, 5])
    known = spread_anchors(factor, factor.shape[1], generator)
    if len(known) >= len(rows):
        raise ConfigError(f"{len(rows)} rows of rank {factor.shape[1]}: none is left to be found")
    estimate = features_from_units(factor, AnchorKnowledge(known, features[known]))
    alone = features_alone(by, features, known)
    return Finding(
        RELATIVE_ERROR,
        feature_error(estimate, features, known),
        chance=1.0,
        model_alone=feature_error(alone, features, known),
        detail={"anchors": len(known), "rows": len(rows)},
    )


def _epochs(subject: Subject, epochs: int) -> Recording:
    """A run of so many rounds for each batch, no more than the job has."""
    rounds = epochs * subject.plan.schedule.batches
    return subject.record(rounds=min(rounds, subject.job.job.rounds))


def _detail(recording: Recording) -> dict[str, object]:
    return {
        "rounds": recording.result.rounds,
        "batch_size": recording.job.job.batch_size,
        "label_guard_ratio": recording.result.label_guard_ratio,
    }
