"""X up to a rotation from exact steps on full batches: where it shows, and where it cannot."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.attacks.adversary_view import SeenRound
from securevfl.attacks.gram import ExactKnowledge, factor_from_exact_steps
from securevfl.auditing.figures import gram_error
from securevfl.auditing.measures.features import exact_knowledge, gram, label_party_rounds
from securevfl.auditing.subject import Subject
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.losses import Squared
from tests.made_data import blocks_of, dataset_of, labels_of
from tests.unit.auditing.cells import finding, reason

Seen = tuple[list[SeenRound], ExactKnowledge, FloatArray]


def made(columns: int = 5, parties: int = 2, classes: int = 2) -> VerticalDataset:
    draws = np.random.default_rng(0)
    blocks = blocks_of(draws, parties, columns=columns)
    return dataset_of(blocks, labels_of(draws, blocks, classes))


def seen(dataset: VerticalDataset, scheme: str = "plain", **settings: object) -> Seen:
    """What the label party has of a run with exact steps that does not end early, and the truth."""
    job = Job.of(job={"tolerance": 0, **settings}, exchange={"scheme": scheme})
    recording = Subject(job, dataset, seed=0).record()
    rounds = label_party_rounds(recording, "party1")
    inputs = recording.adversary("party1").inputs
    return rounds, exact_knowledge(recording, inputs.shape[1]), inputs


def error(found: Seen) -> float:
    rounds, knowledge, inputs = found
    return gram_error(factor_from_exact_steps(rounds, knowledge), inputs)


def test_one_round_more_than_columns_gives_all_of_it_and_one_less_does_not() -> None:
    dataset = made()
    assert error(seen(dataset, rounds=6)) <= 1e-10
    assert error(seen(dataset, rounds=5)) >= 0.05


@pytest.mark.parametrize(
    "settings",
    [
        {"acceleration": "none"},
        {"proximal": 0.1},
        {"l2": 0.1},
        {"l2": 0.0, "proximal": 0.1},
        {"loss": "squared"},
    ],
)
def test_it_takes_what_is_public_of_steps(settings: dict[str, Any]) -> None:
    assert error(seen(made(), rounds=20, **settings)) <= 1e-8


def test_ways_back_are_undone() -> None:
    draws = np.random.default_rng(0)
    (block,) = blocks_of(draws, 1, columns=5)
    alike = dataset_of([block] * 3, labels_of(draws, [block]))
    rounds, knowledge, inputs = seen(alike, rounds=20, loss="squared")
    assert any(decision.backtrack for decision in knowledge.decisions)
    assert error((rounds, knowledge, inputs)) <= 1e-6
    deaf = replace(
        knowledge, decisions=[replace(each, backtrack=False) for each in knowledge.decisions]
    )
    assert error((rounds, deaf, inputs)) >= 0.01


def test_classes_are_equations_each() -> None:
    dataset = made(columns=6, classes=4)
    assert error(seen(dataset, rounds=4, loss="multinomial")) <= 1e-8
    assert error(seen(dataset, rounds=2, loss="multinomial")) >= 0.05


def test_without_penalties_the_range_shows_and_no_length() -> None:
    rounds, knowledge, inputs = seen(made(), rounds=20, l2=0.0)
    factor = factor_from_exact_steps(rounds, knowledge)
    basis = np.linalg.qr(inputs)[0]
    np.testing.assert_allclose(factor @ factor.T / len(inputs), basis @ basis.T, atol=1e-9)
    assert gram_error(factor, inputs) >= 0.2


@pytest.mark.parametrize(
    "wrong", [{"l2": 0.1}, {"loss": Squared()}, {"accelerated": False}, {"proximal": 0.1}]
)
def test_who_takes_steps_for_others_finds_other_data(wrong: dict[str, Any]) -> None:
    rounds, knowledge, inputs = seen(made(), rounds=20)
    others = replace(knowledge, rule=replace(knowledge.rule, **wrong))
    assert error((rounds, others, inputs)) >= 0.05


def test_one_round_shows_no_step() -> None:
    rounds, knowledge, _ = seen(made(), rounds=2)
    with pytest.raises(ConfigError, match="no step between"):
        factor_from_exact_steps(rounds[:1], knowledge)


@pytest.mark.parametrize(
    ("columns", "rounds", "most"), [(5, 100, 1e-6), (5, 4, 1.0)], ids=["enough", "too few"]
)
def test_the_audit_of_a_job_with_nothing_set_has_a_figure(
    columns: int, rounds: int, most: float
) -> None:
    subject = Subject(Job.of(job={"rounds": rounds}), made(columns), 0, with_curves=False)
    own, longer = map(finding, gram(subject))
    assert own.value <= most
    assert longer.value <= 1e-6
    assert own.detail["rounds"] <= rounds
    assert (own.value >= 0.05) == (own.detail["rank"] < own.detail["rank_of_features"])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 40}, "minibatches"),
        ({"local_steps": 5, "batch_size": "full"}, "derived from X"),
    ],
)
def test_other_steps_that_follow_from_x_are_not_run(settings: dict[str, object], says: str) -> None:
    subject = Subject(Job.of(job=settings), made(), 0, with_curves=False)
    assert says in reason(next(iter(gram(subject))))
