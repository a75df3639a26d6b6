"""Every protected run against its twin in clear: same batches, same start."""

from collections.abc import Callable

import pytest

from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.training import Environment
from tests.jobs import breast_cancer, relative_difference, run_job

PARAMETERS = 1e-4
AUC = 1e-3
EXACT = 1e-9
# Three batches: in four rounds one comes again.
FEW: dict[str, object] = {"rounds": 4, "batch_size": 152}


@pytest.mark.parametrize("scheme", ["paillier", "ckks", "bfv"])
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedbcd-p", "fedbcd-s"])
@pytest.mark.parametrize("parties", [2, 3])
def test_hiding_residuals_changes_nothing(scheme: str, algorithm: str, parties: int) -> None:
    dataset = breast_cancer(parties)
    settings = {"algorithm": algorithm, **FEW, "learning_rate": 0.3}
    twin = run_job(dataset, **settings)
    encrypted = run_job(dataset, {"scheme": scheme}, **settings)
    assert relative_difference(encrypted, twin) <= PARAMETERS
    assert abs(encrypted.scores[-1].auc - twin.scores[-1].auc) <= AUC


@pytest.mark.parametrize("scheme", ["paillier", "ckks", "bfv"])
@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fedbcd-s"])
@pytest.mark.parametrize(
    "loss", ["taylor-logistic", pytest.param("squared", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("parties", [2, 3])
def test_hiding_both_sides_is_the_quadratic_loss_in_clear(
    scheme: str, algorithm: str, loss: str, parties: int
) -> None:
    dataset = breast_cancer(parties)
    settings = {
        "algorithm": algorithm,
        "rounds": 8,  # of seven batches: one comes again
        "batch_size": 64,
        "learning_rate": 0.02,  # so short that no state before the last one is kept
        "loss": loss,
    }
    twin = run_job(dataset, **settings)
    # What a scheme rounds is a part of this bound, and a start of all zeros has short weights.
    exchange = {"scheme": scheme, "hide": "both", "prediction_bound": 3.0}
    encrypted = run_job(dataset, exchange, **settings)
    assert encrypted.kept_rounds == twin.kept_rounds == 8
    assert relative_difference(encrypted, twin) <= PARAMETERS
    # What two parties score themselves is binormal.
    assert abs(encrypted.clear_auc - twin.clear_auc) <= AUC
    assert encrypted.scores[-1].binormal == (parties == 2)
    clipped = [ledger.operations["clipped_values"] for ledger in encrypted.ledgers.values()]
    assert clipped == [0] * parties


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedbcd-p", "fedbcd-s"])
def test_masking_predictions_changes_nothing(algorithm: str) -> None:
    dataset = breast_cancer(4)
    settings = {"algorithm": algorithm, "rounds": 30, "batch_size": 64, "learning_rate": 0.3}
    twin = run_job(dataset, **settings)
    masked = run_job(dataset, {"scheme": "masked"}, **settings)
    assert relative_difference(masked, twin) <= EXACT
    assert masked.scores[-1].auc == pytest.approx(twin.scores[-1].auc, abs=1e-12)


@pytest.mark.parametrize("scheme", ["paillier", "bfv"])
def test_masked_predictions_go_with_encrypted_residuals(scheme: str) -> None:
    dataset = breast_cancer(3)
    settings = {**FEW, "learning_rate": 0.3}
    twin = run_job(dataset, **settings)
    exchange = {"scheme": scheme, "predictions": "masked"}
    encrypted = run_job(dataset, exchange, **settings)
    assert relative_difference(encrypted, twin) <= PARAMETERS


@pytest.mark.parametrize("scheme", ["paillier", "ckks", "bfv"])
def test_ten_classes_train_under_encryption(scheme: str) -> None:
    dataset = load("digits")
    settings = {"rounds": 3, "batch_size": 32, "learning_rate": 0.3}
    twin = run_job(dataset, **settings)
    encrypted = run_job(dataset, {"scheme": scheme}, **settings)
    assert relative_difference(encrypted, twin) <= PARAMETERS


@pytest.mark.parametrize(
    ("scheme", "rounds"),
    [("paillier", 2), pytest.param("ckks", 20, marks=pytest.mark.slow), ("bfv", 20)],
)
def test_a9a_trains_alike_under_encryption(
    real_data: Callable[[str], VerticalDataset], scheme: str, rounds: int
) -> None:
    dataset = real_data("a9a")
    settings = {"rounds": rounds, "batch_size": 256, "learning_rate": 0.5, "eval_every": 0}
    twin = run_job(dataset, **settings)
    encrypted = run_job(dataset, {"scheme": scheme}, **settings)
    assert relative_difference(encrypted, twin) <= PARAMETERS
    assert abs(encrypted.scores[-1].auc - twin.scores[-1].auc) <= AUC


def test_values_beyond_the_prediction_bound_are_clipped_and_counted() -> None:
    dataset = breast_cancer()
    exchange = {"scheme": "paillier", "hide": "both", "prediction_bound": 1.0}
    result = run_job(dataset, exchange, rounds=1, batch_size=64, loss="squared")
    assert sum(ledger.operations["clipped_values"] for ledger in result.ledgers.values()) > 0


@pytest.mark.slow
def test_keys_of_full_size_change_nothing() -> None:
    dataset = breast_cancer()
    settings = {"rounds": 3, "batch_size": 64, "learning_rate": 0.3}
    twin = run_job(dataset, **settings)
    encrypted = run_job(dataset, {"scheme": "paillier"}, Environment(), **settings)
    assert encrypted.key_bits == 3072
    assert relative_difference(encrypted, twin) <= PARAMETERS
    assert abs(encrypted.scores[-1].auc - twin.scores[-1].auc) <= AUC
