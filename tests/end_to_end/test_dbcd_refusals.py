"""What DBCD refuses: jobs that it does not have, and messages that do not fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securevfl.data.sources import load
from securevfl.errors import ConfigError, UnexpectedMessage
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import Predictions
from securevfl.protocols.vertical.dbcd import StepTaken
from securevfl.protocols.vertical.dbcd_block import Penalties
from securevfl.training import Environment
from securevfl.wire.codec import decode, encode
from tests.end_to_end.l1 import run
from tests.jobs import breast_cancer

L1 = 0.01


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"exchange": {"scheme": "bfv"}}, "residuals and curvature of all rows in clear"),
        ({"exchange": {"scheme": "masked"}}, "at least 3 parties.* exchange 'blind', hides it"),
        ({"l1": 0.0}, r"either job\.l1 above 0 or \[dbcd\] path"),
        ({"dbcd": {"path": [0.1]}}, r"either job\.l1 above 0 or \[dbcd\] path"),
        ({"l1": 0.0, "dbcd": {"path": [0.1, 0.1]}}, "falling"),
        (
            {
                "l1": 0.0,
                "dbcd": {"path": [0.2, 0.1]},
                "exchange": {"scheme": "dp"},
                "privacy": {"noise_multiplier": 1.0},
            },
            "under noise",
        ),
        ({"dbcd": {"size": 3}}, "working_set = 'greedy'"),
        ({"model": "mlp"}, "linear models"),
        ({"batch_size": 64}, "all rows"),
        ({"learning_rate": 0.1, "local_steps": 3}, "searches for its steps"),
        ({"schedule": "inverse-sqrt", "local_steps": 3}, "searches for its steps"),
        ({"divide_by_sqrt_parties": True, "local_steps": 3}, "searches for its steps"),
        ({"acceleration": "nesterov"}, "momentum in its place"),
        ({"local_rule": "frozen", "local_steps": 3}, "follows curvature"),
        (
            {
                "exchange": {"scheme": "dp"},
                "privacy": {"noise_multiplier": 1.0, "label_noise_multiplier": 1.0},
            },
            "label_noise_multiplier",
        ),
    ],
)
def test_what_it_does_not_have_is_refused(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        run(breast_cancer(), **{"l1": L1, **sections})
    assert "\n" not in str(raised.value)


def test_gradient_noise_and_more_classes_are_refused() -> None:
    private = {"noise_multiplier": 1.0, "gradient_clip": 1.0, "gradient_noise_multiplier": 1.0}
    with pytest.raises(ConfigError, match="gradient_clip"):
        run(
            breast_cancer(),
            {"scheme": "dp"},
            privacy=private,
            l1=L1,
            learning_rate=0.1,
            local_steps=2,
        )
    with pytest.raises(ConfigError, match="multinomial"):
        run(load("digits"), l1=L1)


def tampered(kind: type, change: Callable[[Any], Any]) -> Environment:
    def tamper(sender: str, to: str, data: bytes) -> bytes:
        del sender, to
        message = decode(data)
        return encode(change(message)) if isinstance(message, kind) else data

    return Environment(tamper=tamper)


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        (StepTaken, lambda m: replace(m, length=np.array([0.7, 0.0])), "not on the grid"),
        (StepTaken, lambda m: replace(m, length=np.array([1.0, 0.7])), "not on the grid"),
        (StepTaken, lambda m: replace(m, length=np.ones(3)), "array"),
        (StepTaken, lambda m: replace(m, step=m.step + 1), "step 0 is due"),
        (Penalties, lambda m: replace(m, table=m.table[1:]), "array"),
        (Penalties, lambda m: replace(m, optimality=m.optimality[1:]), "array"),
        (Predictions, lambda m: replace(m, values=m.values[1:]), "array"),
        (Residuals, lambda m: replace(m, values=m.values[1:]), "array"),
    ],
)
def test_messages_that_do_not_fit_are_refused(
    kind: type, change: Callable[[Any], Any], told: str
) -> None:
    with pytest.raises(UnexpectedMessage, match=told):
        run(breast_cancer(), l1=L1, environment=tampered(kind, change))
