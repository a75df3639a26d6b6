"""Every protected run against its twin in clear: same batches, same start."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from securevfl.crypto.schemes import SCHEMES
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.training import Environment
from tests.jobs import (
    Settings,
    all_weights,
    breast_cancer,
    digits,
    once,
    relative_difference,
    run_job,
)

PARAMETERS, AUC = 1e-4, 1e-3
ALGORITHMS = ("fedsgd", "fedbcd-p", "fedbcd-s")
HOMOMORPHIC = ("paillier", "ckks", "bfv")
BOTH = {"hide": "both"}
HIDDEN: list[Settings] = [{"scheme": scheme, **BOTH} for scheme in ("bfv", "paillier")]
ONE_TRIP, TWO_TRIPS = ({"scheme": "bfv", "round_trips": trips} for trips in (1, 2))
# Three batches: in four rounds one comes again.
FEW = {"rounds": 4, "batch_size": 152, "learning_rate": 0.3}
OF_TRIPS: list[Settings] = [
    {"algorithm": "fedsgd"},
    {"local_steps": 4, "l2": 0.1, "proximal": 0.3},
    {"local_steps": 7},
    {"local_rule": "frozen", "schedule": "inverse-sqrt"},
    {"sampling": "shuffle"},
    {"loss": "taylor-logistic", "learning_rate": 0.1},
]
PER_STEP: list[Settings] = [{"round_trips": 2}, {"he_per_step": True}]
EIGHT = {"rounds": 8, "batch_size": 64, "learning_rate": 0.3, "eval_every": 0}
HINGES: dict[str, dict[str, Any]] = {
    "squared hinge": {**FEW, "rounds": 6, "learning_rate": 0.02, "loss": "squared-hinge"},
    "hinge": {**FEW, "rounds": 6, "learning_rate": 0.02, "loss": "hinge", "local_rule": "frozen"},
}
REAL = {"loss": "squared", "rounds": 4, "tolerance": 0.0, "local_steps": 3, "batch_size": "full"}


@cache
def diabetes(parties: int = 2) -> VerticalDataset:
    return some_rows(load("diabetes", parties=parties), 60)


def cases() -> Iterator[Any]:
    """The name of a job, its data and settings, and the exchanges that come to the same."""
    for parties, algorithm in product((2, 3), ALGORITHMS):
        name = f"{algorithm}, K = {parties}"
        yield name, breast_cancer(parties), {**FEW, "algorithm": algorithm}, HOMOMORPHIC
    masked = [{"scheme": scheme, "predictions": "masked"} for scheme in ("paillier", "bfv")]
    yield "masked predictions", breast_cancer(3), FEW, masked
    yield "ten classes", digits(), {**FEW, "rounds": 3, "batch_size": 32}, HOMOMORPHIC
    engines = [
        {"scheme": "paillier", "engine": engine, **hide}
        for engine in SCHEMES["paillier"].engines
        for hide in ({}, BOTH)
    ]
    short = {"rounds": 3, "batch_size": 64, "learning_rate": 0.05, "loss": "taylor-logistic"}
    yield "engines", breast_cancer(3), short, engines
    unbounded = [
        {"scheme": "ckks", "prediction_bound": 6.0},
        *({**each, "prediction_bound": 12.0} for each in (ONE_TRIP, TWO_TRIPS)),
        {"scheme": "paillier", "prediction_bound": 12.0},
    ]
    for name, settings in HINGES.items():
        yield name, breast_cancer(), settings, unbounded
    for parties, more in product((2, 3), OF_TRIPS):
        name = f"trips, {more}, K = {parties}"
        yield name, breast_cancer(parties), {**EIGHT, **more}, (ONE_TRIP, TWO_TRIPS)
    scored = {"rounds": 3, "batch_size": 100, "learning_rate": 0.3, "eval_every": 1}
    yield "one trip of ten classes that are scored", digits(), scored, [ONE_TRIP]
    for rule, (algorithm, parties) in product(
        ("curvature", "frozen"), (("fedbcd-p", 2), ("fedbcd-p", 3), ("fedbcd-s", 3))
    ):
        several = {"rounds": 3, "local_steps": 4, "eval_every": 0, "l2": 1e-2}
        settings = {**FEW, **several, "algorithm": algorithm, "local_rule": rule}
        per_step = [{"scheme": scheme, **how} for scheme in ("paillier", "bfv") for how in PER_STEP]
        name = f"a product a step, {rule}, {algorithm}, K = {parties}"
        yield name, breast_cancer(parties), settings, per_step
    steps = {"rounds": 3, "local_steps": 4, "learning_rate": 0.3, "eval_every": 0}
    each_step = [{"scheme": "bfv", "he_per_step": True}]
    yield "a product a step, ten classes", digits(), {**steps, "batch_size": 32}, each_step
    network = {**steps, "batch_size": 152, "model": "mlp", "hidden": [4], "activation": "tanh"}
    yield "a product a step of a network", breast_cancer(), network, each_step
    in_clear = [ONE_TRIP, TWO_TRIPS, {"scheme": "ckks", "round_trips": 2}, {"scheme": "paillier"}]
    yield "real targets", diabetes(), REAL, [*in_clear, *HIDDEN]
    turns = {**REAL, "rounds": 3, "local_steps": 2, "algorithm": "fedbcd-s"}
    yield (
        "real targets in turns",
        diabetes(3),
        turns,
        [{"scheme": "masked"}, {**HIDDEN[0], "scores": "rows"}],
    )


CASES = [
    pytest.param(*case, id=case[0], marks=[pytest.mark.slow] * ("'local_steps': 7" in case[0]))
    for case in cases()
]


@pytest.mark.parametrize(("name", "dataset", "settings", "exchanges"), CASES)
def test_protection_changes_nothing(
    name: str, dataset: VerticalDataset, settings: Settings, exchanges: list[str | Settings]
) -> None:
    twin, before = once(dataset, **settings), None
    for exchange in exchanges:
        found = run_job(dataset, exchange, **settings)
        for other in filter(None, (twin, before)):
            assert relative_difference(found, other) <= PARAMETERS
        before = found
        # How often is scored depends on who would see it; the last scores are of the same state.
        often = len(found.scores) == len(twin.scores)
        ends = slice(None) if often else slice(-1, None)
        # Three parties with hide = "both" do not score.
        scores = list(zip(found.scores[ends], twin.scores[ends], strict=bool(found.scores)))
        if dataset.classes:
            # What two parties score themselves is binormal.
            apart = [abs(a.auc - b.auc) for a, b in scores if not a.binormal]
        else:
            exact = found.exact_score
            pairs = [*scores, (found.scores[-1], exact)]
            apart = [abs(float(a.r2 or 0) - float(b.r2 or 0)) for a, b in pairs]
            assert found.scores[-1].rmse == pytest.approx(exact.rmse, rel=1e-4)
            # Two parties score by sums, of which no mean of absolutes follows.
            by_sums = len(dataset.parties) == 2 and exchange in HIDDEN
            assert (found.scores[-1].mae is None) == by_sums
        assert max(apart, default=0.0) <= AUC
        if name == "engines":
            assert isinstance(exchange, dict)
            offline = sum(ledger.seconds.get("offline", 0.0) for ledger in found.ledgers.values())
            assert (offline > 0) == (exchange["engine"] != "phe")
    if name.startswith("a product a step, curvature"):
        # And not those of one step: the products of the later steps matter.
        one_step = once(dataset, **{**settings, "local_steps": 1})
        assert relative_difference(one_step, twin) > 0.01


@pytest.mark.parametrize("scheme", HOMOMORPHIC)
@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fedbcd-s"])
@pytest.mark.parametrize(
    "loss", ["taylor-logistic", pytest.param("squared", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("parties", [2, 3])
def test_hiding_both_sides_is_the_quadratic_loss_in_clear(
    scheme: str, algorithm: str, loss: str, parties: int
) -> None:
    # Of seven batches one comes again; steps so short that no state before the last one is kept.
    settings = {**EIGHT, "algorithm": algorithm, "learning_rate": 0.02, "loss": loss}
    settings |= {"eval_every": 1}
    twin = once(breast_cancer(parties), **settings)
    # What a scheme rounds is a part of this bound, and a start of all zeros has short weights.
    opened = {"scores": "rows"} if parties > 2 else {}
    exchange = {"scheme": scheme, **BOTH, **opened, "prediction_bound": 3.0}
    encrypted = run_job(breast_cancer(parties), exchange, **settings)
    assert encrypted.kept_rounds == twin.kept_rounds == 8
    assert relative_difference(encrypted, twin) <= PARAMETERS
    assert abs(encrypted.clear_auc - twin.clear_auc) <= AUC
    assert encrypted.scores[-1].binormal == (parties == 2)
    clipped = [ledger.operations["clipped_values"] for ledger in encrypted.ledgers.values()]
    assert clipped == [0] * parties


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_masking_predictions_changes_nothing_but_last_bits(algorithm: str) -> None:
    settings = {"algorithm": algorithm, "rounds": 30, "batch_size": 64, "learning_rate": 0.3}
    twin, masked = (run_job(breast_cancer(4), scheme, **settings) for scheme in ("plain", "masked"))
    assert relative_difference(masked, twin) <= 1e-9
    assert masked.scores[-1].auc == pytest.approx(twin.scores[-1].auc, abs=1e-12)


@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fedbcd-s"])
@pytest.mark.parametrize("loss", HINGES)
def test_masks_and_no_noise_change_nothing_of_hinges(algorithm: str, loss: str) -> None:
    settings = {**HINGES[loss], "algorithm": algorithm, "eval_every": 0}
    twin = run_job(breast_cancer(3), **settings)
    assert relative_difference(run_job(breast_cancer(3), "masked", **settings), twin) <= 1e-8
    quiet = {"noise_multiplier": 0.0, "clip": 1e6}
    unclipped = run_job(breast_cancer(3), "dp", privacy=quiet, local_steps=5, **settings)
    assert relative_difference(unclipped, twin) <= 1e-12


@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        ("paillier", {"rounds": 2}),
        pytest.param("ckks", {"rounds": 20}, marks=pytest.mark.slow),
        ("bfv", {"rounds": 20}),
        pytest.param("bfv", {"rounds": 4, "model": "mlp"}, marks=pytest.mark.slow),
    ],
)
def test_a9a_trains_alike_under_encryption(
    real_data: Callable[[str], VerticalDataset], scheme: str, more: Settings
) -> None:
    settings = {"batch_size": 256, "learning_rate": 0.5, "eval_every": 0, **more}
    rule = {"local_rule": "gauss-newton"} if "model" in more else {}
    twin = run_job(real_data("a9a"), **settings, **rule)
    encrypted = run_job(real_data("a9a"), scheme, **settings)
    assert relative_difference(encrypted, twin) <= PARAMETERS
    assert abs(encrypted.scores[-1].auc - twin.scores[-1].auc) <= AUC


@pytest.mark.parametrize("scheme", HOMOMORPHIC)
@pytest.mark.parametrize(
    ("algorithm", "local_steps"), [("fedbcd-p", 1), ("fedbcd-p", 5), ("fedbcd-s", 3)]
)
def test_encrypted_networks_take_the_gauss_newton_steps_of_their_twin_in_clear(
    scheme: str, algorithm: str, local_steps: int
) -> None:
    network = {"model": "mlp", "hidden": [4], "activation": "tanh", "l2": 0.01, "proximal": 0.1}
    # In four rounds a batch comes again, with another Jacobian.
    settings = {**FEW, **network, "algorithm": algorithm, "local_steps": local_steps}
    twin = once(breast_cancer(3), local_rule="gauss-newton", **settings)
    encrypted = run_job(breast_cancer(3), scheme, **settings)
    # θ⁰ is what one round with a step size of almost nothing leaves.
    still = {**settings, "rounds": 1, "learning_rate": 1e-300}
    start, end = all_weights(once(breast_cancer(3), **still)), all_weights(twin)
    apart = np.linalg.norm(all_weights(encrypted) - end)
    assert apart <= PARAMETERS * np.linalg.norm(end - start)
    assert abs(encrypted.scores[-1].auc - twin.scores[-1].auc) <= AUC


def test_a_product_a_step_follows_a_network_and_one_a_round_its_linearization() -> None:
    network = {"model": "mlp", "hidden": [4], "activation": "tanh", "eval_every": 0}
    settings = {**FEW, **network, "rounds": 3, "local_steps": 4}
    twin, linearized = (run_job(breast_cancer(), each, **settings) for each in ("plain", "bfv"))
    assert relative_difference(linearized, twin) > 10 * PARAMETERS


def test_values_beyond_the_prediction_bound_are_clipped_and_counted() -> None:
    exchange = {"scheme": "paillier", **BOTH, "prediction_bound": 1.0}
    result = run_job(breast_cancer(), exchange, rounds=1, batch_size=64, loss="squared")
    assert sum(ledger.operations["clipped_values"] for ledger in result.ledgers.values()) > 0


@pytest.mark.slow
def test_keys_of_full_size_change_nothing() -> None:
    settings = {"rounds": 3, "batch_size": 64, "learning_rate": 0.3}
    twin = run_job(breast_cancer(), **settings)
    encrypted = run_job(breast_cancer(), "paillier", Environment(), **settings)
    assert encrypted.key_bits == 3072
    assert relative_difference(encrypted, twin) <= PARAMETERS
    assert abs(encrypted.scores[-1].auc - twin.scores[-1].auc) <= AUC
