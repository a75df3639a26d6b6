"""Homomorphic work in every local step: the same model, Q times the work, and all of it counted."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from securevfl.auditing.subject import Subject
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.job import Job
from securevfl.protocols.exchanges.homomorphic import (
    DecryptedProducts,
    EncryptedProducts,
    EncryptedValues,
)
from securevfl.protocols.session.gathering import Predictions
from securevfl.training import Environment, TrainingResult, train
from tests.end_to_end.test_product_formats import FormatsSeen
from tests.jobs import SmallKeys, breast_cancer, run_job

PARAMETERS = 1e-4
ROUNDS, Q = 3, 4
FEW: dict[str, object] = {
    "rounds": ROUNDS, "local_steps": Q, "batch_size": 152, "learning_rate": 0.3, "eval_every": 0,
}  # fmt: skip


def per_step(scheme: str, **more: object) -> dict[str, object]:
    return {"scheme": scheme, "he_per_step": True, **more}


def operations(result: TrainingResult) -> Counter[str]:
    found: Counter[str] = Counter()
    for ledger in result.ledgers.values():
        found.update(ledger.operations)
    return found


@pytest.mark.parametrize("predictions", ["clear", "masked"])
def test_what_crosses_grows_with_the_local_steps(predictions: str) -> None:
    dataset = breast_cancer(3)
    for q in (1, 2, Q):
        settings = {**FEW, "local_steps": q}
        result = run_job(dataset, per_step("paillier", predictions=predictions), **settings)
        once = run_job(dataset, {"scheme": "paillier", "predictions": predictions}, **settings)
        assert result.costs().messages == ROUNDS * 2 * (q + 1) * 2
        assert once.costs().messages == ROUNDS * 4 * 2
        mine, ours = operations(result), operations(once)
        assert mine["encryptions"] == ours["encryptions"]
        assert mine["products"] == q * ours["products"]
        assert mine["decryptions"] == q * ours["decryptions"]


def test_a_long_line_does_not_turn_it_into_one_round_trip() -> None:
    job = {**FEW, "local_steps": 2}
    for he_per_step, messages in ((True, 2 * 3), (False, 3)):
        exchange = {"scheme": "bfv", "he_per_step": he_per_step}
        described = Job.of(job=job, exchange=exchange, network={"preset": "intercontinental"})
        result = train(described, breast_cancer())
        assert result.costs(2).messages - result.costs(1).messages == messages


def test_an_audit_is_of_rounds_with_one_product() -> None:
    job = Job.of(job=FEW, exchange=per_step("bfv"))
    with pytest.raises(ConfigError, match="he_per_step is for benchmarks"):
        Subject(job, breast_cancer(), seed=0)


def test_ciphertexts_come_once_a_round_and_masks_are_fresh() -> None:
    dataset = breast_cancer()
    result = run_job(dataset, per_step("paillier"), **FEW)
    feature = next(t.name for t in dataset.parties if t.name != dataset.label_party)
    kinds = Counter(type(entry.message) for entry in result.views[feature].received())
    assert (kinds[EncryptedValues], kinds[DecryptedProducts]) == (ROUNDS, ROUNDS * Q)
    view = result.views[dataset.label_party]
    kinds = Counter(type(entry.message) for entry in view.received())
    assert (kinds[Predictions], kinds[EncryptedProducts]) == (ROUNDS, ROUNDS * Q)
    masked = [entry.message for entry in result.views[feature].received(DecryptedProducts)]
    values = np.vstack([each.values.ravel() for each in masked if hasattr(each, "values")])
    assert len(np.unique(values)) == values.size


def test_every_product_is_sized_for_and_counted() -> None:
    dataset, seen = breast_cancer(), FormatsSeen()
    result = run_job(dataset, per_step("bfv"), Environment(keys=seen), **FEW)
    assert {fmt.rounds for fmt in (*seen.of_owners, *seen.of_evaluators)} == {ROUNDS * Q}
    once = run_job(dataset, {"scheme": "bfv"}, **{**FEW, "rounds": 1})
    whole = run_job(dataset, per_step("bfv"), **{**FEW, "rounds": 1})
    assert once.label_guard_ratio is not None
    assert whole.label_guard_ratio == pytest.approx(Q * once.label_guard_ratio)
    assert result.label_guard_ratio == pytest.approx(ROUNDS * Q * once.label_guard_ratio)


def test_the_guard_counts_before_the_job_what_it_would_tell(tmp_path: Path) -> None:
    """15 equations on 456 labels of variance 0.23 may be told three times, not four."""
    dataset = breast_cancer()

    def run(q: int, **exchange: object) -> TrainingResult:
        place = Environment(keys=SmallKeys(), guard_directory=tmp_path / f"{q} {exchange}")
        settings = {**FEW, "rounds": 1, "batch_size": "full", "local_steps": q}
        return run_job(dataset, {"scheme": "paillier", **exchange}, place, **settings)

    assert run(9).rounds == 1
    assert run(3, he_per_step=True).rounds == 1
    with pytest.raises(LabelLeakRefused, match="he_per_step makes 9 products"):
        run(9, he_per_step=True)
