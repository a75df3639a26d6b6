"""What predictions of several jobs reveal together of training rows: counted, refused, attacked."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.errors import DataError, FeatureLeakRefused
from securevfl.job import Job
from securevfl.protocols.guards.feature_guard import FeatureGuard
from securevfl.protocols.guards.row_record import RowRecord
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.gathering import Predictions
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import Killed, breast_cancer, picked

COLUMNS, ROUNDS = 15, 8
BLIND = {"scheme": "blind"}
BOTH = {"scheme": "bfv", "hide": "both"}


def run(
    guard: Path | None,
    dataset: VerticalDataset | None = None,
    exchange: dict[str, Any] | None = None,
    watched: dict[str, Any] | None = None,
    /,
    **settings: Any,  # noqa: ANN401
) -> TrainingResult:
    """Eight rounds of exact steps under `bfv`, or something else."""
    common = {"eval_every": "never", "rounds": ROUNDS, "allow_label_leak": True}
    job = Job.of(job={**common, **settings}, exchange=exchange or {"scheme": "bfv"})
    environment = Environment(guard_directory=guard, record_views=True, **(watched or {}))
    return train(job, dataset or breast_cancer(), environment)


def trained(guard: Path) -> set[int]:
    return set(RowRecord.load(guard / "rows.safetensors").trained.tolist())


def columns_of(*results: TrainingResult) -> np.ndarray:
    """All H_B that the label party received, shape (N, rounds of all jobs)."""
    views = (each.views["party1"].received(Predictions) for each in results)
    sent = [each.message for view in views for each in view]
    return np.hstack([message.values for message in sent if isinstance(message, Predictions)])


def error_with_known_rows(shown: np.ndarray, known: int) -> float:
    """The relative error of all other rows' columns, by least squares on some that are known."""
    (table,) = (each for each in breast_cancer().parties if each.name == "party2")
    features = (table.train - table.train.mean(axis=0)) / table.train.std(axis=0)
    found = np.linalg.lstsq(shown[:known], features[:known], rcond=None)[0]
    others = features[known:]
    return float(np.linalg.norm(shown[known:] @ found - others) / np.linalg.norm(others))


def test_a_second_job_would_give_all_rows_to_who_knows_as_many_as_columns(tmp_path: Path) -> None:
    first = run(tmp_path, rounds=9)
    assert trained(tmp_path) == {first.rounds} == {9}
    said = r"job 'job' of 20..-..-.. .* 9 columns .* effective rank is 10, .* hide = 'both'"
    with pytest.raises(FeatureLeakRefused, match=said):
        run(tmp_path, rounds=9, l2=0.1)
    assert trained(tmp_path) == {9}
    # What it would have shown: the attack that the guard is there for.
    second = run(None, rounds=9, l2=0.1)
    assert error_with_known_rows(columns_of(first), COLUMNS) > 0.3
    assert error_with_known_rows(columns_of(first, second), COLUMNS) < 1e-6


def test_columns_that_hang_together_are_estimated_from_fewer(tmp_path: Path) -> None:
    """Six factors and little noise: eight of fifteen columns nearly give them all."""
    generator = np.random.default_rng(0)
    label, table = breast_cancer().parties
    factors = generator.standard_normal((456, 6)) @ generator.standard_normal((6, COLUMNS))
    train_rows = factors + 1e-3 * generator.standard_normal(factors.shape)
    correlated = replace(table, train=train_rows, test=train_rows[:113], people=None, source="")
    dataset = replace(breast_cancer(), parties=(label, correlated))
    first = run(tmp_path, dataset, rounds=4)
    with pytest.raises(FeatureLeakRefused, match="effective rank is 6,"):
        run(tmp_path, dataset, rounds=4, seed=1)
    second = run(None, dataset, rounds=4, seed=1)
    features = (train_rows - train_rows.mean(axis=0)) / train_rows.std(axis=0)

    def error(*results: TrainingResult) -> float:
        shown = columns_of(*results)
        found = np.linalg.lstsq(shown[:40], features[:40], rcond=1e-4)[0]
        return float(np.linalg.norm(shown @ found - features) / np.linalg.norm(features))

    assert error(first) > 0.3
    assert error(first, second) < 0.05


def test_the_very_same_job_shows_the_same_numbers_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    for _ in range(2):
        again = run(tmp_path)
        np.testing.assert_array_equal(columns_of(again), columns_of(first))
    assert trained(tmp_path) == {ROUNDS}
    for changed in ({"seed": 1}, {"tolerance": 1e-3}):
        with pytest.raises(FeatureLeakRefused):
            run(tmp_path, **changed)


def test_noise_of_an_exchange_shows_other_numbers_the_next_time(tmp_path: Path) -> None:
    ckks: dict[str, Any] = {"scheme": "ckks"}
    settings: dict[str, Any] = {"rounds": 6}
    run(tmp_path, None, ckks, **settings)
    with pytest.raises(FeatureLeakRefused, match="or rounds = 3, or set"):
        run(tmp_path, None, ckks, **settings)
    run(tmp_path, None, ckks, **{**settings, "rounds": 3})
    assert trained(tmp_path) == {9}


@pytest.mark.parametrize("exchange", [BOTH, BLIND])
def test_where_no_number_of_a_person_is_shown_nothing_is_counted(
    tmp_path: Path, exchange: dict[str, Any]
) -> None:
    run(tmp_path, rounds=14)
    for seed in range(2):
        run(tmp_path, None, exchange, seed=seed, loss="taylor-logistic", rounds=2)
    assert trained(tmp_path) == {14}


def test_once_a_job_has_shown_as_many_there_is_nothing_left_to_hide(tmp_path: Path) -> None:
    run(tmp_path, rounds=16, tolerance=0.0)
    for seed in range(1, 4):
        run(tmp_path, seed=seed, rounds=3)
    assert trained(tmp_path) == {16 + 9}


def swapped(dataset: VerticalDataset) -> VerticalDataset:
    """The held-out rows are trained on, and some of the others held out."""
    tables = (
        replace(table, train=table.test, test=table.train[:200], people=None)
        for table in dataset.parties
    )
    return replace(
        dataset,
        parties=tuple(tables),
        row_digests=np.arange(113, dtype=np.uint64),
        train_labels=dataset.test_labels,
        test_labels=dataset.train_labels[:200],
    )


@pytest.mark.parametrize("held_out_first", [False, True])
def test_rounds_and_scorings_of_a_row_add_up(tmp_path: Path, held_out_first: bool) -> None:
    plain = {"scheme": "plain"}
    scored: dict[str, Any] = {"eval_every": 1, "rounds": 8, "tolerance": 0.0}
    rounds: dict[str, Any] = {"rounds": 10}
    first, second = breast_cancer(), swapped(breast_cancer())
    before, after = rounds, scored
    if held_out_first:
        first, second, before, after = second, first, after, before
    run(tmp_path, first, plain, **before)
    with pytest.raises(FeatureLeakRefused, match=r"predictions of (held-out )?rows of 'party"):
        run(tmp_path, second, plain, **after)


def test_another_name_of_a_party_starts_no_count_anew(tmp_path: Path) -> None:
    run(tmp_path)
    label, table = breast_cancer().parties
    renamed = replace(breast_cancer(), parties=(label, replace(table, name="clinic")))
    with pytest.raises(FeatureLeakRefused, match="of 'clinic'"):
        run(tmp_path, renamed, l2=0.1)


def test_what_was_revealed_to_one_partner_is_hidden_from_another(tmp_path: Path) -> None:
    run(tmp_path, rounds=16, tolerance=0.0)
    run(tmp_path, seed=1, rounds=3)
    label, table = breast_cancer().parties
    insurer = replace(label, name="insurer")
    others = replace(breast_cancer(), parties=(insurer, table), label_party="insurer")
    with pytest.raises(FeatureLeakRefused):
        run(tmp_path, others, seed=2, rounds=3)


def test_opened_predictions_have_too_few_digits_to_reveal_all(tmp_path: Path) -> None:
    one_trip: dict[str, Any] = {"scheme": "bfv", "round_trips": 1}
    run(tmp_path, None, one_trip, rounds=16, tolerance=0.0)
    assert not RowRecord.load(tmp_path / "rows.safetensors").revealed.any()
    with pytest.raises(FeatureLeakRefused):
        run(tmp_path, None, one_trip, seed=1, rounds=3)


def test_held_out_rows_of_plain_may_be_revealed_by_one_job_too(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"scheme": "plain"}
    every: dict[str, Any] = {"eval_every": 1, "tolerance": 0.0}
    run(tmp_path, None, plain, rounds=18, **every)
    run(tmp_path, None, plain, seed=1, rounds=3, **every)


def test_a_start_that_nobody_scored_reveals_no_held_out_row(tmp_path: Path) -> None:
    """Fourteen scorings of rank 15, beside the one at the end; and θ⁰ in none of them."""
    every: dict[str, Any] = {"eval_every": 1, "tolerance": 0.0}
    run(tmp_path, None, {"scheme": "plain"}, rounds=15, **every)
    record = RowRecord.load(tmp_path / "rows.safetensors")
    assert not record.revealed[record.scored > 0].any()


def test_a_party_hears_no_advice_that_it_follows_already(tmp_path: Path) -> None:
    opened: dict[str, Any] = {**BOTH, "scores": "rows"}
    settings: dict[str, Any] = {"loss": "taylor-logistic", "rounds": 2, "eval_every": 0}
    run(tmp_path, rounds=9)
    with pytest.raises(FeatureLeakRefused) as caught:
        run(tmp_path, swapped(breast_cancer()), opened, **settings)
    assert "do not score" in str(caught.value)
    assert "hide = 'both'" not in str(caught.value)


def test_rounds_that_converge_leave_something_to_hide(tmp_path: Path) -> None:
    """Twenty gradient steps have twenty columns, but few directions that float64 keeps."""
    run(tmp_path, rounds=20, local_steps=1, tolerance=0.0)
    with pytest.raises(FeatureLeakRefused, match="showed the other side 20 columns"):
        run(tmp_path, seed=1, rounds=3)


def test_other_columns_of_the_same_people_have_not_been_revealed(tmp_path: Path) -> None:
    run(tmp_path, rounds=16, tolerance=0.0)
    with pytest.raises(FeatureLeakRefused):
        run(tmp_path, changed(CHANGES["a column more"]), rounds=3)


def test_a_job_counts_the_rounds_that_began_however_it_ended(tmp_path: Path) -> None:
    def stop(done: int) -> None:
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, None, None, {"progress": stop}, rounds=80)
    assert trained(tmp_path) == {3}


def test_a_record_that_cannot_be_written_does_not_hide_what_ended_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise DataError("disk full")

    def stop(_: int) -> None:
        raise Killed

    monkeypatch.setattr(FeatureGuard, "_settle", full)
    with pytest.raises(Killed):
        run(tmp_path, None, None, {"progress": stop})
    with pytest.raises(DataError, match="disk full"):
        run(tmp_path)


def test_rounds_that_a_killed_job_may_have_shown_leave_something_to_hide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After kill -9 nobody takes back the eighty rounds that were planned."""

    def stop(done: int) -> None:
        if done == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FeatureGuard, "_settle", lambda *_, **__: None)
        with pytest.raises(Killed):
            run(tmp_path, None, None, {"progress": stop}, rounds=80)
    assert trained(tmp_path) == {80}
    with pytest.raises(FeatureLeakRefused):
        run(tmp_path, seed=1, rounds=8)
    # The same job shows the same three rounds again, and those after them.
    result = run(tmp_path, rounds=80)
    assert trained(tmp_path) == {result.rounds}
    assert result.rounds > COLUMNS
    run(tmp_path, seed=1, rounds=8)


def test_a_job_of_parties_that_died_starts_again_only_if_it_may_show_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes draw other starts, so that each attempt shows other numbers."""

    def stop(done: int) -> None:
        if done == 3:
            raise Killed

    monkeypatch.setattr("securevfl.training._answer", lambda *_: None)
    monkeypatch.setattr(FeatureGuard, "_settle", lambda *_, **__: None)
    for rounds in (80, 8):
        with pytest.raises(Killed):
            run(tmp_path / str(rounds), None, None, {"progress": stop}, rounds=rounds)
    run(tmp_path / "80", rounds=80)
    with pytest.raises(FeatureLeakRefused):
        run(tmp_path / "8", rounds=8)


def test_only_its_own_attempts_let_a_job_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was interrupted early, and another job has come between."""

    def stop(done: int) -> None:
        raise Killed

    monkeypatch.setattr("securevfl.training._answer", lambda *_: None)
    for _ in range(2):
        with pytest.raises(Killed):
            run(tmp_path, None, None, {"progress": stop}, rounds=80)
    run(tmp_path, l2=0.1, rounds=7)
    with pytest.raises(FeatureLeakRefused):
        run(tmp_path, rounds=80)


def test_a_job_that_broke_off_shows_its_first_rounds_again(tmp_path: Path) -> None:
    def stop(done: int) -> None:
        if done == 3:
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            run(tmp_path, None, None, {"progress": stop})
        assert trained(tmp_path) == {3}
    run(tmp_path)
    assert trained(tmp_path) == {ROUNDS}
    run(tmp_path)
    assert trained(tmp_path) == {ROUNDS}


@pytest.mark.parametrize("resumed", [False, True])
def test_another_job_between_two_attempts_counts(tmp_path: Path, resumed: bool) -> None:
    states: dict[str, SessionState] = {}

    def keep(state: SessionState) -> None:
        if state.rounds == 1:
            states[state.party] = state
        if len(states) == 2:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, None, None, {"keep_state": keep})
    run(tmp_path, l2=0.1)
    with pytest.raises(FeatureLeakRefused):
        run(tmp_path, None, None, {"resume": states} if resumed else {})


def test_each_visit_of_a_batch_counts(tmp_path: Path) -> None:
    result = run(tmp_path, batch_size=100, tolerance=0.0)
    keys = [result.plan.schedule.batch_key(index) for index in range(ROUNDS)]
    assert trained(tmp_path) == set(map(keys.count, keys))


def test_rows_of_the_label_party_count_where_residuals_are_in_clear(tmp_path: Path) -> None:
    for scheme, parties in (("plain", 2), ("bfv", 1)):
        run(tmp_path / scheme, None, {"scheme": scheme}, rounds=4)
        record = RowRecord.load(tmp_path / scheme / "rows.safetensors")
        assert trained(tmp_path / scheme) == {4}
        assert len(record.populations) == parties
        assert len(record.digests) == 2 * 456 * parties  # values and ids


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "mlp", "hidden": [3]},
        {"model": "custom"},
        {"loss": "squared-hinge", "learning_rate": 0.1},
    ],
)
def test_networks_are_not_counted_and_all_that_may_be_linear_is(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """A module of one's own may be a single linear layer."""
    own = {"modules": dict.fromkeys(("party1", "party2"), torch.nn.Linear)}
    environment = own if settings.get("model") == "custom" else None
    run(tmp_path, None, None, environment, rounds=2, **settings)
    counts = (tmp_path / "rows.safetensors").exists()
    assert counts == (settings.get("model") != "mlp")


Change = Callable[[PartyTable], PartyTable]
CHANGES: dict[str, Change] = {
    "noise": lambda table: replace(table, train=table.train * (1 + 1e-9)),
    "pseudonyms": lambda table: replace(table, people=None, source="elsewhere"),
    "values": lambda table: replace(table, train=table.train + 7.0),
    "order of columns": lambda table: replace(
        table,
        people=None,
        source="elsewhere",
        columns=table.columns[::-1],
        train=table.train[:, ::-1],
        test=table.test[:, ::-1],
    ),
    "a column more": lambda table: replace(
        table,
        columns=(*table.columns, "sum"),
        train=np.hstack([table.train, table.train.sum(axis=1, keepdims=True)]),
        test=np.hstack([table.test, table.test.sum(axis=1, keepdims=True)]),
    ),
}


def changed(change: Change) -> VerticalDataset:
    label, table = breast_cancer().parties
    return replace(breast_cancer(), parties=(label, change(table)))


@pytest.mark.parametrize("change", CHANGES)
def test_people_are_known_by_id_or_by_values(tmp_path: Path, change: str) -> None:
    run(tmp_path)
    with pytest.raises(FeatureLeakRefused, match="of 'party2'"):
        run(tmp_path, changed(CHANGES[change]), seed=1)


def test_other_people_and_rows_with_row_numbers_alone_pass(tmp_path: Path) -> None:
    run(tmp_path, picked(breast_cancer(), slice(0, 228)))
    run(tmp_path, picked(breast_cancer(), slice(228, 456)))
    strangers = changed(
        lambda table: replace(
            table, columns=tuple(map(str, range(15))), train=table.train + 7.0, source="strangers"
        )
    )
    label, table = strangers.parties
    run(tmp_path, replace(strangers, parties=(replace(label, train=label.train * 3 - 1), table)))


def test_a_population_by_name_joins_tables_whose_values_have_all_changed(tmp_path: Path) -> None:
    def as_of(month: str, *, named: bool) -> None:
        tables = []
        for name, place in (("party1", 0), ("party2", 1)):
            table = breast_cancer().parties[place]
            moved = table.train + len(month)
            tables.append(replace(table, name=name, train=moved, source=f"{month}.csv"))
        parties: list[dict[str, Any]] = [
            {"name": "party1", "role": "label"},
            {"name": "party2", "role": "feature"},
        ]
        people = {"population": "patients"} if named else {}
        job = Job.of(
            exchange={"scheme": "plain"},
            job={"eval_every": "never", "rounds": 10},
            party=[{**each, **people} for each in parties],
        )
        dataset = replace(breast_cancer(), parties=tuple(tables))
        train(job, dataset, Environment(guard_directory=tmp_path / str(named)))

    for named in (False, True):
        as_of("may", named=named)
        if not named:
            as_of("june", named=named)
            continue
        with pytest.raises(FeatureLeakRefused):
            as_of("june", named=named)
