"""Every Paillier engine under a whole job, against the job in clear."""

import pytest

from securevfl.crypto.schemes import SCHEMES
from tests.jobs import breast_cancer, relative_difference, run_job

ENGINES = tuple(SCHEMES["paillier"].engines)
PARAMETERS = 1e-4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("hide", ["residuals", "both"])
def test_every_engine_changes_nothing(engine: str, hide: str) -> None:
    dataset = breast_cancer(3)
    settings = {"rounds": 3, "batch_size": 64, "learning_rate": 0.05, "loss": "taylor-logistic"}
    twin = run_job(dataset, **settings)
    exchange = {"scheme": "paillier", "engine": engine, "hide": hide}
    encrypted = run_job(dataset, exchange, **settings)
    assert relative_difference(encrypted, twin) <= PARAMETERS
    offline = sum(ledger.seconds.get("offline", 0.0) for ledger in encrypted.ledgers.values())
    assert (offline > 0) == (engine != "phe")
