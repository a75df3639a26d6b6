"""Attack of the label party on a feature party's rows across two jobs on them, measured.

Each job shows fewer columns of predictions than the rank of the columns, and both together show as
many. So about as many known rows give all others.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from securevfl.attacks.factored_features import spread_anchors
from securevfl.auditing.figures import feature_error, features_alone
from securevfl.auditing.judging import RELATIVE_ERROR, Finding
from securevfl.auditing.measures.features import unseen
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Subject, table_of
from securevfl.auditing.views import predictions_of
from securevfl.errors import ConfigError, FeatureLeakRefused

JOBS = 2
# Singular values of predictions below this say as little as rounding.
NEGLIGIBLE = 1e-9


@add_attack
@partial(
    Attack,
    "features_across_jobs",
    "label party",
    "twice as many rows as rank, and the predictions of two jobs on the same rows",
    immune=unseen,
    place=55,
    quick=False,
)
def features_of_jobs(subject: Subject) -> Iterable[AttackCase]:
    """The other rows' columns, from jobs that the feature guard permits and from all."""
    yield AttackCase(partial(_together, subject, guarded=True), "as the guard permits")
    yield AttackCase(partial(_together, subject, guarded=False), "without the guard", control=True)


def _together(subject: Subject, *, guarded: bool) -> Finding:
    dataset, label = subject.dataset, subject.dataset.label_party
    party = subject.feature_party
    if subject.plan.networks or subject.plan.representation is not None:
        raise ConfigError("predictions of networks are in no column space")
    truth = table_of(dataset, party).train
    rank = int(np.linalg.matrix_rank(truth - truth.mean(axis=0)))
    if rank < JOBS:
        raise ConfigError(f"rank {rank}: one round shows all")
    settings = {"rounds": -(-rank // JOBS), "batch_size": "full", "eval_every": "never"}
    settings |= {"allow_label_leak": True, "allow_feature_leak": not guarded, "tolerance": 0.0}
    shown, refused = [], ""
    with TemporaryDirectory() as folder:
        for number in range(JOBS):
            seeded = {**settings, "seed": subject.seed + number}
            try:
                recording = subject.record_guarded(Path(folder), dataset, **seeded)
            except FeatureLeakRefused as error:
                refused = str(error)
                break
            shown += predictions_of(recording.view(label), party)
    columns = np.hstack([*shown, np.ones((len(truth), 1))])
    # Unlucky draws leave directions out: twice as many as needed, those first that span most.
    known = spread_anchors(columns, 2 * (rank + 1), np.random.default_rng([subject.seed, 8]))
    found = np.linalg.lstsq(columns[known], truth[known], rcond=NEGLIGIBLE)[0]
    alone = features_alone(table_of(dataset, label).train, truth, known)
    detail = {"jobs": JOBS - bool(refused), "columns_shown": columns.shape[1] - 1, "rank": rank}
    return Finding(
        RELATIVE_ERROR,
        min(feature_error(columns @ found, truth, known), 1.0),
        chance=1.0,
        model_alone=min(feature_error(alone, truth, known), 1.0),
        detail={**detail, "known_rows": len(known), "refused": refused},
    )
