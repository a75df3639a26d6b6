"""What a round costs: homomorphic work that does not depend on Q, trips, products a step, keys."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from securevfl.auditing.subject import Subject
from securevfl.crypto.scheme import Evaluator, KeyOwner, ProductFormat
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, as_classes, some_rows
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.job import ExchangeSettings
from securevfl.protocols.exchanges.encrypted import EncryptedStep
from securevfl.protocols.exchanges.homomorphic import (
    DecryptedProducts,
    EncryptedProducts,
    EncryptedValues,
)
from securevfl.protocols.session.gathering import Predictions
from securevfl.runtime.costs import FixedCosts
from securevfl.training import Environment, TrainingResult
from tests.jobs import (
    Settings,
    SmallKeys,
    all_weights,
    breast_cancer,
    fit,
    job_of,
    once,
    received,
    run_job,
)
from tests.made_data import dataset_of
from tests.transfer_data import FTL, made


class FormatsSeen(SmallKeys):
    def __init__(self) -> None:
        self.of_owners: list[ProductFormat] = []
        self.of_evaluators: list[ProductFormat] = []

    @override
    def owner(
        self, settings: ExchangeSettings, product_format: ProductFormat, seed: bytes
    ) -> KeyOwner:
        self.of_owners.append(product_format)
        return super().owner(settings, product_format, seed)

    @override
    def evaluator(
        self, settings: ExchangeSettings, material: bytes, product_format: ProductFormat
    ) -> Evaluator:
        self.of_evaluators.append(product_format)
        return super().evaluator(settings, material, product_format)


LABEL, FEATURE = "party1", "party2"
FIXED = Environment(
    keys=SmallKeys(),
    stopwatch=FixedCosts(
        {"local": 1e-4, "encrypt": 2e-3, "evaluate": 5e-3, "decrypt": 1e-3, "scoring": 7.0}
    ),
)
WORK = ("encryptions", "products", "decryptions")


def operations(result: TrainingResult) -> dict[str, int]:
    return {name: sum(each.operations[name] for each in result.ledgers.values()) for name in WORK}


def kinds(result: TrainingResult, party: str) -> Counter[type]:
    entries = result.views[party].received()
    return Counter(type(e.message) for e in entries if e.message.stage == "round")


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
@pytest.mark.parametrize("hide", ["residuals", "both"])
def test_homomorphic_operations_a_round_do_not_depend_on_local_steps(
    scheme: str, hide: str
) -> None:
    steps = {"rounds": 3, "batch_size": 114, "learning_rate": 0.01, "loss": "taylor-logistic"}
    exchange = {"scheme": scheme, "hide": hide}
    results = [run_job(breast_cancer(), exchange, local_steps=q, **steps) for q in (1, 5, 50)]
    counts = [operations(result) for result in results]
    assert counts[0] == counts[1] == counts[2]
    rows = sum(len(results[0].plan.schedule.batch(index)) for index in range(3))
    assert counts[0]["encryptions"] == rows * (2 if hide == "both" else 1)
    # 15 columns at the feature party; the label party has 15 and a constant one.
    assert counts[0]["products"] == counts[0]["decryptions"] == 3 * (31 if hide == "both" else 15)


def test_more_local_steps_reach_the_target_in_less_encrypted_time_at_the_same_step_size() -> None:
    """With fixed costs a section: what counts is how many encrypted rounds a run takes."""
    totals = []
    steps = {"rounds": 150, "batch_size": 64, "learning_rate": 0.05, "target_auc": 0.985}
    for local_steps in (1, 5, 10):
        result = fit(breast_cancer(), "paillier", FIXED, local_steps=local_steps, **steps)
        assert result.scores[-1].auc >= 0.985
        totals.append(result.costs().total_s)
    assert totals[0] > 2 * totals[1] > 2 * totals[2]


@pytest.mark.parametrize("scheme", ["plain", "masked", "paillier"])
def test_with_fixed_costs_a_run_repeats_to_the_bit(scheme: str) -> None:
    settings = {"rounds": 4, "batch_size": 64, "seed": 9}
    first, second = (fit(breast_cancer(3), scheme, FIXED, **settings) for _ in range(2))
    assert all_weights(first).tobytes() == all_weights(second).tobytes()
    assert first.scores == second.scores
    assert first.costs() == second.costs()
    for name, ledger in first.ledgers.items():
        other = second.ledgers[name]
        assert ledger.path == other.path
        assert (ledger.messages, ledger.bytes_sent) == (other.messages, other.bytes_sent)


@pytest.mark.parametrize("scheme", ["plain", "paillier"])
def test_scoring_takes_no_time_of_the_job(scheme: str) -> None:
    often, never = (
        fit(breast_cancer(), scheme, FIXED, rounds=6, batch_size=64, eval_every=every)
        for every in (1, 0)
    )
    assert often.costs().total_s == pytest.approx(never.costs().total_s, rel=1e-12)


def test_compute_and_communication_add_up_to_the_total() -> None:
    result = run_job(breast_cancer(), "ckks", rounds=5, batch_size=64)
    costs = result.costs()
    assert costs.compute_s + costs.communication_s == costs.total_s
    assert sum(costs.compute_by_phase_s.values()) == pytest.approx(costs.compute_s)
    last = max(sum(ledger.path.values()) for ledger in result.ledgers.values())
    assert costs.total_s + costs.setup_s == pytest.approx(last)


# --------------------------------------------------------------- one round trip a round

ROUNDS = 8
EIGHT: dict[str, Any] = {
    **{"rounds": ROUNDS, "batch_size": 64, "learning_rate": 0.3, "eval_every": 0}
}
ONE, TWO = ({"scheme": "bfv", "round_trips": trips} for trips in (1, 2))


def test_a_round_is_three_messages_and_one_round_trip() -> None:
    one, two = (once(breast_cancer(), exchange, **EIGHT) for exchange in (ONE, TWO))
    # Only the first predictions travel in clear, only the last round has none to come.
    assert kinds(one, LABEL) == {Predictions: 1, EncryptedStep: ROUNDS - 1, EncryptedProducts: 1}
    assert kinds(one, FEATURE) == {EncryptedValues: ROUNDS, DecryptedProducts: ROUNDS}
    # The first predictions' hop and the last gradient's are not shared with a neighbour.
    assert one.costs(ROUNDS).round_trips == ROUNDS + 1
    assert two.costs(ROUNDS).round_trips == 2 * ROUNDS


def test_the_label_party_sees_the_predictions_that_two_trips_send_and_uniform_products() -> None:
    one, two = (once(breast_cancer(), exchange, **EIGHT) for exchange in (ONE, TWO))
    opened = [entry.values for entry in one.views[LABEL].learned()]
    sent = [message.values for message in received(two, LABEL, Predictions)]
    assert len(opened) == ROUNDS - 1
    for sums, clear in zip(opened, sent[1:], strict=True):
        assert np.max(np.abs(sums - clear)) <= 1e-4 * np.max(np.abs(clear))
    # Masked gradients are not the gradients: top bits are uniform (false alarm 1e-6 by 5 sigma).
    masked = [entry.values.ravel() for entry in one.views[LABEL].decrypted()]
    tops = np.concatenate(masked) >> np.uint64(63)
    assert abs(float(tops.mean()) - 0.5) <= 5 * 0.5 / np.sqrt(len(tops))


@pytest.mark.parametrize(
    ("network", "batch_size", "trips"), [("intercontinental", 64, ROUNDS + 1), ("lan", 228, 16)]
)
def test_auto_takes_one_trip_on_long_lines_and_two_on_short_ones(
    network: str, batch_size: int, trips: int
) -> None:
    settings = {**EIGHT, "batch_size": batch_size, "network": {"preset": network}}
    result = fit(breast_cancer(), "bfv", Environment(), **settings)
    assert result.costs(ROUNDS).round_trips == trips


def scales(dataset: VerticalDataset) -> list[int]:
    steps: dict[str, Any] = {"rounds": 5, "batch_size": 16, "start": "zero", "eval_every": 0}
    result = run_job(dataset, ONE, learning_rate=0.3, allow_label_leak=True, **steps)
    return [message.scale for message in received(result, LABEL, EncryptedStep)]


@pytest.mark.parametrize("turned", ["all columns", "some columns"])
def test_turning_the_signs_of_columns_changes_no_scale(turned: str) -> None:
    """From θ⁰ = 0 the runs mirror each other: A, and so all that may show, is the same."""
    dataset = some_rows(breast_cancer(), 48)
    label, table = dataset.parties
    assert (label.name, table.name) == (LABEL, FEATURE) == (dataset.label_party, FEATURE)
    signs = -np.ones(len(table.columns))
    if turned == "some columns":
        signs = np.random.default_rng(7).choice([-1.0, 1.0], len(table.columns))
    mirrored = replace(table, train=table.train * signs, test=table.test * signs)
    seen = scales(dataset)
    assert len(seen) == 4
    assert scales(replace(dataset, parties=(label, mirrored))) == seen


# ------------------------------------------------------- homomorphic work in every local step

Q = 4
FEW: dict[str, Any] = {
    **{"rounds": 3, "local_steps": Q, "batch_size": 152, "learning_rate": 0.3, "eval_every": 0}
}


def per_step(scheme: str, **more: object) -> Settings:
    return {"scheme": scheme, "he_per_step": True, **more}


@pytest.mark.parametrize("predictions", ["clear", "masked"])
def test_what_crosses_grows_with_the_local_steps(predictions: str) -> None:
    for q in (1, 2, Q):
        settings = {**FEW, "local_steps": q}
        each_step = run_job(
            breast_cancer(3), per_step("paillier", predictions=predictions), **settings
        )
        a_round = run_job(
            breast_cancer(3), {"scheme": "paillier", "predictions": predictions}, **settings
        )
        assert each_step.costs().messages == 3 * 2 * (q + 1) * 2
        assert a_round.costs().messages == 3 * 4 * 2
        mine, ours = operations(each_step), operations(a_round)
        assert mine == {**ours, **{name: q * ours[name] for name in ("products", "decryptions")}}


def test_a_long_line_does_not_turn_it_into_one_round_trip() -> None:
    settings = {**FEW, "local_steps": 2, "network": {"preset": "intercontinental"}}
    for he_per_step, messages in ((True, 2 * 3), (False, 3)):
        exchange = {"scheme": "bfv", "he_per_step": he_per_step}
        result = fit(breast_cancer(), exchange, Environment(), **settings)
        assert result.costs(2).messages - result.costs(1).messages == messages


def test_an_audit_is_of_rounds_with_one_product() -> None:
    with pytest.raises(ConfigError, match="he_per_step is for benchmarks"):
        Subject(job_of(per_step("bfv"), **FEW), breast_cancer(), seed=0)


def test_ciphertexts_come_once_a_round_and_masks_are_fresh() -> None:
    result = run_job(breast_cancer(), per_step("paillier"), **FEW)
    assert kinds(result, FEATURE) == {EncryptedValues: 3, DecryptedProducts: 3 * Q}
    assert kinds(result, LABEL) == {Predictions: 3, EncryptedProducts: 3 * Q}
    masked = [each.values.ravel() for each in received(result, FEATURE, DecryptedProducts)]
    assert len(np.unique(masked)) == np.size(masked)


def test_every_product_is_sized_for_and_counted() -> None:
    seen = FormatsSeen()
    result = run_job(breast_cancer(), per_step("bfv"), Environment(keys=seen), **FEW)
    assert {fmt.rounds for fmt in (*seen.of_owners, *seen.of_evaluators)} == {3 * Q}
    a_round, each_step = (
        run_job(breast_cancer(), exchange, **{**FEW, "rounds": 1}).label_guard_ratio
        for exchange in ("bfv", per_step("bfv"))
    )
    assert a_round is not None
    assert each_step == pytest.approx(Q * a_round)
    assert result.label_guard_ratio == pytest.approx(3 * Q * a_round)


def test_transfer_learning_repeats_every_product_at_both_parties() -> None:
    seen, settings = FormatsSeen(), {**FTL, "local_steps": Q}
    found = fit(made(), per_step("bfv", hide="both"), Environment(keys=seen), **settings)
    once_a_round = fit(made(), {"scheme": "bfv", "hide": "both"}, **settings)
    mine, ours = operations(found), operations(once_a_round)
    assert mine == {**ours, **{name: Q * ours[name] for name in ("products", "decryptions")}}
    assert found.costs().messages == FTL["rounds"] * (2 + 4 * Q)
    of_rounds = (fmt for fmt in (*seen.of_owners, *seen.of_evaluators) if not fmt.opened)
    assert {fmt.rounds for fmt in of_rounds} == {FTL["rounds"] * Q}
    assert once_a_round.label_guard_ratio is not None
    assert found.label_guard_ratio == pytest.approx(Q * once_a_round.label_guard_ratio)


def test_the_guard_counts_before_the_job_what_it_would_tell(tmp_path: Path) -> None:
    """15 equations on 456 labels of variance 0.23 may be told three times, not four."""

    def run(q: int, exchange: str | Settings) -> TrainingResult:
        place = Environment(keys=SmallKeys(), guard_directory=tmp_path / f"{q} {exchange}")
        settings = {**FEW, "rounds": 1, "batch_size": "full", "local_steps": q}
        return run_job(breast_cancer(), exchange, place, **settings)

    assert run(9, "paillier").rounds == 1
    assert run(3, per_step("paillier")).rounds == 1
    with pytest.raises(LabelLeakRefused, match="he_per_step makes 9 products"):
        run(9, per_step("paillier"))


# ------------------------------------------------------------------ what keys are made for

NARROW, MIDDLE, WIDE = 2, 5, 23


def with_widths(widths: tuple[int, ...], name: str = "breast_cancer") -> VerticalDataset:
    """Three parties of so many columns, the label party first."""
    dataset = some_rows(load(name), 70)
    rows = np.hstack([table.train for table in dataset.parties])
    blocks = np.split(rows, np.cumsum(widths), axis=1)[:-1]
    return dataset_of(blocks, as_classes(dataset.train_labels), standardize=True)


OPENED = {"hide": "both", "scores": "rows"}
CASES: dict[str, tuple[dict[str, object], dict[str, Any], dict[str, int]]] = {
    "two trips": ({"scheme": "bfv", "round_trips": 2}, {}, {}),
    "one trip": ({"scheme": "bfv", "round_trips": 1}, {}, {"summands": 2, "ahead": 1}),
    "in turns": ({"scheme": "bfv"}, {"algorithm": "fedbcd-s"}, {}),
    "masked predictions": ({"scheme": "bfv", "predictions": "masked"}, {}, {}),
    "hide both": ({**OPENED, "scheme": "bfv"}, {"loss": "squared"}, {"summands": 2}),
    "paillier": ({"scheme": "paillier"}, {}, {}),
    "ckks, both": ({**OPENED, "scheme": "ckks"}, {"loss": "squared"}, {"summands": 2}),
}


@pytest.mark.parametrize(
    "widths",
    [(NARROW, MIDDLE, WIDE), (NARROW, WIDE, MIDDLE), (WIDE, NARROW, MIDDLE)],
    ids=["third widest", "second widest", "label party widest"],
)
@pytest.mark.parametrize("case", CASES)
def test_both_ends_of_every_key_are_sized_for_the_whole_job(
    case: str, widths: tuple[int, ...]
) -> None:
    exchange, settings, expected = CASES[case]
    seen, dataset = FormatsSeen(), with_widths(widths)
    result = run_job(
        dataset,
        exchange,
        Environment(keys=seen),
        **{"rounds": 3, "batch_size": 16, "eval_every": 0, "intercept": False, **settings},
    )
    schedule = result.plan.schedule
    largest_batch = max(len(schedule.batch(index)) for index in range(100))
    assert largest_batch > 16  # 70 rows in about 4 batches
    both = exchange.get("hide") == "both"
    assert (len(seen.of_owners), len(seen.of_evaluators)) == ((3, 6) if both else (1, 2))
    for fmt in (*seen.of_owners, *seen.of_evaluators):
        assert fmt == seen.of_owners[0]
        assert fmt.rounds == 3
        assert fmt.columns == WIDE + expected.get("ahead", 0) * largest_batch
        assert fmt.summands == expected.get("summands", 1)
        assert fmt.rows == largest_batch
        assert fmt.vectors == 1


@pytest.mark.parametrize(
    ("name", "widths", "settings", "expected"),
    [
        (
            "digits",
            (WIDE, NARROW, MIDDLE),
            {"batch_size": "full", "loss": "multinomial"},
            {"columns": WIDE + 1, "vectors": 10, "rows": 70},
        ),
        (
            "breast_cancer",
            (NARROW, MIDDLE, WIDE),
            {"batch_size": 16, "model": "mlp", "hidden": [3]},
            {"columns": WIDE * 3 + 3 + 3 + 1, "rounds": 3, "summands": 1},
        ),
    ],
)
def test_the_constant_column_every_output_and_a_networks_parameters_count(
    name: str, widths: tuple[int, ...], settings: Settings, expected: Settings
) -> None:
    seen, exchange = FormatsSeen(), {"scheme": "bfv", "round_trips": 2}
    steps = {"rounds": 3, "eval_every": 0, **settings}
    run_job(with_widths(widths, name), exchange, Environment(keys=seen), **steps)
    for fmt in (*seen.of_owners, *seen.of_evaluators):
        assert {field: getattr(fmt, field) for field in expected} == expected
