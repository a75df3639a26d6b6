"""A head over representations against torch alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import VerticalDataset
from securevfl.models.scores import auc
from securevfl.training import TrainingResult
from tests.headed_jobs import LINE, LOCAL, STEPS, WIDTH, made, run


def layers(kind: str, columns: int) -> nn.Module:
    """Written out once more: what a party's network is."""
    if kind == "linear":
        return nn.Linear(columns, WIDTH, bias=False)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(columns, 4), nn.ReLU(), nn.Linear(4, WIDTH), nn.ReLU())
    lines = columns // LINE
    return nn.Sequential(
        nn.Unflatten(1, (1, lines, LINE)),
        nn.Conv2d(1, 2, 3),
        nn.ReLU(),
        nn.Conv2d(2, 3, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * (lines - 4) * (LINE - 4), WIDTH),
        nn.ReLU(),
    )


class Reference:
    """FedBCD with a head in torch alone, from the start that a job drew."""

    def __init__(self, begun: TrainingResult, dataset: VerticalDataset, kind: str) -> None:
        self.names = [table.name for table in dataset.parties]
        self.rows = {t.name: torch.tensor(t.train) for t in dataset.parties}
        self.labels = torch.tensor(dataset.train_labels)
        self.classes = dataset.classes
        self.nets: dict[str, nn.Module] = {}
        for name in self.names:
            net = layers(kind, self.rows[name].shape[1]).to(torch.float64)
            saved = begun.outcomes[name].model
            if kind == "linear":
                net.load_state_dict({"weight": torch.tensor(saved.weights.T.copy())})
            else:
                assert saved.state is not None
                net.load_state_dict({k: torch.tensor(v) for k, v in saved.state.items()})
            self.nets[name] = net
        head = begun.outcomes["party0"].model.head
        assert head is not None
        self.head = nn.Linear(len(head) - 1, head.shape[1]).to(torch.float64)
        self.head.load_state_dict(
            {"weight": torch.tensor(head[:-1].T.copy()), "bias": torch.tensor(head[-1].copy())}
        )

    def loss(self, logits: torch.Tensor, rows: np.ndarray[Any, Any]) -> torch.Tensor:
        labels = self.labels[rows]
        if self.classes > 2:
            return nn.functional.cross_entropy(logits, labels)
        return nn.functional.binary_cross_entropy_with_logits(
            logits, labels[:, None].to(torch.float64)
        )

    def given(self, rows: np.ndarray[Any, Any]) -> dict[str, torch.Tensor]:
        return {n: self.nets[n](self.rows[n][rows]).detach() for n in self.names}

    def label_steps(
        self, rows: np.ndarray[Any, Any], u: Mapping[str, torch.Tensor], steps: int, eta: float
    ) -> None:
        moving = [*self.nets["party0"].parameters(), *self.head.parameters()]
        start = [each.detach().clone() for each in moving]
        for _ in range(steps):
            own = self.nets["party0"](self.rows["party0"][rows])
            logits = self.head(torch.cat([own, *(u[n] for n in self.names[1:])], dim=1))
            self.step(moving, start, self.loss(logits, rows), eta)

    def feature_steps(
        self,
        name: str,
        rows: np.ndarray[Any, Any],
        d: torch.Tensor,
        part: torch.Tensor,
        *,
        steps: int,
        eta: float,
        curvature: float,
    ) -> None:
        moving = list(self.nets[name].parameters())
        start = [each.detach().clone() for each in moving]
        before = self.nets[name](self.rows[name][rows]).detach()
        for _ in range(steps):
            now = self.nets[name](self.rows[name][rows])
            # Its gradient is d⁰ + c·(u − u⁰)θ_k, through θ_k.
            moved = (now - before) @ part.T
            bound = (d * moved).sum() + curvature / 2 * (moved**2).sum()
            self.step(moving, start, bound / len(rows), eta)

    @staticmethod
    def step(
        moving: list[nn.Parameter], start: list[torch.Tensor], loss: torch.Tensor, eta: float
    ) -> None:
        for each, begun in zip(moving, start, strict=True):
            if each.dim() > 1:
                loss = loss + STEPS["l2"] / 2 * (each**2).sum()
            loss = loss + STEPS["proximal"] / 2 * ((each - begun) ** 2).sum()
        gradients = torch.autograd.grad(loss, moving)
        with torch.no_grad():
            for each, gradient in zip(moving, gradients, strict=True):
                each.sub_(eta * gradient)

    def residuals(self, rows: np.ndarray[Any, Any], u: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits = self.head(torch.cat([u[n] for n in self.names], dim=1)).detach().requires_grad_()
        d: torch.Tensor = torch.autograd.grad(self.loss(logits, rows) * len(rows), logits)[0]
        return d

    def part(self, name: str) -> torch.Tensor:
        at = self.names.index(name) * WIDTH
        return self.head.weight.detach()[:, at : at + WIDTH].clone()

    def train(self, schedule: BatchSchedule, steps: int, *, turns: bool, frozen: bool) -> None:
        c = 0.0 if frozen else 0.25 if self.classes == 2 else 0.5
        for index in range(STEPS["rounds"]):
            rows, eta = schedule.batch(index).copy(), STEPS["learning_rate"] / np.sqrt(index + 1)
            settings: dict[str, Any] = {"steps": steps, "eta": eta}
            u = self.given(rows)
            if turns:
                self.label_steps(rows, u, **settings)
                for name in self.names[1:]:
                    told = self.residuals(rows, self.given(rows)), self.part(name)
                    self.feature_steps(name, rows, *told, **settings, curvature=c)
                continue
            d, parts = self.residuals(rows, u), {n: self.part(n) for n in self.names}
            self.label_steps(rows, u, **settings)
            for name in self.names[1:]:
                self.feature_steps(name, rows, d, parts[name], **settings, curvature=c)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "linear"])
@pytest.mark.parametrize(
    ("parties", "classes", "chosen"),
    [
        (2, 2, {"algorithm": "fedsgd"}),
        (2, 2, {"algorithm": "fedbcd-p", "local_steps": 4}),
        (3, 2, {"algorithm": "fedbcd-p", "local_steps": 3, "local_rule": "frozen"}),
        (3, 3, {"algorithm": "fedbcd-p", "local_steps": 3}),
        (2, 2, {"algorithm": "fedbcd-s", "local_steps": 3}),
        (3, 2, {"algorithm": "fedbcd-s", "local_steps": 3}),
    ],
)
def test_parties_train_what_torch_alone_trains(
    kind: str, parties: int, classes: int, chosen: dict[str, Any]
) -> None:
    dataset = made(parties, classes=classes)
    settings = {**LOCAL[kind], **chosen}
    trained = run(dataset, job=settings)
    begun = run(dataset, job={**settings, "rounds": 1, "learning_rate": 1e-300})
    reference = Reference(begun, dataset, kind)
    schedule = BatchSchedule(dataset.row_digests, STEPS["batch_size"], STEPS["seed"])
    reference.train(
        schedule,
        chosen.get("local_steps", 1),
        turns=chosen["algorithm"] == "fedbcd-s",
        frozen="local_rule" in chosen,
    )
    rows = np.arange(len(dataset.train_labels))
    u = reference.given(rows)
    logits = reference.head(torch.cat([u[n] for n in reference.names], dim=1))
    for name in reference.names[1:]:
        held_out = trained.outcomes[name].held_out
        assert np.max(np.abs(held_out - u[name].numpy())) <= 1e-10
    model = trained.outcomes["party0"].model
    parts = {name: each.held_out for name, each in trained.outcomes.items()}
    assert np.max(np.abs(model.together(parts) - logits.detach().numpy())) <= 1e-10
    assert model.head is not None
    weights = reference.head.weight.detach().numpy().T
    assert np.max(np.abs(model.head[:-1] - weights)) <= 1e-10
    begun_head = begun.outcomes["party0"].model.head
    assert begun_head is not None
    assert np.max(np.abs(model.head - begun_head)) > 1e-3
    if classes == 2:
        assert trained.scores[-1].auc == pytest.approx(
            auc(logits.detach().numpy(), dataset.test_labels), abs=1e-9
        )
