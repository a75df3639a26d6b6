"""The public door, with a torch module and without one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from securevfl.errors import ConfigError
from securevfl.horizontal import Blocks, method_named, train_horizontal
from securevfl.models.flat_module import FlatModule, module_problems
from tests.quadratics import PARAMETERS, optimum, quadratics

START = np.zeros(PARAMETERS)


def test_clients_with_two_classes_each_learn_all_four_together() -> None:
    rng = np.random.default_rng(6)
    centres = 3 * np.array([[1, 1, 0], [1, -1, 0], [-1, 1, 0], [-1, -1, 0]])
    labels = rng.integers(0, 4, 600)
    inputs = (centres[labels] + rng.standard_normal((600, 3))).astype(np.float32)
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(1)
    network = FlatModule(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)))
    torch.random.set_rng_state(torch_state)
    clients = []
    for client in range(12):
        own = np.flatnonzero(np.isin(labels[:480], (client % 4, (client + 1) % 4)))[client::12]
        clients.append((inputs[own], labels[own]))
    trained = train_horizontal(
        module_problems(network, clients),
        network.weights(),
        Blocks.equal(network.sizes, 2, ["2"]),
        "fedbcgd+",
        rounds=12,
        taking_part=4,
        batch_size=10,
        epochs=2,
        score=lambda weights: network.accuracy(weights, inputs[480:], labels[480:]),
        score_every=4,
    )
    assert trained.rounds[-1].score is not None
    assert trained.rounds[-1].score > 0.85
    assert "fedbcgd+" in repr(trained)
    assert "control" in trained.learns["server"]
    assert trained.spent.rounds == 12


def test_a_target_ends_training_and_says_what_it_cost() -> None:
    problems = quadratics(8, 1)
    best = optimum(problems)
    trained = train_horizontal(
        problems,
        START,
        method="scaffold",
        rounds=300,
        taking_part=4,
        decay=1.0,
        weight_decay=0.0,
        score=lambda weights: float(-np.abs(weights - best).max()),
        target=-1e-6,
    )
    assert len(trained.rounds) < 300
    reached = trained.spent_to(-1e-6)
    assert reached == trained.spent
    assert reached is not None
    assert reached.paper_floats == 2 * PARAMETERS * reached.rounds
    assert trained.spent_to(0.0) is None


def test_what_cannot_be_trained_is_refused() -> None:
    problems = quadratics(8, 1)
    for arguments, says in (
        ({}, "'fedbcgd' needs blocks"),
        ({"method": "fedsgd"}, "method = 'fedsgd'"),
        ({"method": "fedavg", "uploads": "masked"}, "uploads = 'masked': expected Comp"),
        ({"method": "fedavg"}, "taking_part = 10: there are 8 clients"),
        ({"method": "fedavg", "taking_part": 2, "target": 1.0}, "nothing is scored"),
        ({"method": "fedavg", "taking_part": 2, "score_every": 0}, "score_every = 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            train_horizontal(problems, START, rounds=1, **arguments)


def test_ablations_are_descriptions_with_something_left_out() -> None:
    problems = quadratics(8, 1)
    weights = {
        name: train_horizontal(
            problems, START, blocks, method, rounds=4, taking_part=4, seed=2
        ).weights
        for name, method, blocks in (
            ("whole", method_named("fedbcgd"), Blocks.equal({"a": 9, "s": 3}, 2, ["s"])),
            ("no momentum", replace(method_named("fedbcgd"), momentum=0.0), None),
            ("freezing", replace(method_named("fedbcgd"), freezes=True), None),
            ("no shared", method_named("fedbcgd"), Blocks.equal({"a": 9, "s": 3}, 2)),
        )
        for blocks in [blocks or Blocks.equal({"a": 9, "s": 3}, 2, ["s"])]
    }
    for name, each in weights.items():
        assert name == "whole" or np.abs(each - weights["whole"]).max() > 1e-3
