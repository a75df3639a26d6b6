"""Jobs, small keys and reference trainers for whole runs."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.crypto.paillier import PaillierEvaluator, PaillierOwner
from securevfl.crypto.paillier_fast import (
    FastPaillierEvaluator,
    FastPaillierOwner,
    FullPaillierOwner,
)
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.crypto.schemes import default_engine
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.job import ExchangeSettings, Job, JobSettings
from securevfl.protocols.session.keys import SchemeKeys
from securevfl.training import Environment, TrainingResult, train

RunJob = Callable[..., TrainingResult]
SMALL_KEY_BITS = 384
OWNERS: dict[str, type[FastPaillierOwner | PaillierOwner]] = {
    "fast": FastPaillierOwner,
    "fast-full": FullPaillierOwner,
    "phe": PaillierOwner,
}


class SmallKeys(SchemeKeys):
    """Paillier keys that no job can ask for, on any engine: real arithmetic, quick enough."""

    @override
    def owner(self, settings: ExchangeSettings, product_format: ProductFormat) -> KeyOwner:
        if settings.scheme == "paillier":
            engine = OWNERS[settings.engine or default_engine("paillier")]
            return engine.insecure_for_tests(product_format, SMALL_KEY_BITS)
        return super().owner(settings, product_format)

    @override
    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        if settings.scheme == "paillier":
            if settings.engine == "phe":
                return PaillierEvaluator.insecure_for_tests(material, product_format)
            return FastPaillierEvaluator.insecure_for_tests(material, product_format)
        return super().evaluator(settings, material, product_format)


@pytest.fixture(scope="session")
def breast_cancer() -> VerticalDataset:
    return load("breast_cancer")


@pytest.fixture(scope="session")
def run_job() -> RunJob:
    """Trains a job given by settings, with a step size of 0.1; views are recorded."""

    def run(
        dataset: VerticalDataset,
        exchange: dict[str, object] | None = None,
        environment: Environment | None = None,
        **settings: object,
    ) -> TrainingResult:
        job = Job(
            job=JobSettings.model_validate({"learning_rate": 0.1, **settings}),
            exchange=ExchangeSettings.model_validate(exchange or {}),
        )
        environment = environment or Environment(keys=SmallKeys(), record_views=True)
        return train(job, dataset, environment)

    return run


def all_weights(result: TrainingResult) -> NDArray[np.float64]:
    """Every party's weights, one after another."""
    return np.concatenate([o.model.weights.ravel() for o in result.outcomes.values()])


def relative_difference(a: TrainingResult, b: TrainingResult) -> float:
    """‖θ_a − θ_b‖ / ‖θ_b‖ over all parties."""
    reference = all_weights(b)
    return float(np.linalg.norm(all_weights(a) - reference) / np.linalg.norm(reference))
