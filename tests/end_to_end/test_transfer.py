"""Federated transfer learning in clear, against the written loss and autograd."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from securevfl.arrays import IntArray
from securevfl.data.scaling import Scaling
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError, TrainingDiverged
from securevfl.job import FtlSettings, Job
from securevfl.models.scores import auc
from securevfl.models.storage import load_model
from securevfl.protocols.session import early_stopping
from securevfl.protocols.transfer.objective import settings_of
from securevfl.training import Environment, TrainingResult, plan_for, save_models, train
from tests.end_to_end.commands import run as run_command
from tests.jobs import breast_cancer
from tests.transfer_data import GAMMA, Point, Starts, job_of, made


def run(job: Job, dataset: VerticalDataset) -> tuple[TrainingResult, Point]:
    starts = Starts()
    return train(job, dataset, Environment(wrap_model=starts)), starts.weights


@dataclass
class Reference:
    """The loss as it is written, in one place."""

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
            (gradient,) = torch.autograd.grad(
                self.loss(fresh["bank"], fresh["shop"], rows), weights
            )
            weights = (weights - eta * (gradient + mu * (weights - start))).detach()
        return weights

    def train(self, result: TrainingResult, point: Point) -> Point:
        plan = result.plan
        in_turns = settings_of(plan).in_turns
        for index in range(result.rounds):
            rows = plan.schedule.batch(index).copy()
            step = partial(
                self.step,
                rows=rows,
                steps=plan.rule.local_steps,
                eta=plan.step_size.at(index),
                mu=plan.rule.proximal,
            )
            if in_turns:
                for name in ("bank", "shop"):
                    point = {**point, name: step(name, point)}
            else:
                point = {name: step(name, point) for name in point}
        return point


@pytest.mark.parametrize(
    ("settings", "in_turns"),
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
    settings: dict[str, Any], in_turns: bool
) -> None:
    dataset = made()
    result, starts = run(job_of({"in_turns": in_turns}, **settings), dataset)
    expected = Reference(dataset, settings.get("l2", 0.0)).train(result, starts)
    for name, weights in expected.items():
        found = result.outcomes[name].model.weights
        assert np.abs(found - starts[name].numpy()).max() > 1e-2
        np.testing.assert_allclose(found, weights.numpy(), rtol=0, atol=1e-10)


def test_linearized_steps_start_like_exact_ones_and_then_differ() -> None:
    exact, linear = (
        [train(job_of(local_rule=rule, local_steps=steps), made()) for steps in (1, 5)]
        for rule in ("curvature", "gauss-newton")
    )
    for name, outcome in exact[0].outcomes.items():
        ours = linear[0].outcomes[name].model.weights
        np.testing.assert_allclose(ours, outcome.model.weights, rtol=0, atol=1e-12)
        apart = linear[1].outcomes[name].model.weights - exact[1].outcomes[name].model.weights
        assert np.abs(apart).max() > 1e-3


@pytest.mark.parametrize("in_turns", [False, True])
def test_a_round_takes_two_messages_and_a_scoring_two_and_a_verdict(in_turns: bool) -> None:
    result = train(job_of({"in_turns": in_turns}, eval_every=2), made())
    costs = result.costs()
    assert costs.messages == 2 * 4
    # S rows of d = 5 numbers each way and Φ, of 8 bytes; the rest is envelopes.
    assert costs.bytes_sent > 4 * 8 * 5
    assert [score.rounds for score in result.scores] == [2, 4]


def test_scores_are_of_the_other_partys_rows_by_its_columns_alone() -> None:
    dataset = made()
    result = train(job_of(), dataset)
    table = next(each for each in dataset.parties if each.name == "shop")
    phi = result.outcomes["bank"].model.phi
    assert phi is not None
    scores = result.outcomes["shop"].model.predict(table.test) @ phi[:, None]
    assert result.scores[-1].auc == pytest.approx(auc(scores, dataset.test_labels), abs=1e-12)
    assert result.clear_auc == pytest.approx(result.scores[-1].auc, abs=1e-12)


def test_saved_models_predict_what_was_scored(tmp_path: Path) -> None:
    dataset = made()
    result = train(job_of({"activation": "sigmoid"}), dataset)
    save_models(result, tmp_path)
    bank, shop = (load_model(tmp_path / f"{name}.safetensors") for name in ("bank", "shop"))
    assert shop.phi is None
    assert bank.phi is not None
    table = next(each for each in dataset.parties if each.name == "shop")
    scores = shop.predict(table.test) @ bank.phi[:, None]
    assert auc(scores, dataset.test_labels) == pytest.approx(result.clear_auc, abs=1e-12)


def test_the_overlap_is_drawn_by_who_the_rows_are() -> None:
    dataset = breast_cancer()
    taken = plan_for(job_of({"overlap": 0.1}), dataset).facts
    assert taken.rows == round(0.1 * len(dataset.train_labels))
    assert plan_for(job_of({"overlap": 77}), dataset).facts.rows == 77
    again = plan_for(job_of({"overlap": 0.1}), dataset).facts
    np.testing.assert_array_equal(taken.row_digests, again.row_digests)
    other = plan_for(job_of({"overlap": 0.1}, seed=1), dataset).facts
    assert set(other.row_digests.tolist()) != set(taken.row_digests.tolist())
    backwards = replace(
        dataset,
        parties=tuple(replace(each, train=each.train[::-1]) for each in dataset.parties),
        train_labels=dataset.train_labels[::-1],
        row_digests=dataset.row_digests[::-1],
    )
    same = plan_for(job_of({"overlap": 0.1}), backwards).facts
    assert set(same.row_digests.tolist()) == set(taken.row_digests.tolist())


def test_rows_outside_the_overlap_stay_at_the_label_party() -> None:
    dataset = breast_cancer()
    result, starts = run(job_of({"overlap": 0.2, "alignment": 0.01}, rounds=3), dataset)
    rows = result.plan.facts.rows
    # Φ of the trained layer is over all rows of the label party, scaled by all of them.
    model = result.outcomes[dataset.label_party].model
    table = next(each for each in dataset.parties if each.name == dataset.label_party)
    signs = 2.0 * dataset.train_labels - 1
    assert rows < len(signs)
    assert model.phi is not None
    np.testing.assert_allclose(model.mean, table.train.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(model.phi, signs @ model.predict(table.train) / len(signs))
    assert starts.keys() == {each.name for each in dataset.parties}


def test_other_algorithms_leave_own_rows_out() -> None:
    dataset = made()
    alone = replace(dataset, own_rows=None)
    job = Job.of(job={"algorithm": "fedbcd-p", "rounds": 3, "batch_size": 20})
    with_own, without = train(job, dataset), train(job, alone)
    for name, outcome in without.outcomes.items():
        ours = with_own.outcomes[name].model.weights
        np.testing.assert_array_equal(ours, outcome.model.weights)


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
        with pytest.raises(DataError, match="own"):
            train(job_of(), replace(dataset, own_rows=own))


def test_rows_of_the_label_partys_file_alone_train_and_are_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 2, 300)
    columns = generator.standard_normal((300, 4)) + 1.5 * labels[:, None]
    rows = list(enumerate(columns.tolist()))
    files = {
        "bank": ["id,x,y,default", *(f"{n},{a},{b},{labels[n]}" for n, (a, b, _, _) in rows)],
        "shop": ["id,z,w", *(f"{n},{c},{d}" for n, (_, _, c, d) in rows if n % 2)],
    }
    for name, lines in files.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "job.toml").write_text(
        """
        [job]
        algorithm = "ftl"
        rounds = 20
        [ftl]
        units = 8
        [network]
        preset = "lan"
        [[party]]
        name = "bank"
        role = "label"
        data = "bank.csv"
        label_column = "default"
        [[party]]
        name = "shop"
        role = "feature"
        data = "shop.csv"
        """,
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert run_command("train", "job.toml") == 0
    assert "rows left out" not in capsys.readouterr().err
    assert load_model(Path("models/bank.safetensors")).phi is not None


@pytest.mark.parametrize("in_turns", [False, True])
def test_derived_step_sizes_train(in_turns: bool) -> None:
    ftl = {"units": 16, "overlap": 0.3, "in_turns": in_turns}
    job = job_of(ftl, learning_rate="auto", rounds=30, batch_size=64, eval_every=0)
    result = train(job, breast_cancer())
    assert result.learned
    assert result.clear_auc > 0.93


@pytest.mark.parametrize("scored", ["never", 0])
def test_a_model_that_learned_nothing_is_told(scored: str | int) -> None:
    settings: dict[str, Any] = {"rounds": 8, "eval_every": scored}
    assert train(job_of(**settings), made()).learned
    assert not train(job_of(learning_rate=1e-9, **settings), made()).learned


def test_one_row_in_common_is_too_few_and_no_whole() -> None:
    with pytest.raises(ConfigError, match=r"1 is one row, which is too few"):
        job_of({"overlap": 1}).section(FtlSettings, "ftl")
    assert job_of({"overlap": 1.0}).section(FtlSettings, "ftl").overlap == 1.0


def test_scores_that_leave_float64_end_training_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early_stopping, "LARGEST_WEIGHT", np.inf)
    job = job_of({"activation": "relu"}, learning_rate=1e160, local_steps=1, rounds=3, eval_every=1)
    with pytest.raises(TrainingDiverged, match="training diverged"):
        train(job, made())
