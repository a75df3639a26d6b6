"""Whose labels a job is about: people under other ids are known, others under theirs are not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.job import Job
from securevfl.protocols.guards import label_guard
from securevfl.protocols.guards.person_record import PersonRecord
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import breast_cancer, picked
from tests.made_data import dataset_of

FEWER = slice(1, None)


def run(
    guard: Path,
    dataset: VerticalDataset,
    hide: str = "residuals",
    *,
    named: str = "",
    **settings: Any,  # noqa: ANN401
) -> TrainingResult:
    """Two rounds of full batches; `named` is the label party's population."""
    common = {"rounds": 2, "eval_every": "never", "allow_feature_leak": True}
    parties = []
    if named:
        roles = ["label" if t.name == dataset.label_party else "feature" for t in dataset.parties]
        names = [table.name for table in dataset.parties]
        parties = [{"name": n, "role": r} for n, r in zip(names, roles, strict=True)]
        parties[roles.index("label")]["population"] = named
    job = Job.of(
        job={**common, **settings}, exchange={"scheme": "bfv", "hide": hide}, party=parties
    )
    return train(job, dataset, Environment(guard_directory=guard))


def populations(guard: Path, path: str = "labels.safetensors") -> list[tuple[str, int]]:
    record = PersonRecord.load(guard / path)
    return [
        (each.name, int(np.count_nonzero(record.of == number)))
        for number, each in enumerate(record.populations)
    ]


def from_elsewhere(dataset: VerticalDataset, source: str, *, new_ids: bool) -> VerticalDataset:
    """The same rows in another table, under the same ids or pseudonyms."""
    digests = dataset.row_digests
    ids = digests + np.uint64(1) if new_ids else digests
    tables = (
        replace(t, source=source, people=(ids, t.people[1]) if t.people else None)
        for t in dataset.parties
    )
    return replace(dataset, parties=tuple(tables), row_digests=ids)


def strangers(seed: int, rows: int, rare: float = 0.4) -> VerticalDataset:
    """Other people with row numbers as ids."""
    generator = np.random.default_rng(seed)
    blocks = [generator.standard_normal((rows, 3)) for _ in range(2)]
    return dataset_of(blocks, (generator.random(rows) < rare).astype(np.int64))


@pytest.mark.parametrize("new_ids", [False, True])
def test_people_are_known_in_another_table_by_id_or_by_values(
    tmp_path: Path, new_ids: bool
) -> None:
    run(tmp_path, breast_cancer())
    moved = from_elsewhere(breast_cancer(), "march.csv", new_ids=new_ids)
    said = r"job 'job' of 20.*, known as 'breast_cancer'; .* population of its own"
    with pytest.raises(LabelLeakRefused, match=said):
        run(tmp_path, picked(moved, FEWER))
    assert populations(tmp_path) == [("breast_cancer", 456)]
    run(tmp_path, moved)
    (known,) = PersonRecord.load(tmp_path / "labels.safetensors").populations
    assert (known.name, known.also) == ("breast_cancer", ["march.csv"])


def test_row_numbers_of_other_sets_are_other_people(tmp_path: Path) -> None:
    shapes = [(456, 0.37), (800, 0.1), (2000, 0.5), (300, 0.37), (5000, 0.03)]
    for number, (rows, rare) in enumerate(shapes):
        dataset = strangers(number, rows, rare)
        for seed, rounds in ((0, 2), (1, 2), (0, 3)):
            run(tmp_path, dataset, seed=seed, rounds=rounds)
        with pytest.raises(LabelLeakRefused):
            run(tmp_path, picked(dataset, FEWER))
    assert [people for _, people in populations(tmp_path)] == [rows for rows, _ in shapes]


def test_row_numbers_of_other_sets_are_other_people_of_a_feature_party(tmp_path: Path) -> None:
    """With both sides hidden it counts what gradients tell of its predictions."""
    record, sizes = "party1/predictions.safetensors", (456, 800)
    sets = [
        from_elsewhere(strangers(number, rows), f"{rows}.csv", new_ids=False)
        for number, rows in enumerate(sizes)
    ]
    for each in sets:
        run(tmp_path, each, "both", loss="taylor-logistic")
    assert [people for _, people in populations(tmp_path, record)] == list(sizes)
    # New values of the same table are of the same people.
    tables = (replace(table, train=table.train * 3.0) for table in sets[1].parties)
    run(tmp_path, replace(sets[1], parties=tuple(tables)), "both", loss="taylor-logistic")
    assert len(populations(tmp_path, record)) == len(sizes)


def test_another_target_of_the_same_people_has_a_record_of_its_own(tmp_path: Path) -> None:
    other = np.random.default_rng(1).permutation(breast_cancer().train_labels)
    run(tmp_path, breast_cancer())
    run(tmp_path, replace(breast_cancer(), train_labels=other))
    changed = np.array(other)
    changed[0] = 1 - changed[0]
    with pytest.raises(LabelLeakRefused, match="people whose labels differ over jobs: 1"):
        run(tmp_path, replace(breast_cancer(), train_labels=changed))
    # The opposite is no other target.
    run(tmp_path, replace(breast_cancer(), train_labels=1 - breast_cancer().train_labels))
    assert populations(tmp_path) == [("breast_cancer", 456), ("breast_cancer (2)", 456)]


def test_blind_is_named_to_those_alone_whom_it_takes(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused) as caught:
        run(tmp_path, strangers(0, 600), model="mlp", hidden=[3])
    assert "'blind'" not in str(caught.value)


def labelled(dataset: VerticalDataset, labels: np.ndarray) -> VerticalDataset:
    return replace(dataset, train_labels=labels)


def test_of_two_targets_the_one_that_fits_is_the_same(tmp_path: Path) -> None:
    """One label corrected, after jobs on another target and on "either of them"."""
    ours, dataset = breast_cancer().train_labels, breast_cancer()
    other = (np.random.default_rng(1).random(len(ours)) < 0.35).astype(np.int64)
    for labels in (ours, other, np.maximum(ours, other)):
        run(tmp_path, labelled(dataset, labels), allow_label_leak=True)
    corrected = np.array(ours)
    corrected[7] = 1 - corrected[7]
    with pytest.raises(LabelLeakRefused, match="smallest group in a batch that changed alike: 1,"):
        run(tmp_path, labelled(dataset, corrected))


def test_classes_under_other_numbers_are_the_same_target(tmp_path: Path) -> None:
    generator = np.random.default_rng(6)
    blocks = [generator.standard_normal((3000, 2)) for _ in range(2)]
    labels = generator.integers(0, 3, 3000)
    run(tmp_path, dataset_of(blocks, labels))
    renamed = dataset_of(blocks, np.array([1, 0, 2])[labels])
    with pytest.raises(LabelLeakRefused, match="1 rows would be in other sets"):
        run(tmp_path, picked(renamed, FEWER))


def test_a_rare_class_of_which_one_label_is_corrected_is_the_same_target(tmp_path: Path) -> None:
    dataset = strangers(0, 600)
    labels = np.zeros(600, np.int64)
    labels[:2] = 1
    run(tmp_path, labelled(dataset, labels), allow_label_leak=True)
    labels = np.roll(labels, 2)
    with pytest.raises(LabelLeakRefused, match="people whose labels differ over jobs: 4"):
        run(tmp_path, labelled(dataset, labels))


def test_labels_are_compared_all_over_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first rows alone may have nothing to do with what they were."""
    monkeypatch.setattr(label_guard, "COMPARED", 120)
    run(tmp_path, breast_cancer())
    corrected = np.array(breast_cancer().train_labels)
    corrected[:120] = np.random.default_rng(0).integers(0, 2, 120)
    with pytest.raises(LabelLeakRefused, match="people whose labels differ over jobs"):
        run(tmp_path, labelled(breast_cancer(), corrected))


def test_targets_are_known_when_their_median_passes_a_power_of_ten(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    blocks = [generator.standard_normal((801, 2)) for _ in range(2)]
    targets = generator.uniform(9.0, 11.0, 801)
    targets *= 9.999999 / np.median(targets)
    made = dataset_of(blocks, np.zeros(801, np.int64))
    dataset = replace(made, classes=0, test_labels=targets)
    run(tmp_path, labelled(dataset, targets), loss="squared")
    corrected = np.array(targets)
    corrected[np.argmin(targets)] = 12.0
    assert np.median(corrected) > 10.0
    with pytest.raises(LabelLeakRefused, match="people whose labels differ over jobs: 1"):
        run(tmp_path, labelled(dataset, corrected), loss="squared")


def test_branches_that_come_together_keep_their_histories(tmp_path: Path) -> None:
    """North and south, then both without one person of the north."""
    south, north = strangers(1, 4500), strangers(0, 4000)
    branches = [
        replace(from_elsewhere(each, name, new_ids=False), row_digests=each.row_digests + shift)
        for each, name, shift in (
            (south, "south.csv", np.uint64(0)),
            (north, "north.csv", np.uint64(1)),
        )
    ]
    for each in branches:
        run(tmp_path, each)
    less = picked(branches[1], FEWER)
    tables = tuple(
        replace(a, train=np.vstack([a.train, b.train]), source="all.csv", people=None)
        for a, b in zip(branches[0].parties, less.parties, strict=True)
    )
    both = replace(
        branches[0],
        parties=tables,
        row_digests=np.concatenate([branches[0].row_digests, less.row_digests]),
        train_labels=np.concatenate([branches[0].train_labels, less.train_labels]),
    )
    with pytest.raises(LabelLeakRefused, match="1 rows would be in other sets than all others"):
        run(tmp_path, both)


def test_a_named_population_is_kept_to_its_people(tmp_path: Path) -> None:
    run(tmp_path, breast_cancer(), named="patients")
    moved = from_elsewhere(breast_cancer(), "march.csv", new_ids=False)
    values = (replace(table, train=table.train * 3.0) for table in moved.parties)
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, picked(replace(moved, parties=tuple(values)), FEWER), named="patients")
    others = strangers(3, 456)
    others = replace(others, row_digests=breast_cancer().row_digests)
    with pytest.raises(ConfigError, match=r"population = 'patients': labels or values .* are not"):
        run(tmp_path, others, named="patients")
    run(tmp_path, others, named="others")
    # Another name does not start the count anew.
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, picked(breast_cancer(), FEWER), named="fresh")


def test_the_very_same_network_job_counts_once_and_another_start_again(tmp_path: Path) -> None:
    dataset = strangers(0, 7000, 0.5)
    network: dict[str, Any] = {"model": "mlp", "hidden": [1], "rounds": 1, "batch_size": "full"}
    for _ in range(2):
        run(tmp_path, dataset, **network)
    before = PersonRecord.load(tmp_path / "labels.safetensors")
    assert max(float(each.max()) for each in before.others.values()) < 0.005 / 4
    with pytest.raises(LabelLeakRefused, match="a network"):
        run(tmp_path, dataset, **network, seed=1)


def test_one_column_in_each_job_counts_all_columns_for_who_is_left_out(tmp_path: Path) -> None:
    """A, then A without D, each job with another column of the same peer."""
    generator = np.random.default_rng(0)
    label, _ = strangers(0, 30000, 0.5).parties
    columns = generator.standard_normal((30000, 4))
    labels = (generator.random(30000) < 0.5).astype(np.int64)

    def of(column: int) -> VerticalDataset:
        return dataset_of([label.train, columns[:, column : column + 1]], labels)

    left_out = slice(900, None)  # 200·P/v is 800 for one column
    run(tmp_path, of(0))
    run(tmp_path, picked(of(0), left_out))
    run(tmp_path, of(1))
    with pytest.raises(LabelLeakRefused, match=r"900 rows would .* fewer than 16\d\d:"):
        run(tmp_path, picked(of(1), left_out))


def test_other_code_of_a_network_is_another_job(tmp_path: Path) -> None:
    dataset = strangers(0, 6000, 0.5)
    settings: dict[str, Any] = {"rounds": 1, "eval_every": "never", "batch_size": "full"}
    job = Job.of(job={**settings, "model": "custom"}, exchange={"scheme": "bfv"})

    def module(features: int, outputs: int) -> torch.nn.Module:
        return torch.nn.Linear(features, outputs)

    modules = dict.fromkeys(("party0", "party1"), module)
    environment = Environment(guard_directory=tmp_path, modules=modules)
    train(job, dataset, environment)
    with pytest.raises(LabelLeakRefused, match="a network"):
        train(job, dataset, environment)
