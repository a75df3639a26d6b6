"""What an attack on labels is judged by: four figures, each against the attacker's best own model.

AUC, the share of the rarest class found at 1 % false positives, the precision of the top 1 %, and
accuracy, which alone sees nothing where one class is rare. The bars are guessing, and for each
figure the better of the attacker's own models on the same rows (`own_model`): training hands every
party about that much anyway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from securevfl.arrays import Labels
from securevfl.attacks.label_estimate import LabelEstimate
from securevfl.auditing.judging import ACCURACY, AUC, TOP_PRECISION, TRUE_POSITIVES, Finding
from securevfl.auditing.own_model import OwnModel
from securevfl.auditing.scoring import FALSE_POSITIVES, score

AUC_OF_GUESSING = 0.5


def label_finding(
    estimate: LabelEstimate,
    labels: Labels,
    alone: Sequence[OwnModel],
    detail: Mapping[str, object],
) -> Finding:
    """The figures of an estimate; AUC first.

    Args:
        estimate: what the attack says.
        labels: all true ones, shape (N,).
        alone: the attacker's own models, of the same N rows.
        detail: what more the row is to say.
    """
    found = score(estimate, labels)
    own = [model.score_on(estimate.rows, labels) for model in alone]
    recalled = max(each.true_positives for each in own)
    figures = (
        Finding(AUC, found.auc, AUC_OF_GUESSING, max(each.auc for each in own)),
        Finding(
            TRUE_POSITIVES,
            found.true_positives,
            FALSE_POSITIVES,
            recalled,
            error=found.true_positives_error(max(recalled, FALSE_POSITIVES)),
        ),
        Finding(
            TOP_PRECISION,
            found.top_precision,
            found.minority,
            max(each.top_precision for each in own),
        ),
        Finding(ACCURACY, found.accuracy, found.majority, max(each.accuracy for each in own)),
    )
    told: dict[str, Any] = {
        each.metric.name: {
            "value": each.value,
            "chance": each.chance,
            "model_alone": each.model_alone,
            "margin": each.margin,
        }
        for each in figures
    }
    return replace(figures[0], beside=figures[1:], detail={**told, "rows": found.rows, **detail})
