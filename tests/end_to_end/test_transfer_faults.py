"""What a peer of transfer learning may not send, and weights that are no numbers any more."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securevfl.errors import MalformedMessage, TrainingDiverged, UnexpectedMessage
from securevfl.protocols.exchanges.homomorphic import DecryptedProducts, EncryptedProducts
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.protocols.transfer.encrypted import (
    EncryptedComponents,
    EncryptedScores,
    EncryptedScoreVector,
    ScoreMasks,
)
from securevfl.protocols.transfer.in_clear import FeatureComponents, LabelComponents, ScoreVector
from securevfl.training import train
from securevfl.wire.codec import Message
from tests.end_to_end.test_faults import tampering
from tests.transfer_data import job_of, made

Change = Callable[[Any], Message]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (LabelComponents, lambda m: replace(m, rows=m.rows[1:])),
        (LabelComponents, lambda m: replace(m, phi=m.phi[1:])),
        (FeatureComponents, lambda m: replace(m, rows=m.rows[:, 1:])),
        (ScoreVector, lambda m: replace(m, phi=m.phi[:1])),
        (HeldOutPredictions, lambda m: replace(m, values=m.values[1:])),
    ],
)
def test_arrays_in_clear_of_another_shape_are_refused(kind: type[Message], change: Change) -> None:
    with pytest.raises(UnexpectedMessage, match="sent an array of"):
        train(job_of(eval_every=2), made(), tampering(kind, change))


@pytest.mark.parametrize(
    ("kind", "change", "error", "told"),
    [
        (EncryptedComponents, lambda m: replace(m, vectors=m.vectors[1:]),
         UnexpectedMessage, "4 vectors where 5"),
        (EncryptedComponents, lambda m: replace(m, exponent=m.exponent + 10),
         UnexpectedMessage, "bounds eigenvalues by"),
        (EncryptedComponents, lambda m: replace(m, vectors=(b"", *m.vectors[1:])),
         MalformedMessage, "from (bank|shop)"),
        (EncryptedProducts, lambda m: replace(m, products=m.products[1:]),
         UnexpectedMessage, "4 products, 5 due"),
        (DecryptedProducts, lambda m: replace(m, values=m.values[:, 1:]),
         UnexpectedMessage, "sent an array of"),
        (EncryptedScoreVector, lambda m: replace(m, vector=m.vector[1:]),
         MalformedMessage, "from bank"),
        (EncryptedScores, lambda m: replace(m, product=m.product[1:]),
         MalformedMessage, "from shop"),
        (ScoreMasks, lambda m: replace(m, values=m.values[1:]),
         UnexpectedMessage, "sent an array of"),
    ],
)  # fmt: skip
def test_under_encryption_what_does_not_fit_is_refused(
    kind: type[Message], change: Change, error: type[Exception], told: str
) -> None:
    job = job_of(exchange={"scheme": "bfv", "hide": "both"}, eval_every=2, rounds=2)
    with pytest.raises(error, match=told):
        train(job, made(), tampering(kind, change))


def test_weights_that_are_not_finite_end_training() -> None:
    job = job_of({"activation": "relu"}, learning_rate=1e200, local_steps=5)
    with pytest.raises(TrainingDiverged, match="use a smaller one"), np.errstate(all="ignore"):
        train(job, made())
