"""Jobs on sparse rows give what they give on the same rows as arrays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securevfl.models.storage import load_model
from securevfl.training import TrainingResult, save_models
from tests.jobs import Settings, fit
from tests.sparse_data import few_ones, sparse, sparse_rows

STEPS = {"rounds": 4, "batch_size": 16, "local_steps": 2, "learning_rate": 0.3}
FDML = {"algorithm": "fdml", "local_steps": 1}
NOISE = {"noise_multiplier": 1.0, "clip": 2.0, "noise_seed": 5}
ALL_NOISE = {**NOISE, "gradient_clip": 0.5, "gradient_noise_multiplier": 1.0}
ONE, TWO = {"hidden": [5]}, {"hidden": [5, 3], "activation": "tanh"}
BOTH = {"scheme": "bfv", "hide": "both"}
CLEAR: dict[str, tuple[str, Settings]] = {
    "plain": ("plain", {}),
    "plain, steps derived": ("plain", {"learning_rate": "auto"}),
    "exact steps": ("plain", {"local_steps": "exact", "learning_rate": "auto"}),
    "fedbcd-s": ("plain", {"algorithm": "fedbcd-s"}),
    "fedsgd": ("plain", {"algorithm": "fedsgd", "local_steps": 1}),
    "raw columns": ("plain", {"standardize": False}),
    "masked": ("masked", {}),
    "l1": ("plain", {"l1": 0.01}),
    "fdml": ("plain", FDML),
    "real targets": ("plain", {"loss": "squared"}),
    # Noise falls on the same numbers.
    "dp": ("dp", {"privacy": NOISE}),
    "dp end to end": ("dp", {"privacy": ALL_NOISE}),
    "dp under fdml": ("dp", {**FDML, "privacy": NOISE}),
    "a layer": ("plain", {"model": "mlp", **ONE}),
    "two layers": ("plain", {"model": "mlp", **TWO}),
    "a layer under fdml": ("plain", {"model": "mlp", **ONE, **FDML}),
}
SLOW = pytest.mark.slow


def run(
    exchange: str | Settings, settings: Settings, *, binary: bool = False
) -> tuple[TrainingResult, TrainingResult]:
    arrays, both = few_ones(binary=binary), {**STEPS, **settings}
    return fit(arrays, exchange, **both), fit(sparse(arrays), exchange, **both)


def assert_twins(ours: TrainingResult, theirs: TrainingResult, atol: float = 1e-9) -> None:
    for name, outcome in ours.outcomes.items():
        other = theirs.outcomes[name]
        for what in ("weights", "mean", "scale"):
            found, expected = (getattr(each.model, what) for each in (other, outcome))
            np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
        np.testing.assert_allclose(other.held_out, outcome.held_out, rtol=0, atol=atol)


@pytest.mark.parametrize("binary", [False, True], ids=["values", "0/1"])
@pytest.mark.parametrize("name", CLEAR)
def test_jobs_in_clear_and_with_noise_give_the_same_models(name: str, binary: bool) -> None:
    assert_twins(*run(*CLEAR[name], binary=binary))


def test_networks_under_a_head_begin_and_go_on_alike() -> None:
    """Its label party takes arrays; an activation ends each network, and no start is scaled."""
    arrays = few_ones(binary=False)
    mixed = replace(sparse(arrays), parties=(arrays.parties[0], *sparse(arrays).parties[1:]))
    settings = {**STEPS, **TWO, "model": "mlp", "head": "logistic"}
    assert_twins(fit(arrays, **settings), fit(mixed, **settings))


@pytest.mark.parametrize(
    ("exchange", "settings"),
    [
        ({"scheme": "bfv", "round_trips": 2}, {}),
        ({"scheme": "bfv", "round_trips": 1}, {}),
        ("ckks", {}),
        pytest.param(BOTH, {"loss": "taylor-logistic"}, marks=SLOW),
        pytest.param("paillier", {}, marks=SLOW),
        pytest.param("blind", {"allow_label_leak": True}, marks=SLOW),
    ],
)
def test_products_under_encryption_are_over_all_columns(
    exchange: str | Settings, settings: Settings
) -> None:
    ours, theirs = run(exchange, {"rounds": 2, **settings}, binary=True)
    # Fresh keys, noise and masks every time: two runs on arrays differ by some 0.005 under blind.
    assert_twins(ours, theirs, atol=0.05 if exchange == "blind" else 1e-3)
    # Which columns occur in a batch is data: nothing is shorter for it.
    for party, ledger in ours.ledgers.items():
        sent = theirs.ledgers[party].bytes_sent
        assert sent["EncryptedProducts"] == ledger.bytes_sent["EncryptedProducts"]


def test_a_party_alone_is_as_good_on_sparse_rows() -> None:
    ours, theirs = run("plain", {})
    for name, own in ours.alone.items():
        other = theirs.alone[name]
        assert other.rows == own.rows
        np.testing.assert_allclose(other.predictions, own.predictions, rtol=0, atol=1e-2)


def test_two_layers_learn_from_sparse_rows_and_score_both_kinds(tmp_path: Path) -> None:
    dataset, network = few_ones(rows=200, binary=False), {"model": "mlp", "hidden": [4]}
    steps = {"rounds": 60, "batch_size": 50, "learning_rate": 1.0}
    result = fit(sparse(dataset), algorithm="fdml", **network, **steps)
    assert result.scores[-1].auc > 0.8
    save_models(result, tmp_path)
    for table in dataset.parties:
        model = load_model(tmp_path / f"{table.name}.safetensors")
        ours = model.predict(sparse_rows(table.test))
        np.testing.assert_allclose(ours, result.outcomes[table.name].held_out, rtol=0, atol=1e-12)
        np.testing.assert_allclose(ours, model.predict(table.test), rtol=0, atol=1e-12)
