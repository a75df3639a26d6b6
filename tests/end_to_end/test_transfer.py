"""Federated transfer learning: the written loss, its twin under encryption, noise and guards."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from securevfl import errors
from securevfl.arrays import IntArray
from securevfl.data.scaling import Scaling
from securevfl.data.tables import VerticalDataset
from securevfl.job import FtlSettings
from securevfl.models.scores import auc
from securevfl.models.storage import load_model
from securevfl.protocols.exchanges.homomorphic import DecryptedProducts, EncryptedProducts
from securevfl.protocols.session import early_stopping
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.protocols.transfer.objective import settings_of
from securevfl.protocols.transfer.sides import (
    EncryptedComponents,
    EncryptedScores,
    FeatureComponents,
    LabelComponents,
    ScoreMasks,
    ScoreVector,
)
from securevfl.training import Environment, TrainingResult, plan_for, save_models
from tests.end_to_end.commands import run as run_command
from tests.end_to_end.commands import write_job
from tests.jobs import (
    Kept,
    SmallKeys,
    Starts,
    all_weights,
    breast_cancer,
    fit,
    job_of,
    picked,
    received,
)
from tests.transfer_data import FTL, GAMMA, UNITS, made

PARAMETERS = 1e-4
PRODUCTS = ("encryptions", "products", "decryptions")
Point = dict[str, torch.Tensor]


def settings(ftl: dict[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {**FTL, **more, "ftl": {**FTL["ftl"], **(ftl or {})}}


def run(
    ftl: dict[str, Any] | None = None,
    exchange: str | None = None,
    *how: Any,  # noqa: ANN401
    dataset: VerticalDataset | None = None,
    **more: Any,  # noqa: ANN401
) -> TrainingResult:
    hidden = {"scheme": exchange, "hide": "both"} if exchange not in {None, "dp"} else exchange
    return fit(dataset or made(), hidden, *how, **settings(ftl, **more))


@dataclass
class Reference:
    dataset: VerticalDataset
    l2: float

    def __post_init__(self) -> None:
        own = self.dataset.own_rows
        tables = {each.name: each.train for each in self.dataset.parties}
        assert own is not None
        tables["bank"] = np.concatenate([tables["bank"], own.features])
        self.inputs = {}
        for name, train_rows in tables.items():
            scaled = torch.tensor(Scaling.fit(train_rows).apply(train_rows))
            self.inputs[name] = torch.hstack([scaled, torch.ones(len(scaled), 1).double()])
        labels = np.concatenate([self.dataset.train_labels, own.labels])
        self.signs = torch.tensor(2.0 * labels - 1)

    def loss(self, bank: torch.Tensor, shop: torch.Tensor, rows: IntArray) -> torch.Tensor:
        ours = torch.tanh(self.inputs["bank"] @ bank)
        theirs = torch.tanh(self.inputs["shop"] @ shop)[rows]
        phi = (self.signs[:, None] * ours).mean(0)
        scores, signs = theirs @ phi, self.signs[rows]
        label = (np.log(2) - signs * scores / 2 + scores**2 / 8).mean()
        alignment = GAMMA * ((ours[rows] - theirs) ** 2).sum(1).mean()
        penalty = (bank[:-1] ** 2).sum() + (shop[:-1] ** 2).sum()
        total: torch.Tensor = label + alignment + self.l2 / 2 * penalty
        return total

    def step(
        self, name: str, point: Point, rows: IntArray, *, steps: int, eta: float, mu: float
    ) -> torch.Tensor:
        """Q steps of one party from a point, the other's weights as they stand there."""
        start = point[name]
        weights = start.clone()
        for _ in range(steps):
            fresh = {**point, name: weights.requires_grad_()}
            value = self.loss(fresh["bank"], fresh["shop"], rows)
            (gradient,) = torch.autograd.grad(value, weights)
            weights = (weights - eta * (gradient + mu * (weights - start))).detach()
        return weights

    def train(self, result: TrainingResult, point: Point) -> Point:
        plan = result.plan
        for index in range(result.rounds):
            step = partial(
                self.step,
                rows=plan.schedule.batch(index).copy(),
                steps=plan.rule.local_steps,
                eta=plan.step_size.at(index),
                mu=plan.rule.proximal,
            )
            if settings_of(plan).alternating:
                for name in ("bank", "shop"):
                    point = {**point, name: step(name, point)}
            else:
                point = {name: step(name, point) for name in point}
        return point


@pytest.mark.parametrize(
    ("more", "alternating"),
    [
        ({"local_steps": 1}, False),
        ({"local_steps": 5}, False),
        ({"local_steps": 1}, True),
        ({"local_steps": 5}, True),
        ({"local_steps": 5, "proximal": 0.3, "l2": 0.02, "schedule": "inverse-sqrt"}, False),
        ({"local_steps": 3, "proximal": 0.3, "l2": 0.02, "batch_size": "full"}, True),
        ({"local_steps": 4, "sampling": "shuffle"}, False),
    ],
)
def test_parties_take_the_steps_of_the_written_loss(
    more: dict[str, Any], alternating: bool
) -> None:
    starts = Starts()
    result = run({"alternating": alternating}, None, Environment(wrap_model=starts), **more)
    begun = {name: torch.tensor(weights) for name, weights in starts.items()}
    expected = Reference(made(), more.get("l2", 0.0)).train(result, begun)
    for name, weights in expected.items():
        found = result.outcomes[name].model.weights
        assert np.abs(found - starts[name]).max() > 1e-2
        np.testing.assert_allclose(found, weights.numpy(), rtol=0, atol=1e-10)


def test_linearized_steps_start_like_exact_ones_and_then_differ() -> None:
    exact, linear = (
        [run(local_rule=rule, local_steps=steps) for steps in (1, 5)]
        for rule in ("curvature", "gauss-newton")
    )
    np.testing.assert_allclose(all_weights(linear[0]), all_weights(exact[0]), rtol=0, atol=1e-12)
    for name, outcome in exact[1].outcomes.items():
        apart = linear[1].outcomes[name].model.weights - outcome.model.weights
        assert np.abs(apart).max() > 1e-3


@pytest.mark.parametrize("alternating", [False, True])
def test_a_round_takes_two_messages_and_a_scoring_two_and_a_verdict(alternating: bool) -> None:
    result = run({"alternating": alternating}, eval_every=2)
    assert result.costs().messages == 2 * 4
    # S rows of d = 5 numbers each way and Φ, of 8 bytes; the rest is envelopes.
    assert result.costs().bytes_sent > 4 * 8 * 5
    assert [score.rounds for score in result.scores] == [2, 4]


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_saved_models_score_the_other_partys_rows_by_its_columns_alone(
    activation: str, tmp_path: Path
) -> None:
    result = run({"activation": activation})
    save_models(result, tmp_path)
    bank, shop = (load_model(tmp_path / f"{name}.safetensors") for name in ("bank", "shop"))
    assert shop.phi is None
    assert bank.phi is not None
    (rows,) = (each.test for each in made().parties if each.name == "shop")
    found = auc(shop.predict(rows) @ bank.phi[:, None], made().test_labels)
    for score in (result.scores[-1].auc, result.clear_auc):
        assert score == pytest.approx(found, abs=1e-12)


def test_the_overlap_is_drawn_by_who_the_rows_are() -> None:
    dataset, job = breast_cancer(), job_of(**settings({"overlap": 0.1}))
    taken, again = (plan_for(job, dataset).facts for _ in range(2))
    assert taken.rows == round(0.1 * len(dataset.train_labels))
    assert plan_for(job_of(**settings({"overlap": 77})), dataset).facts.rows == 77
    np.testing.assert_array_equal(taken.row_digests, again.row_digests)
    other = plan_for(job.with_settings(seed=1), dataset).facts
    assert set(other.row_digests.tolist()) != set(taken.row_digests.tolist())
    same = plan_for(job, picked(dataset, slice(None, None, -1))).facts
    assert set(same.row_digests.tolist()) == set(taken.row_digests.tolist())


def test_rows_outside_the_overlap_stay_at_the_label_party() -> None:
    dataset, starts = breast_cancer(), Starts()
    overlap, environment = {"overlap": 0.2, "alignment": 0.01}, Environment(wrap_model=starts)
    result = run(overlap, None, environment, dataset=dataset, rounds=3)
    # Φ of the trained layer is over all rows of the label party, scaled by all of them.
    model = result.outcomes[dataset.label_party].model
    table = next(each for each in dataset.parties if each.name == dataset.label_party)
    signs = 2.0 * dataset.train_labels - 1
    assert result.plan.facts.rows < len(signs)
    assert model.phi is not None
    np.testing.assert_allclose(model.mean, table.train.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(model.phi, signs @ model.predict(table.train) / len(signs))
    assert starts.keys() == {each.name for each in dataset.parties}


def test_other_algorithms_leave_own_rows_out() -> None:
    with_own, without = (
        fit(dataset, rounds=3, batch_size=20)
        for dataset in (made(), replace(made(), own_rows=None))
    )
    np.testing.assert_array_equal(all_weights(with_own), all_weights(without))


def test_own_rows_that_do_not_fit_are_refused() -> None:
    dataset = made()
    assert dataset.own_rows is not None
    damaged = dataset.own_rows.features.copy()
    damaged[3, 1] = np.nan
    for own in (
        replace(dataset.own_rows, features=damaged),
        replace(dataset.own_rows, features=damaged[:, 1:]),
        replace(dataset.own_rows, labels=dataset.own_rows.labels[1:]),
        replace(dataset.own_rows, labels=dataset.own_rows.labels + 2),
    ):
        with pytest.raises(errors.DataError, match="own"):
            run(dataset=replace(dataset, own_rows=own))


@pytest.mark.usefixtures("clean_place")
def test_rows_of_the_label_partys_file_alone_train_and_are_not_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 2, 300)
    columns = (generator.standard_normal((300, 4)) + 1.5 * labels[:, None]).tolist()
    rows = list(enumerate(columns))
    files = {
        "bank": ["id,x,y,default", *(f"{n},{a},{b},{labels[n]}" for n, (a, b, _, _) in rows)],
        "shop": ["id,z,w", *(f"{n},{c},{d}" for n, (_, _, c, d) in rows if n % 2)],
    }
    for name, lines in files.items():
        Path(f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    ftl, network = {"units": 8}, {"preset": "lan"}
    job = write_job({"algorithm": "ftl", "rounds": 20}, "id", ftl=ftl, network=network)
    assert run_command("train", job) == 0
    assert "rows left out" not in capsys.readouterr().err
    assert load_model(Path("models/bank.safetensors")).phi is not None


@pytest.mark.parametrize("alternating", [False, True])
def test_derived_step_sizes_train(alternating: bool) -> None:
    ftl = {"units": 16, "overlap": 0.3, "alternating": alternating}
    steps: dict[str, Any] = {"learning_rate": "auto", "rounds": 30, "batch_size": 64}
    result = run(ftl, dataset=breast_cancer(), eval_every=0, **steps)
    assert result.learned
    assert result.clear_auc > 0.93


@pytest.mark.parametrize("scored", ["never", 0])
def test_a_model_that_learned_nothing_is_reported(scored: str | int) -> None:
    assert run(rounds=8, eval_every=scored).learned
    assert not run(rounds=8, eval_every=scored, learning_rate=1e-9).learned


def test_one_row_in_common_is_too_few_and_no_whole() -> None:
    with pytest.raises(errors.ConfigError, match=r"1 means a single row"):
        job_of(**settings({"overlap": 1})).section(FtlSettings, "ftl")
    assert job_of(**settings({"overlap": 1.0})).section(FtlSettings, "ftl").overlap == 1.0


def test_scores_that_leave_float64_end_training_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early_stopping, "LARGEST_WEIGHT", np.inf)
    with pytest.raises(errors.TrainingDiverged, match="training diverged"):
        run({"activation": "relu"}, learning_rate=1e160, local_steps=1, rounds=3, eval_every=1)


# ------------------------------------------------------------------------- under encryption


@pytest.mark.parametrize(
    ("scheme", "alternating", "activation", "more"),
    [
        ("bfv", False, "tanh", {}),
        ("bfv", False, "tanh", {"learning_rate": "auto"}),
        ("bfv", True, "sigmoid", {}),
        ("paillier", False, "sigmoid", {}),
        ("paillier", True, "tanh", {}),
        ("ckks", False, "tanh", {}),
    ],
)
def test_encryption_changes_nothing(
    scheme: str, alternating: bool, activation: str, more: dict[str, Any]
) -> None:
    ftl = {"alternating": alternating, "activation": activation}
    steps = {"local_steps": 5, "l2": 0.01, "proximal": 0.1, "rounds": 6, **more}
    twin = run(ftl, local_rule="gauss-newton", eval_every=3, **steps)
    found = run(ftl, scheme, eval_every=3, **steps)
    assert np.abs(all_weights(found) - all_weights(twin)).max() <= PARAMETERS
    for score, expected in zip(found.scores, twin.scores, strict=True):
        assert score.auc == pytest.approx(expected.auc, abs=0.03)


@pytest.mark.parametrize("alternating", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_homomorphic_work_is_the_same_whatever_q(alternating: bool) -> None:
    results = [run({"alternating": alternating}, "bfv", local_steps=q) for q in (1, 10)]
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


PER_STEP = {"scheme": "bfv", "hide": "both", "he_per_step": True}


@pytest.mark.parametrize("alternating", [False, True])
def test_with_a_product_a_step_parties_take_the_steps_of_clear(alternating: bool) -> None:
    more = settings({"alternating": alternating}, local_steps=5, l2=0.01)
    found, twin = fit(made(), PER_STEP, **more), fit(made(), **more)
    assert np.abs(all_weights(found) - all_weights(twin)).max() <= PARAMETERS
    rounded = run({"alternating": alternating}, "bfv", local_steps=5, l2=0.01)
    assert np.abs(all_weights(rounded) - all_weights(twin)).max() > 10 * PARAMETERS


def test_nothing_travels_in_clear_but_exponents_and_masked_products() -> None:
    result = run(None, "bfv", eval_every=0)
    for name, view in result.views.items():
        kinds = {type(e.message) for e in view.received() if e.message.stage == "round"}
        assert kinds == {EncryptedComponents, EncryptedProducts, DecryptedProducts}
        of_scoring = {type(each.message) for each in view.received()} & {
            LabelComponents, FeatureComponents, ScoreVector, EncryptedScores, ScoreMasks
        }  # fmt: skip
        assert of_scoring == ({EncryptedScores, ScoreMasks} if name == "bank" else set())
        # Its own gradient of every round, which is its model's.
        learned = view.learned()
        assert len(learned) == result.rounds
        assert {e.values.shape for e in learned} == {result.outcomes[name].model.weights.shape}


def test_decrypted_products_have_fresh_masks() -> None:
    one, other = (run(None, "bfv", rounds=1).views for _ in range(2))
    for name in ("bank", "shop"):
        assert not (one[name].decrypted()[0].values == other[name].decrypted()[0].values).any()


def test_products_of_every_local_step_have_fresh_masks() -> None:
    """Steps too small to change a weight repeat a product exactly, but not what is decrypted."""
    more = settings(None, rounds=1, local_steps=3, learning_rate=1e-12, eval_every=0)
    for view in fit(made(), PER_STEP, **more).views.values():
        values = [each.values for each in view.decrypted()[:3]]  # the label party scores at the end
        assert len({each.shape for each in values}) == 1
        for one, other in combinations(values, 2):
            assert not (one == other).any()


@pytest.mark.parametrize("batch_size", [20, "full"])
def test_a_job_whose_gradients_tell_labels_is_refused(
    tmp_path: Path, batch_size: int | str
) -> None:
    guarded = Environment(keys=SmallKeys(), guard_directory=tmp_path)
    begin = partial(run, {"overlap": 300}, "bfv", guarded, dataset=breast_cancer(), rounds=1)
    with pytest.raises(errors.LabelLeakRefused, match="gradients of batches, networks") as refused:
        begin(eval_every=0, batch_size=batch_size)
    assert "train linear models" not in str(refused.value)
    allowed = begin(eval_every=0, batch_size=batch_size, allow_label_leak=True)
    assert allowed.label_guard_ratio is not None
    assert allowed.label_guard_ratio > 0


def test_scorings_count_as_rows_that_are_shown(tmp_path: Path) -> None:
    environment = Environment(keys=SmallKeys(), guard_directory=tmp_path)
    with pytest.raises(errors.FeatureLeakRefused, match="2 scorings"):
        run(None, "bfv", environment, eval_every=2, allow_label_leak=True)
    run(None, "bfv", environment, eval_every=0, allow_label_leak=True)


def test_every_visit_of_a_batch_counts() -> None:
    once, twice = (
        run(None, "bfv", batch_size="full", rounds=rounds).label_guard_ratio for rounds in (1, 2)
    )
    assert once is not None
    assert twice == pytest.approx(2 * once)


def test_a_session_goes_on_with_new_keys(tmp_path: Path) -> None:
    kept = Kept()
    keeping = Environment(keys=SmallKeys(), keep_state=kept)
    whole = run(None, "bfv", keeping, allow_label_leak=True)
    resumed = Environment(keys=SmallKeys(), resume=kept[2], guard_directory=tmp_path)
    rest = run(None, "bfv", resumed, allow_label_leak=True)
    assert rest.label_guard_ratio == whole.label_guard_ratio
    np.testing.assert_array_equal(all_weights(rest), all_weights(whole))


def test_products_without_room_are_refused() -> None:
    with pytest.raises(errors.RangeExceeded):
        run({"alignment": 1e9}, "bfv")


# ------------------------------------------------------------------------------ with noise


def noisy(multiplier: float, **more: Any) -> TrainingResult:  # noqa: ANN401
    privacy = {"noise_multiplier": multiplier, "clip": 1.0, "noise_seed": 3}
    return run(None, "dp", privacy=privacy, **{"rounds": 3, **more})


def test_without_noise_it_is_plain() -> None:
    twin, found = run(rounds=3), noisy(0.0)
    np.testing.assert_allclose(all_weights(found), all_weights(twin), rtol=0, atol=1e-12)


def test_units_and_phi_have_the_noise_that_is_accounted_for() -> None:
    # At a step size of nothing all rounds give the same, but for noise.
    still: dict[str, Any] = {"learning_rate": 1e-300, "batch_size": "full", "rounds": 400}
    result, exact = noisy(0.5, **still), noisy(0.0, **{**still, "rounds": 1})
    units = np.stack([each.rows for each in received(result, "bank", FeatureComponents)])
    phis = np.stack([each.phi for each in received(result, "shop", LabelComponents)])
    (true_units,) = received(exact, "bank", FeatureComponents)
    (true_phi,) = received(exact, "shop", LabelComponents)
    rows = 40 + 17
    for found, truth, deviation in (
        (units, true_units.rows, 0.5 * 2 * np.sqrt(UNITS)),
        (phis, true_phi.phi, 0.5 * 2 * np.sqrt(UNITS) / rows),
    ):
        spread = (found - truth).std()
        assert 0.9 * deviation < spread < 1.1 * deviation
    # Rows of the label party: ½ y Φ + 2γ u, from the same noisy Φ and from noisy u.
    message = received(result, "shop", LabelComponents)[0]
    signs = 2.0 * made().train_labels - 1
    of_units = (message.rows - np.outer(signs / 2, message.phi)) / (2 * GAMMA)
    assert 0.7 < of_units.std() / (0.5 * 2 * np.sqrt(UNITS)) < 1.3


def test_phi_counts_in_every_round_and_scorings_take_none_of_it() -> None:
    result = noisy(2.0, rounds=6, eval_every=2)
    visits = np.zeros(40, int)
    for index in range(6):
        visits[result.plan.schedule.batch(index)] += 1
    assert result.privacy is not None
    assert result.privacy.releases == visits.max() + 6
    assert result.privacy.held_out_releases == 3
    assert result.privacy.epsilon_end_to_end is None
    assert result.privacy.epsilon_label is None
    given = [each.phi for each in received(result, "shop", LabelComponents)]
    scored = [each.phi for each in received(result, "shop", ScoreVector)]
    for index, phi in zip((1, 3, 5), scored, strict=True):
        np.testing.assert_array_equal(phi, given[index])
    first, second, _ = (each.values for each in received(result, "bank", HeldOutPredictions))
    assert (first != second).all()


def test_units_of_held_out_rows_have_the_noise_before_they_are_scored() -> None:
    still: dict[str, Any] = {"learning_rate": 1e-300, "batch_size": "full", "rounds": 60}
    result = noisy(0.5, **still, eval_every=1)
    units, noise = result.outcomes["shop"].held_out, []
    vectors = received(result, "shop", ScoreVector)
    for vector, given in zip(vectors, received(result, "bank", HeldOutPredictions), strict=True):
        beyond = given.values - units @ vector.phi[:, None]
        noise.append(beyond / np.linalg.norm(vector.phi))
    assert 0.9 < np.std(noise) / (0.5 * 2 * np.sqrt(UNITS)) < 1.1


def test_a_budget_of_releases_is_kept_with_phi_among_them() -> None:
    budget = {"release_budget": 8.0, "clip": 1.0}
    of_all = settings(batch_size="full", rounds=10, privacy=budget)
    account = plan_for(job_of("dp", **of_all), made()).account
    assert account is not None
    assert 7.9 < account.after(10).epsilon_release <= 8.0  # type: ignore[operator]
    assert account.after(10).releases == 20
    with pytest.raises(errors.BudgetExhausted):
        run(None, "dp", privacy={**budget, "noise_multiplier": 1.0}, batch_size="full")
