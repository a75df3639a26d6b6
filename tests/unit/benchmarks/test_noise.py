from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from securevfl.benchmarks.in_one_place import train_in_one_place, tuned_in_one_place
from securevfl.benchmarks.journal import Journal
from securevfl.benchmarks.noise import sweep, work_of
from securevfl.benchmarks.settings.noise import NoiseSettings
from securevfl.benchmarks.tuning import tune
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError
from securevfl.job import parse_job
from securevfl.reports.rows import NoiseRow
from securevfl.reports.sweep import sweep_curve, sweep_notes

SMALL = NoiseSettings(
    noise=(0.0, 2.0),
    own_prediction=("exact",),
    epochs=2,
    batch_size=64,
    repeats=2,
    learning_rate=0.3,
    workers=1,
)
KEYS = {
    "dataset", "model", "mechanism", "noise_multiplier", "clip", "releases", "delta",
    "epsilon_release", "epsilon_end_to_end", "auc_mean", "auc_std", "auc_noisy_mean",
    "auc_noisy_std", "auc_local_only", "auc_centralized", "repeats",
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> VerticalDataset:
    return load("breast_cancer")


@pytest.fixture(scope="module")
def rows(data: VerticalDataset) -> list[NoiseRow]:
    return sweep(SMALL, data)


def test_rows_say_what_was_promised_and_what_it_cost(rows: list[NoiseRow]) -> None:
    quiet, loud = rows
    assert set(quiet) >= KEYS
    assert (quiet["noise_multiplier"], loud["noise_multiplier"]) == (0.0, 2.0)
    assert quiet["epsilon_release"] is None
    assert quiet["epsilon_end_to_end_text"] == "infinite: no noise on predictions"
    assert loud["releases"] == 2
    assert loud["epsilon_release"] == pytest.approx(3.0, abs=0.1)
    assert loud["epsilon_end_to_end"] is None
    assert "gradient steps" in loud["epsilon_end_to_end_text"]
    assert loud["auc_noisy_mean"] < loud["auc_mean"]
    assert loud["auc_noisy_std"]
    assert quiet["auc_centralized"] > quiet["auc_local_only"] > 0.9


def test_levels_share_everything_but_their_noise(rows: list[NoiseRow]) -> None:
    own = {"noise_multiplier", "epsilon_release", "epsilon_end_to_end_text", "aucs", "aucs_noisy"}
    own |= {"auc_mean", "auc_std", "auc_noisy_mean", "auc_noisy_std", "noise"}
    quiet, loud = ({**row}.items() for row in rows)
    assert {key for key, value in quiet if (key, value) not in loud} <= own


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedbcd-p", "fedbcd-s"])
def test_every_algorithm_carries_noise(data: VerticalDataset, algorithm: Any) -> None:  # noqa: ANN401
    changed = {"algorithm": algorithm, "own_prediction": (), "noise": (0.0, 20.0)}
    found = sweep(replace(SMALL, **changed, repeats=1), data)
    assert found[0]["auc_std"] is None
    assert [row["own_prediction"] for row in found] == [None, None]
    assert found[0]["auc_mean"] > found[1]["auc_mean"]


def test_both_own_predictions_are_swept_and_named(
    data: VerticalDataset, rows: list[NoiseRow]
) -> None:
    found = sweep(replace(SMALL, own_prediction=()), data)
    assert [(row["own_prediction"], row["noise_multiplier"]) for row in found] == [
        ("exact", 0.0), ("exact", 2.0), ("noisy", 0.0), ("noisy", 2.0),
    ]  # fmt: skip
    assert found[:2] == rows
    exact, noisy = found[1], found[3]
    assert exact["aucs"] != noisy["aucs"]
    own = {"own_prediction", "aucs", "aucs_noisy"}
    own |= {"auc_mean", "auc_std", "auc_noisy_mean", "auc_noisy_std"}
    assert {key for key, value in exact.items() if value != {**noisy}[key]} <= own
    drawn = sweep_curve(found)
    assert list(drawn["series"]) == ["own prediction exact", "own prediction noisy"]
    assert drawn["series"]["own prediction noisy"] == [row["auc_mean"] for row in found[2:]]
    notes = "\n".join(sweep_notes(found))
    assert "lr, own exact: together" in notes
    assert "lr, own noisy: together" in notes


def test_networks_are_compared_with_one_network_over_all_columns(data: VerticalDataset) -> None:
    settings = replace(
        SMALL, models=("nn",), hidden=2, noise=(0.0,), repeats=1, learning_rate=None, epochs=1
    )
    (row,) = sweep(settings, data)
    job = settings.job("nn", len(data.train_labels), 0, None)
    own, centralized = row["learning_rate"], row["learning_rate_centralized"]
    assert own == tune(job, data).learning_rate
    assert centralized == tuned_in_one_place(job, data)
    job = job.with_settings(learning_rate=own)
    assert row["auc_sum_in_one_place"] == train_in_one_place(job, data).auc
    job = job.with_settings(learning_rate=centralized)
    assert row["auc_centralized"] == train_in_one_place(job, data, one_model=True).auc
    assert "sum of the parties' networks" in "\n".join(sweep_notes([row]))


def test_gradient_noise_makes_the_promise_finite(data: VerticalDataset) -> None:
    settings = replace(SMALL, gradient_clip=1.0, gradient_noise=2.0, repeats=1)
    _, loud = sweep(settings, data)
    assert loud["epsilon_end_to_end"] is not None
    assert loud["epsilon_release"] is not None
    assert loud["epsilon_end_to_end"] > loud["epsilon_release"]


class Interrupted(Exception):
    pass


def test_an_interrupted_sweep_goes_on_where_it_was(
    data: VerticalDataset, rows: list[NoiseRow], tmp_path: Path
) -> None:
    def journal() -> Journal:
        return Journal(tmp_path, work_of(SMALL, data))

    def stop(what: str, done: float = 0, total: int | None = None) -> None:
        if done == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        sweep(SMALL, data, journal(), stop)
    kept = journal().done()
    assert len(kept) == 4
    started: list[float] = []
    again = sweep(SMALL, data, journal(), lambda what, done=0, total=None: started.append(done))
    assert started[0] == 4
    assert again == rows
    assert list(tmp_path.iterdir()) == []


def test_a_journal_is_about_one_piece_of_work(data: VerticalDataset, tmp_path: Path) -> None:
    journal = Journal(tmp_path, work_of(SMALL, data))
    journal.add("one", {"auc": 0.5})
    other = [
        replace(SMALL, clip=1.0),
        replace(SMALL, seed=1),
        replace(SMALL, epochs=3),
        replace(SMALL, mechanism="laplace"),
    ]
    for settings in other:
        assert Journal(tmp_path, work_of(settings, data)).done() == {}
    turned = replace(data, label_party=data.parties[1].name)
    assert turned.label_party != data.label_party
    assert Journal(tmp_path, work_of(SMALL, turned)).done() == {}
    assert Journal(tmp_path, work_of(replace(SMALL, workers=7), data)).done() == journal.done()


def test_a_journal_of_a_job_is_about_its_values_and_not_where_they_are(
    data: VerticalDataset,
) -> None:
    def work(data: VerticalDataset, text: str = "", folder: str = "here") -> dict[str, Any]:
        parties = "".join(
            f'[[party]]\nname = "{table.name}"\nrole = "{role}"\n'
            f'data = "{folder}/{table.name}.csv"\n'
            for table, role in zip(data.parties, ("label", "feature"), strict=True)
        )
        job = parse_job(f"{text}\n{parties}")
        return work_of(replace(SMALL, own_prediction=()).of_job(job, {"seed"}), data)

    assert work(data, folder="there") == work(data)
    assert work(data, "[job]\nl2 = 0.5") != work(data)
    assert work(data, "[privacy]\nclip = 0.5") != work(data)
    for split in ("train", "test"):
        first, *others = data.parties
        values = getattr(first, split).copy()
        values[0, 0] += 1.0
        changed = replace(data, parties=(replace(first, **{split: values}), *others))
        assert changed.fingerprint == data.fingerprint
        assert work(changed) != work(data)
    turned = replace(data, train_labels=1 - data.train_labels)
    assert work(turned) != work(data)


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    journal.add("one", 1)
    path = next(tmp_path.iterdir())
    path.write_text(path.read_text() + '{"task": "two", "res')
    assert journal.done() == {"one": 1}
    journal.add("three", 3)
    assert journal.done() == {"one": 1, "three": 3}


def test_a_journal_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file", {})
    with pytest.raises(DataError, match="journal"):
        journal.add("one", 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"models": ("svm",)}, "svm"),
        ({"noise": ()}, "at least one"),
        ({"algorithm": "fedsgd"}, "own-prediction"),
        ({"noise": (-1.0,)}, "noise_multiplier"),
        ({"clip": 0.0}, "clip"),
        ({"gradient_clip": 1.0}, "gradient_noise_multiplier"),
    ],
)
def test_settings_that_cannot_be_are_named(
    data: VerticalDataset, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        sweep(replace(SMALL, **changes), data)


@pytest.mark.slow
def test_the_curve_of_the_paper(real_data: Callable[..., VerticalDataset]) -> None:
    """Fig. 4 of FDML: above the best party alone for a while, then falling below."""
    a9a = real_data("a9a")
    settings = NoiseSettings(
        noise=(0.0, 4.0, 20.0), epochs=4, repeats=1, learning_rate=10.0, workers=1
    )
    quiet, some, much, *paper = sweep(settings, a9a)
    assert quiet["auc_mean"] > some["auc_mean"] > some["auc_local_only"] > much["auc_mean"]
    # As the paper has it, with one's own noise in the sum, it falls below much sooner.
    assert paper[0]["auc_mean"] > paper[1]["auc_mean"] > paper[2]["auc_mean"]
    assert paper[1]["auc_local_only"] > paper[1]["auc_mean"]
