from dataclasses import replace

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.auditing.subject import scaled
from securevfl.auditing.twins import (
    Twin,
    TwinSetting,
    compare_twins,
    fixed_columns,
    stabilizer_rotation,
)
from securevfl.benchmarks.settings.theorem1 import Theorem1Settings
from securevfl.benchmarks.theorem1 import Case, cases, run_case, theorem1
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.neural import NeuralModel

ROUNDS = 60
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


@pytest.mark.parametrize("case", [case for case in cases() if case.holds], ids=lambda c: c.name)
def test_the_others_see_no_difference_where_theorem_1_holds(case: Case) -> None:
    twin = run_case(case, load("breast_cancer"), rounds=ROUNDS, batch_size=114, seed=1)
    assert twin.deviation <= 1e-11
    assert twin.relative_distance >= 0.1
    assert twin.orthogonality_error <= 1e-13


@pytest.mark.parametrize("case", [c for c in cases() if not c.holds], ids=lambda c: c.name)
def test_the_others_see_a_difference_where_it_must_break(case: Case) -> None:
    twin = run_case(case, load("breast_cancer"), rounds=ROUNDS, batch_size=114, seed=1)
    assert twin.deviation >= 1e-3
    assert len(twin.deviations) == ROUNDS


def test_a_first_round_does_not_tell_optimizers_apart() -> None:
    adam = next(case for case in cases() if case.name == "Adam")
    twin = run_case(adam, load("breast_cancer"), rounds=ROUNDS, batch_size=114, seed=1)
    assert twin.deviations[0] <= 1e-11


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


def test_data_of_one_column_have_no_twin() -> None:
    dataset = load("breast_cancer", parties=30)
    with pytest.raises(ConfigError, match="no twin"):
        compare(dataset)


def test_an_unknown_party_is_named() -> None:
    with pytest.raises(ConfigError, match="party 'nobody'"):
        compare(load("breast_cancer"), party="nobody")


def test_a_known_column_stays_as_it_is() -> None:
    job = Job.of(job={"rounds": 5, "batch_size": 114, "eval_every": 0})
    seen = []

    def rotation(fixed: FloatArray, generator: np.random.Generator) -> FloatArray:
        seen.append(stabilizer_rotation(fixed, generator))
        return seen[-1]

    setting = TwinSetting("party2", known=(2,), rotation=rotation)
    twin = compare_twins(job, load("breast_cancer"), setting, np.random.default_rng(0))
    assert twin.free_dimensions == 15 - 2
    np.testing.assert_allclose(seen[0][:, 2], np.eye(15)[:, 2], atol=1e-14)


def test_a_network_must_begin_with_a_linear_layer() -> None:
    import torch  # noqa: PLC0415

    model = NeuralModel(torch.nn.Sequential(torch.nn.Conv1d(1, 1, 3)))
    with pytest.raises(ConfigError, match="does not begin with a linear layer"):
        fixed_columns(model, 4)


def test_the_benchmark_gives_a_row_for_every_case() -> None:
    rows = list(theorem1(Theorem1Settings(rounds=2, batch_size=228), load("breast_cancer")))
    assert [row["case"] for row in rows] == [case.name for case in cases()]
    assert {row["expected"] for row in rows} == {"holds", "breaks"}
