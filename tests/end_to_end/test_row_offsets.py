"""What the label party adds to predictions hides residuals whose predictions all are known."""

import numpy as np
import pytest

from securevfl.auditing.subject import local_part
from securevfl.auditing.views import gradients_of, residuals_of
from securevfl.privacy.streams import NoiseStream
from securevfl.protocols.plan import ROW_OFFSETS
from securevfl.protocols.vertical import local_part as local_part_module
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.training import plan_for
from tests.jobs import Settings, breast_cancer, fit, job_of

STEPS: Settings = {
    **{"rounds": 1, "batch_size": "full", "local_steps": 2, "learning_rate": 0.1, "eval_every": 0}
}
BOTH_HIDDEN = {"scheme": "bfv", "hide": "both"}


@pytest.mark.parametrize(
    ("exchange", "settings"),
    [
        ({"scheme": "plain"}, {}),
        ({"scheme": "plain"}, {"algorithm": "fedbcd-s"}),
        ({"scheme": "bfv", "round_trips": 2}, {}),
        ({"scheme": "bfv", "round_trips": 1}, {}),
        (BOTH_HIDDEN, {"loss": "taylor-logistic"}),
    ],
)
def test_the_first_gradient_is_that_of_predictions_with_offsets(
    exchange: Settings, settings: Settings
) -> None:
    result = fit(breast_cancer(), exchange, **STEPS, **settings, allow_label_leak=True)
    label = breast_cancer().label_party
    parts = {
        t.name: local_part(result.plan, breast_cancer(), t.name) for t in breast_cancer().parties
    }
    (feature,) = parts.keys() - {label}
    inputs, offsets = parts[feature].inputs, parts[label].row_offsets
    assert offsets is not None
    view = result.views[feature]
    in_clear = residuals_of(view)
    seen = inputs.T @ in_clear[0] / len(inputs) if in_clear else gradients_of(view)[0]
    total = parts[feature].model.predict(inputs)
    if result.plan.algorithm.alternating:  # the label party is the first
        total = total + parts[label].inputs @ result.outcomes[label].model.weights
    else:
        total = total + parts[label].model.predict(parts[label].inputs)
    gradients = [
        inputs.T @ result.plan.loss.residuals(each, breast_cancer().train_labels) / len(inputs)
        for each in (total + offsets, total)
    ]
    np.testing.assert_allclose(seen, gradients[0], atol=1e-4)
    assert np.abs(seen - gradients[1]).max() > 2e-3


def test_offsets_stay_for_the_whole_job_and_are_no_part_of_a_model() -> None:
    """Taken away after a round they would show that round's labels."""
    still = {"rounds": 3, "learning_rate": 1e-12, "start": "random"}
    result = fit(breast_cancer(), **{**STEPS, **still})
    label = breast_cancer().label_party
    (feature,) = result.views.keys() - {label}
    first, second, third = residuals_of(result.views[feature])
    np.testing.assert_allclose(first, second, atol=1e-9)
    np.testing.assert_allclose(first, third, atol=1e-9)
    # σ(e) − y, and hardly anything else.
    assert np.std(np.abs(first)) == pytest.approx(ROW_OFFSETS / 4, rel=0.2)
    part = local_part(result.plan, breast_cancer(), label)
    outcome = result.outcomes[label]
    assert outcome.model.weights.shape == part.model.weights.shape
    np.testing.assert_allclose(outcome.held_out, part.model.predict(part.held_out), atol=1e-9)


def test_offsets_are_drawn_by_the_generator_that_nobody_foretells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: list[bytes] = []

    def noted(key: bytes) -> NoiseStream:
        keys.append(key)
        return NoiseStream(key)

    monkeypatch.setattr(local_part_module, "NoiseStream", noted)
    plan = plan_for(job_of(**STEPS), breast_cancer())
    part = LocalPart(plan, breast_cancer().parties[0], np.random.default_rng(7))
    (key,) = keys
    shape = (len(breast_cancer().train_labels), 1)
    expected = ROW_OFFSETS * NoiseStream(key).gaussian(shape)
    np.testing.assert_array_equal(part.row_offsets, expected)
