"""Transfer learning under encryption: as its twin in clear, one product a unit, guarded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.errors import HeldOutLeakRefused, LabelLeakRefused, RangeExceeded
from securevfl.protocols.exchanges.homomorphic import DecryptedProducts, EncryptedProducts
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.transfer.sides import (
    EncryptedComponents,
    EncryptedScores,
    FeatureComponents,
    LabelComponents,
    ScoreMasks,
    ScoreVector,
)
from securevfl.runtime.views import Decrypted, Learned
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import SmallKeys, breast_cancer
from tests.transfer_data import UNITS, job_of, made

PARAMETERS = 1e-4
PRODUCTS = ("encryptions", "products", "decryptions")


def encrypted(
    scheme: str = "bfv",
    ftl: dict[str, Any] | None = None,
    environment: Environment | None = None,
    **settings: Any,  # noqa: ANN401
) -> TrainingResult:
    exchange = {"scheme": scheme, "hide": "both"}
    environment = environment or Environment(keys=SmallKeys())
    return train(job_of(ftl, exchange=exchange, **settings), made(), environment)


@pytest.mark.parametrize(
    ("scheme", "in_turns", "activation"),
    [
        ("bfv", False, "tanh"),
        ("bfv", True, "sigmoid"),
        ("paillier", False, "sigmoid"),
        ("paillier", True, "tanh"),
        ("ckks", False, "tanh"),
    ],
)
def test_encryption_changes_nothing(scheme: str, in_turns: bool, activation: str) -> None:
    ftl = {"in_turns": in_turns, "activation": activation}
    settings: dict[str, Any] = {
        "local_steps": 5,
        "l2": 0.01,
        "proximal": 0.1,
        "rounds": 6,
        "eval_every": 3,
    }
    twin = train(job_of(ftl, local_rule="gauss-newton", **settings), made())
    found = encrypted(scheme, ftl, **settings)
    for name, outcome in twin.outcomes.items():
        ours = found.outcomes[name].model.weights
        assert np.abs(ours - outcome.model.weights).max() <= PARAMETERS
    assert [each.auc for each in found.scores] == pytest.approx(
        [each.auc for each in twin.scores], abs=0.03
    )


def test_derived_step_sizes_are_those_of_the_twin() -> None:
    settings: dict[str, Any] = {"learning_rate": "auto", "local_steps": 4}
    twin = train(job_of(local_rule="gauss-newton", **settings), made())
    found = encrypted(**settings)
    for name, outcome in twin.outcomes.items():
        ours = found.outcomes[name].model.weights
        assert np.abs(ours - outcome.model.weights).max() <= PARAMETERS


@pytest.mark.parametrize("in_turns", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_homomorphic_work_is_the_same_whatever_q(in_turns: bool) -> None:
    results = [encrypted(ftl={"in_turns": in_turns}, local_steps=q) for q in (1, 10)]
    counted = [
        {name: [each.operations[what] for what in PRODUCTS] for name, each in run.ledgers.items()}
        for run in results
    ]
    assert counted[0] == counted[1]
    rows = sum(len(results[0].plan.schedule.batch(index)) for index in range(4))
    columns = {"bank": 5, "shop": 4}
    for name, other in (("bank", "shop"), ("shop", "bank")):
        assert counted[0][name] == [
            UNITS * rows + 4 * UNITS**2, 4 * UNITS * columns[name], 4 * UNITS * columns[other]
        ]  # fmt: skip
    assert [run.costs().messages for run in results] == [6 * 4, 6 * 4]


def test_nothing_travels_in_clear_but_exponents_and_masked_products() -> None:
    environment = Environment(keys=SmallKeys(), record_views=True)
    result = encrypted(environment=environment, eval_every=0)
    for name, view in result.views.items():
        rounds = [each.message for each in view.received() if each.message.stage == "round"]
        kinds = {type(message) for message in rounds}
        assert kinds == {EncryptedComponents, EncryptedProducts, DecryptedProducts}
        of_scoring = {type(each.message) for each in view.received()} & {
            LabelComponents, FeatureComponents, ScoreVector, EncryptedScores, ScoreMasks
        }  # fmt: skip
        assert of_scoring == ({EncryptedScores, ScoreMasks} if name == "bank" else set())
        # Its own gradient of every round, which is its model's.
        learned = [entry for entry in view.entries if isinstance(entry, Learned)]
        assert len(learned) == result.rounds
        shape = result.outcomes[name].model.weights.shape
        assert {each.values.shape for each in learned} == {shape}


def test_decrypted_products_have_fresh_masks() -> None:
    views = [
        encrypted(environment=Environment(keys=SmallKeys(), record_views=True), rounds=1).views
        for _ in range(2)
    ]
    for name in ("bank", "shop"):
        first, second = (
            next(entry.values for entry in view[name].entries if isinstance(entry, Decrypted))
            for view in views
        )
        assert not (first == second).any()


@pytest.mark.parametrize("settings", [{"batch_size": 20}, {"batch_size": "full"}])
def test_a_job_whose_gradients_tell_labels_is_refused(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    def run(**more: Any) -> TrainingResult:  # noqa: ANN401
        job = job_of({"overlap": 300}, exchange={"scheme": "bfv", "hide": "both"}, **more)
        environment = Environment(keys=SmallKeys(), guard_directory=tmp_path)
        return train(job, breast_cancer(), environment)

    with pytest.raises(LabelLeakRefused, match="gradients of batches, networks") as refused:
        run(rounds=1, eval_every=0, **settings)
    assert "train linear models" not in str(refused.value)
    allowed = run(rounds=1, eval_every=0, allow_label_leak=True, **settings)
    assert allowed.label_guard_ratio is not None
    assert allowed.label_guard_ratio > 0


def test_scorings_count_as_rows_that_are_shown(tmp_path: Path) -> None:
    environment = Environment(keys=SmallKeys(), guard_directory=tmp_path)
    with pytest.raises(HeldOutLeakRefused, match="2 scorings"):
        encrypted(environment=environment, eval_every=2, allow_label_leak=True)
    encrypted(environment=environment, eval_every=0, allow_label_leak=True)


def test_every_visit_of_a_batch_counts() -> None:
    once, twice = (
        encrypted(batch_size="full", rounds=rounds).label_guard_ratio for rounds in (1, 2)
    )
    assert once is not None
    assert twice == pytest.approx(2 * once)


def test_a_session_goes_on_with_new_keys(tmp_path: Path) -> None:
    states = {}

    def keep(state: SessionState) -> None:
        if state.rounds == 2:
            states[state.party] = state

    kept = Environment(keys=SmallKeys(), keep_state=keep)
    whole = encrypted(environment=kept, allow_label_leak=True)
    resumed = Environment(keys=SmallKeys(), resume=states, guard_directory=tmp_path)
    rest = encrypted(environment=resumed, allow_label_leak=True)
    assert rest.label_guard_ratio == whole.label_guard_ratio
    for name, outcome in whole.outcomes.items():
        np.testing.assert_array_equal(rest.outcomes[name].model.weights, outcome.model.weights)


def test_products_without_room_are_refused() -> None:
    with pytest.raises(RangeExceeded):
        encrypted(ftl={"alignment": 1e9})
