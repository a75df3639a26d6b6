"""Two jobs that differ by one person's label, measured: does a feature party find the person?

The label guard compares labels with those of earlier jobs, so a real second job is refused. The
what-ifs run both jobs in clear without a guard, as gradients and ends are the same.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from securevfl.attacks.changed_labels import ChangedLabel, from_ends, from_first_gradients
from securevfl.auditing.judging import RECOVERED, Finding
from securevfl.auditing.measures.labels import gradients_hidden, gradients_seen
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Recording, Subject
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import ConfigError, FeatureLeakRefused, LabelLeakRefused

ROWS, PEOPLE = 4096, 5

Read = Callable[[Recording, Recording, str], ChangedLabel]
Run = Callable[[VerticalDataset], Recording]


@add_attack
@partial(
    Attack,
    "changed_labels",
    "feature party",
    "its columns, theta0, the plans of two jobs, and that one label changed between them",
    place=135,
    cost=3.0,
    quick=False,
)
def changed_labels(subject: Subject) -> Iterable[AttackCase]:
    """The first gradients and the ends of both jobs."""
    as_classes(subject.dataset.train_labels)
    if subject.plan.networks or subject.plan.loss.outputs > 1 or not subject.plan.full_batches:
        raise ConfigError("changed_labels supports two classes, linear models and full batches")
    small = subject.with_rows(ROWS)
    for name, read in _ways(subject):
        yield AttackCase(partial(_measured, small, read, guarded=True), name)
        unguarded = partial(_measured, small, read, guarded=False)
        yield AttackCase(unguarded, f"{name}, no guard", what_if=True)


def _ways(subject: Subject) -> Iterator[tuple[str, Read]]:
    if not gradients_hidden(subject):
        yield "first gradients", _from_first_gradients
    yield "ends", _from_ends


def _from_first_gradients(before: Recording, after: Recording, party: str) -> ChangedLabel:
    first, second = (gradients_seen(each, party)[0] for each in (before, after))
    return from_first_gradients(before.adversary(party).inputs, first, second)


def _from_ends(before: Recording, after: Recording, party: str) -> ChangedLabel:
    first, second = (each.result.outcomes[party].model.weights for each in (before, after))
    return from_ends(before.adversary(party).inputs, first, second, before.plan.l2)


def _measured(subject: Subject, read: Read, *, guarded: bool) -> Finding:
    with subject.jobs(guarded=guarded) as run:
        return _finding(subject, read, run)


def _finding(subject: Subject, read: Read, run: Run) -> Finding:
    """The share of people who are found, of those whose label changed in a second job."""
    dataset, party = subject.dataset, subject.feature_party
    rows, tried, found = len(dataset.train_labels), 0, 0
    generator = np.random.default_rng([subject.seed, 9])
    changed = generator.choice(rows, PEOPLE, replace=False).tolist()
    before, refused = run(dataset), ""
    try:
        for row in changed:
            after = run(_with_changed(dataset, row))
            guess = read(before, after, party)
            rose = guess.rose in (None, dataset.train_labels[row] == 0)
            found += guess.row == row and rose
            tried += 1
    except LabelLeakRefused as error:
        refused, tried = str(error), PEOPLE
    except FeatureLeakRefused as error:  # it does not protect labels: the second jobs before count
        if not tried:
            raise
        refused = str(error)
    detail = {"people": tried, "refused": refused}
    return Finding(RECOVERED, found / tried, chance=1 / rows, detail=detail)


def _with_changed(dataset: VerticalDataset, row: int) -> VerticalDataset:
    labels = np.array(dataset.train_labels)
    labels[row] = 1 - labels[row]
    return replace(dataset, train_labels=labels)
