"""What the label party reads of features from representations, where it has a head over them.

On known rows X is regressed on u_k and the label party's own columns; the best guess without a
view is the same on its own columns alone.
"""

import numpy as np

from securevfl.attacks.held_out import HeldOutKnowledge, features_beside
from securevfl.auditing.judging import RELATIVE_ERROR, Finding
from securevfl.auditing.scoring import feature_error
from securevfl.auditing.seats import table_of
from securevfl.auditing.subject import Subject
from securevfl.auditing.views import predictions_of

MOST_ROUNDS = 200
# Known rows for each number that X is regressed on, or half of all.
KNOWN = 2
DRAWS = 5


def from_representations(subject: Subject) -> Finding:
    """X of the other rows, from the u_k that the view has last of each."""
    recording = subject.record(rounds=min(subject.job.job.rounds, MOST_ROUNDS))
    dataset, party = recording.dataset, subject.feature_party
    seat = recording.seat(dataset.label_party)
    seen = predictions_of(seat.view, party)
    given = np.zeros((len(dataset.train_labels), seen[0].shape[1]))
    visited = np.zeros(len(given), dtype=bool)
    # In turns a round's first exchange is the one that all take part in.
    for rows, values in zip(
        recording.batches, seen[:: len(seen) // len(recording.batches)], strict=True
    ):
        given[rows], visited[rows] = values, True
    features = table_of(dataset, party).train[visited]
    given, own = given[visited], seat.inputs[visited]
    rank = int(np.linalg.matrix_rank(features))
    count = min(KNOWN * (given.shape[1] + own.shape[1]), len(features) // 2)
    generator = np.random.default_rng([subject.seed, 7])
    errors, alone = [], []
    for _ in range(DRAWS):
        known = generator.permutation(len(features))[:count]
        knowledge = HeldOutKnowledge(known, features[known], own, rank)
        found = features_beside(np.hstack([given, own]), knowledge)
        errors.append(feature_error(found, features, known))
        alone.append(feature_error(features_beside(own, knowledge), features, known))
    return Finding(
        RELATIVE_ERROR,
        float(np.median(errors)),
        chance=1.0,
        model_alone=float(np.median(alone)),
        detail={
            "rounds": recording.result.rounds,
            "numbers_a_row": given.shape[1],
            "rank_of_features": rank,
            "known_rows": count,
            "rows": len(features),
        },
    )
