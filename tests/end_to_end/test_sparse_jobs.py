"""Jobs on sparse rows give what they give on the same rows as arrays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.job import Job
from securevfl.models.storage import load_model
from securevfl.training import TrainingResult, save_models, train
from tests.sparse_data import few_ones, sparse, sparse_rows

STEPS = {"rounds": 4, "batch_size": 16, "local_steps": 2, "learning_rate": 0.3}
CLEAR: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, steps derived": {"job": {"learning_rate": "auto"}},
    "exact steps": {"job": {"local_steps": "exact", "learning_rate": "auto"}},
    "fedbcd-s": {"job": {"algorithm": "fedbcd-s"}},
    "fedsgd": {"job": {"algorithm": "fedsgd", "local_steps": 1}},
    "raw columns": {"job": {"standardize": False}},
    "masked": {"exchange": {"scheme": "masked"}},
    "l1": {"job": {"l1": 0.01}},
    "fdml": {"job": {"algorithm": "fdml", "local_steps": 1}},
    "real targets": {"job": {"loss": "squared"}},
}
NOISE = {"noise_multiplier": 1.0, "clip": 2.0, "noise_seed": 5}
NOISY: dict[str, dict[str, Any]] = {
    "dp": {"privacy": NOISE},
    "dp end to end": {"privacy": {**NOISE, "gradient_clip": 0.5, "gradient_noise_multiplier": 1.0}},
    "dp under fdml": {"job": {"algorithm": "fdml", "local_steps": 1}, "privacy": NOISE},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "one": {"hidden": [5]},
    "two": {"hidden": [5, 3], "activation": "tanh"},
    "fdml": {"hidden": [5], "algorithm": "fdml", "local_steps": 1},
}
ENCRYPTED: dict[str, dict[str, Any]] = {
    "bfv": {"exchange": {"scheme": "bfv", "round_trips": 2}},
    "bfv in one trip": {"exchange": {"scheme": "bfv", "round_trips": 1}},
    "both hidden": {
        "job": {"loss": "taylor-logistic"},
        "exchange": {"scheme": "bfv", "hide": "both"},
    },
    "ckks": {"exchange": {"scheme": "ckks"}},
    "paillier": {"exchange": {"scheme": "paillier", "key_bits": 2048}},
    "blind": {"job": {"allow_label_leak": True}, "exchange": {"scheme": "blind"}},
}


def run(
    binary: bool, sections: dict[str, dict[str, Any]], rounds: int = 4
) -> tuple[TrainingResult, TrainingResult]:
    settings = {**STEPS, "rounds": rounds, **sections.get("job", {})}
    others = {name: section for name, section in sections.items() if name != "job"}
    job = Job.of(job=settings, **others)
    dataset = few_ones(binary=binary)
    return train(job, dataset), train(job, sparse(dataset))


def assert_twins(ours: TrainingResult, theirs: TrainingResult, atol: float = 1e-9) -> None:
    for name, outcome in ours.outcomes.items():
        other = theirs.outcomes[name]
        for what in ("weights", "mean", "scale"):
            np.testing.assert_allclose(
                getattr(other.model, what), getattr(outcome.model, what), rtol=0, atol=atol
            )
        np.testing.assert_allclose(other.held_out, outcome.held_out, rtol=0, atol=atol)


@pytest.mark.parametrize("binary", [False, True], ids=["values", "0/1"])
@pytest.mark.parametrize("name", CLEAR)
def test_jobs_in_clear_give_the_same_models(name: str, binary: bool) -> None:
    assert_twins(*run(binary, CLEAR[name]))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_begin_and_go_on_alike(name: str) -> None:
    assert_twins(*run(False, {"job": {"model": "mlp", **NETWORKS[name]}}))


def test_networks_under_a_head_begin_and_go_on_alike() -> None:
    """Its label party takes arrays; an activation ends each network, and no start is scaled."""
    arrays = few_ones(binary=False)
    parties = (arrays.parties[0], *sparse(arrays).parties[1:])
    job = Job.of(job={**STEPS, **NETWORKS["two"], "model": "mlp", "head": "logistic"})
    assert_twins(train(job, arrays), train(job, replace(sparse(arrays), parties=parties)))


@pytest.mark.parametrize("name", NOISY)
def test_noise_falls_on_the_same_numbers(name: str) -> None:
    sections = NOISY[name]
    assert_twins(*run(False, {**sections, "exchange": {"scheme": "dp"}}))


@pytest.mark.parametrize(
    "name",
    [
        "bfv",
        "bfv in one trip",
        "ckks",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("both hidden", "paillier", "blind")
        ),
    ],
)
def test_products_under_encryption_are_over_all_columns(name: str) -> None:
    ours, theirs = run(True, ENCRYPTED[name], rounds=2)
    # Fresh keys, noise and masks every time: two runs on arrays differ by some 0.005 under blind.
    assert_twins(ours, theirs, atol=0.05 if name == "blind" else 1e-3)
    # Which columns occur in a batch is data: nothing is shorter for it.
    for party, ledger in ours.ledgers.items():
        sent = theirs.ledgers[party].bytes_sent
        assert sent["EncryptedProducts"] == ledger.bytes_sent["EncryptedProducts"]


def test_a_party_alone_is_as_good_on_sparse_rows() -> None:
    ours, theirs = run(False, CLEAR["plain"])
    for name, own in ours.alone.items():
        other = theirs.alone[name]
        assert other.rows == own.rows
        np.testing.assert_allclose(other.predictions, own.predictions, rtol=0, atol=1e-2)


def test_two_layers_learn_from_sparse_rows_and_score_both_kinds(tmp_path: Path) -> None:
    dataset = few_ones(rows=200, binary=False)
    job = Job.of(
        job={
            "algorithm": "fdml",
            "rounds": 60,
            "batch_size": 50,
            "learning_rate": 1.0,
            "model": "mlp",
            "hidden": [4],
        }
    )
    result = train(job, sparse(dataset))
    assert result.scores[-1].auc > 0.8
    save_models(result, tmp_path)
    for table in dataset.parties:
        model = load_model(tmp_path / f"{table.name}.safetensors")
        ours = model.predict(sparse_rows(table.test))
        np.testing.assert_allclose(ours, result.outcomes[table.name].held_out, rtol=0, atol=1e-12)
        np.testing.assert_allclose(ours, model.predict(table.test), rtol=0, atol=1e-12)
