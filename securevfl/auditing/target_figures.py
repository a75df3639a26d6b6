"""What an attack on real targets is judged by: its correlation with them, against own models'.

The bars are those of attacks on labels (`own_model`), for numbers: a ridge regression of the
attacker's own columns on all true targets, in sample, and boosted trees out of sample.
"""

from collections.abc import Mapping

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_predict

from securevfl.arrays import FloatArray, Labels
from securevfl.auditing.judging import CORRELATION, Finding
from securevfl.auditing.own_model import BOOSTED, FOLDS, MOST_FITTED, PENALTIES


def own_estimate(inputs: FloatArray, targets: Labels) -> FloatArray:
    """What the ridge regression of own columns says of all rows, shape (N, 1)."""
    model = RidgeCV(alphas=PENALTIES).fit(inputs, targets)
    return np.asarray(model.predict(inputs)).reshape(-1, 1)


def target_finding(
    estimate: FloatArray, inputs: FloatArray, targets: Labels, detail: Mapping[str, object]
) -> Finding:
    """The correlation of an estimate, shape (N,), with the truth.

    Args:
        estimate: what the attack says.
        inputs: the attacker's own columns, shape (N, P).
        targets: the truth, shape (N,).
        detail: what more the row is to say.
    """
    alone = [own_estimate(inputs, targets)[:, 0]]
    if len(targets) <= MOST_FITTED:
        trees = HistGradientBoostingRegressor(**BOOSTED)
        alone.append(cross_val_predict(trees, inputs, targets, cv=FOLDS))
    bar = max(_correlation(each, targets) for each in alone)
    found = _correlation(estimate, targets)
    return Finding(CORRELATION, found, chance=0.0, model_alone=bar, detail=dict(detail))


def _correlation(estimate: FloatArray, targets: Labels) -> float:
    if np.ptp(estimate) == 0:
        return 0.0
    return float(np.corrcoef(estimate, targets)[0, 1])
