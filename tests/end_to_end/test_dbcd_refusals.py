"""What DBCD refuses: jobs that it does not have, and messages that do not fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securevfl.errors import UnexpectedMessage
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import Predictions
from securevfl.protocols.vertical.dbcd import StepTaken
from securevfl.protocols.vertical.dbcd_block import Penalties
from securevfl.training import Environment
from securevfl.wire.codec import decode, encode
from tests.end_to_end.l1 import run
from tests.jobs import breast_cancer

L1 = 0.01


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
