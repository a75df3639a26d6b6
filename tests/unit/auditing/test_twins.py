"""Rotations that a party's messages cannot tell, and runs on data that are turned by them."""

from dataclasses import replace

import numpy as np
import pytest

from bench.theorem1.__main__ import Case, Theorem1Settings, cases, run_case, theorem1
from securevfl.arrays import FloatArray
from securevfl.auditing.measures.rotation import _pair, nearly_orthogonal
from securevfl.auditing.subject import Subject, scaled
from securevfl.auditing.twins import (
    MakeRotation,
    Twin,
    TwinSetting,
    compare_twins,
    fixed_columns,
    freedom,
    stabilizer_rotation,
)
from securevfl.benchmarks.progress import silent
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.neural import NeuralModel
from tests.jobs import SmallKeys


def draws_of(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("outputs", [0, 1, 3])
def test_a_draw_fixes_every_fixed_column_and_nothing_else(outputs: int) -> None:
    fixed = draws_of().standard_normal((7, outputs))
    rotation = stabilizer_rotation(fixed, draws_of(1))
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(7), atol=1e-13)
    np.testing.assert_allclose(rotation @ fixed, fixed, atol=1e-13)
    unmoved = np.sum(np.abs(np.linalg.eigvals(rotation) - 1) < 1e-9)
    assert unmoved in {outputs, outputs + 1}  # an odd rotation has one axis more


START, CONSTANT = draws_of().standard_normal((5, 1)), np.eye(5)[:, -1:]


@pytest.mark.parametrize(
    ("fixed", "free"),
    [
        (np.empty((5, 0)), (5, 10)),
        (START, (4, 6)),
        (np.hstack([START, CONSTANT]), (3, 3)),
        (np.hstack([START, 2 * START]), (4, 6)),
        (np.zeros((5, 1)), (5, 10)),
        # Two columns leave one reflection and no continuum.
        (START[:2], (1, 0)),
        (np.zeros((2, 1)), (2, 1)),
        (np.eye(2), (0, 0)),
        (START[:1], (0, 0)),
    ],
)
def test_the_freedom_is_that_of_the_complement(fixed: FloatArray, free: tuple[int, int]) -> None:
    assert freedom(fixed) == free


def test_one_feature_has_no_twin() -> None:
    with pytest.raises(ConfigError, match="these data have no twin"):
        stabilizer_rotation(np.array([[2.0]]), draws_of())


def test_two_features_have_exactly_one_twin() -> None:
    start = np.array([[3.0], [4.0]])
    draws = [stabilizer_rotation(start, draws_of(seed)) for seed in range(200)]
    reflection = 2 * (start @ start.T) / 25 - np.eye(2)
    np.testing.assert_allclose(draws, np.broadcast_to(reflection, (200, 2, 2)), atol=1e-14)


def test_draws_are_spread_evenly_over_the_group() -> None:
    # E[V] = 0 for Haar draws: the mean of 2,000 has entries of deviation 1/√(3·2000) = 0.013;
    # 16 entries below five of them fail wrongly with probability below 1e-5.
    fixed = np.ones((4, 1))
    mean = np.mean([stabilizer_rotation(fixed, draws_of(seed)) for seed in range(2000)], axis=0)
    np.testing.assert_allclose(mean, np.full((4, 4), 0.25), atol=0.065)


ROUNDS = 60
SETTINGS = Theorem1Settings(rounds=ROUNDS, batch_size=114, seed=1)
FRACTION_BITS = 14


def compare(
    dataset: VerticalDataset,
    scheme: str = "plain",
    party: str = "party2",
    exchange: dict[str, object] | None = None,
    **settings: object,
) -> Twin:
    job = Job.of(
        job={"rounds": 20, "batch_size": 114, "eval_every": 7, "local_steps": 3, **settings},
        exchange={"scheme": scheme, **(exchange or {})},
    )
    return compare_twins(job, dataset, TwinSetting(party), np.random.default_rng(3))


def test_twins_of_a_job_that_shows_nobody_a_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="no other party saw a number in clear"):
        compare(
            load("breast_cancer"), "blind", batch_size="full", rounds=2, local_steps=1, eval_every=0
        )


@pytest.mark.parametrize("case", [case for case in cases() if case.holds], ids=lambda c: c.name)
def test_the_others_see_no_difference_where_theorem_1_holds(case: Case) -> None:
    twin = run_case(case, load("breast_cancer"), SETTINGS)
    assert twin.deviation <= 1e-11
    assert twin.relative_distance >= 0.1
    assert twin.orthogonality_error <= 1e-13


@pytest.mark.parametrize("case", [c for c in cases() if not c.holds], ids=lambda c: c.name)
def test_the_others_see_a_difference_where_it_must_break(case: Case) -> None:
    twin = run_case(case, load("breast_cancer"), SETTINGS)
    assert twin.deviation >= 1e-3
    assert len(twin.deviations) == ROUNDS


@pytest.mark.parametrize("parties", [2, 5])
def test_twins_hold_for_several_parties_and_for_scoring(parties: int) -> None:
    twin = compare(load("breast_cancer", parties=parties))
    assert twin.deviation <= 1e-11
    feature_parties = parties - 1
    # Predictions of every party and residuals to every other one, a round; three scorings.
    assert twin.seen == 20 * (feature_parties + feature_parties - 1) + 3 * feature_parties


def test_masked_predictions_hide_the_twin_too() -> None:
    twin = compare(load("breast_cancer", parties=3), "masked")
    assert twin.absolute_deviation <= 100 * 2.0**-32
    assert twin.seen > 0


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
@pytest.mark.parametrize("hide", ["residuals", "both"])
def test_under_encryption_only_the_rounding_of_features_shows(scheme: str, hide: str) -> None:
    loss = "taylor-logistic" if hide == "both" else "logistic"
    twin = compare(load("breast_cancer"), scheme, exchange={"hide": hide}, loss=loss)
    assert twin.absolute_deviation <= 100 * 2.0**-FRACTION_BITS
    assert twin.relative_distance >= 0.1


def test_integers_show_in_the_set_up_of_encrypted_jobs_alone() -> None:
    # That features need no fraction bits is said in clear, and a twin of 0/1 columns needs them.
    dataset = load("breast_cancer")
    other, table = scaled(Job(), dataset)[1].parties
    train, test = np.sign(table.train).clip(0), np.sign(table.test).clip(0)
    zeros_and_ones = replace(table, train=train, test=test)
    bits = replace(dataset, parties=(other, zeros_and_ones), standardize=False)
    assert "feature_fraction_bits" in compare(bits, "bfv").set_up_differs
    assert compare(bits).set_up_differs == ()
    assert compare(bits).deviation <= 1e-11


def test_ten_classes_fix_ten_columns() -> None:
    twin = compare(load("digits"), party="right", loss="multinomial")
    assert twin.deviation <= 1e-11
    assert twin.free_dimensions == 32 - 10


def test_an_unknown_party_is_named() -> None:
    with pytest.raises(ConfigError, match="party 'nobody'"):
        compare(load("breast_cancer"), party="nobody")


def test_a_network_must_begin_with_a_linear_layer() -> None:
    import torch  # noqa: PLC0415

    model = NeuralModel(torch.nn.Sequential(torch.nn.Conv1d(1, 1, 3)))
    with pytest.raises(ConfigError, match="does not begin with a linear layer"):
        fixed_columns(model, 4)


def test_the_benchmark_gives_a_row_for_every_case() -> None:
    rows = list(theorem1(Theorem1Settings(rounds=2, batch_size=228), silent))
    assert [row["case"] for row in rows] == [case.name for case in cases()]
    assert {row["expected"] for row in rows} == {"holds", "breaks"}


@pytest.mark.parametrize(
    ("rotation", "within"), [(stabilizer_rotation, True), (nearly_orthogonal, False)]
)
def test_fixed_point_allows_what_moved_features_do_and_no_other_rotation(
    rotation: MakeRotation, within: bool
) -> None:
    subject = Subject(
        Job.of(exchange={"scheme": "bfv"}), load("breast_cancer"), seed=0, keys=SmallKeys()
    )
    finding = _pair(subject, TwinSetting(subject.feature_party, rotation=rotation))
    assert finding.within == within
