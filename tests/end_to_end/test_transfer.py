"""Federated transfer learning, against the written loss and autograd."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from securevfl.arrays import IntArray
from securevfl.data.scaling import Scaling
from securevfl.data.tables import OwnRows, PartyTable, VerticalDataset, row_digests
from securevfl.job import Job
from securevfl.models.local_model import LocalModel
from securevfl.protocols.transfer.settings import settings_of
from securevfl.training import Environment, TrainingResult, train

GAMMA, UNITS = 0.05, 5
Point = dict[str, torch.Tensor]


def made(rows: int = 40, own: int = 17, test: int = 12) -> VerticalDataset:
    """Two parties with few rows in common, and rows of the label party beside."""
    generator = np.random.default_rng(41)
    labels = generator.integers(0, 2, rows + own + test)
    signs = 2.0 * labels - 1
    first, second = (
        generator.standard_normal((len(labels), columns)) + 0.6 * signs[:, None]
        for columns in (4, 3)
    )
    end = rows + own
    return VerticalDataset(
        name="made",
        parties=(
            PartyTable("shop", ("a", "b", "c"), second[:rows], second[end:]),
            PartyTable("bank", ("d", "e", "f", "g"), first[:rows], first[end:]),
        ),
        label_party="bank",
        train_labels=labels[:rows],
        test_labels=labels[end:],
        classes=2,
        standardize=True,
        row_digests=row_digests(range(rows)),
        own_rows=OwnRows(first[rows:end], labels[rows:end]),
    )


def job_of(ftl: dict[str, Any] | None = None, **settings: Any) -> Job:  # noqa: ANN401
    job = {"algorithm": "ftl", "rounds": 4, "learning_rate": 0.7, "batch_size": 20, **settings}
    return Job.of(job=job, ftl={"units": UNITS, "alignment": GAMMA, **(ftl or {})})


@dataclass
class Starts:
    """Remembers θ⁰ of every party."""

    weights: Point = field(default_factory=dict)

    def __call__(self, name: str, model: LocalModel) -> LocalModel:
        self.weights[name] = torch.tensor(model.weights)
        return model


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
        self,
        name: str,
        point: Point,
        rows: IntArray,
        *,
        steps: int,
        eta: float,
        mu: float,
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
