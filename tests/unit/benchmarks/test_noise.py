from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.benchmarks.in_one_place import train_in_one_place, tuned_in_one_place
from securevfl.benchmarks.journal import Journal
from securevfl.benchmarks.noise import SETTLED, halved, sweep, work_of
from securevfl.benchmarks.noise_jobs import NoiseSettings
from securevfl.benchmarks.tuning import tune
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job, parse_job
from securevfl.reports.rows import NoiseRow
from securevfl.reports.sweep import rounds_curve, sweep_curve, sweep_notes
from securevfl.training import train
from tests.jobs import Settings


def small(file: Job | None = None, /, *, epochs: int | None = 2, **keys: object) -> NoiseSettings:
    """Two levels and seeds on few rounds, with values of keys by their sections and names."""
    given: dict[str, Any] = {
        "fdml.own_prediction": "exact", "job.batch_size": 64, "job.learning_rate": 0.3,
        **{name.replace("__", "."): value for name, value in keys.items()},
    }  # fmt: skip
    values = {key: (value,) for key, value in given.items() if value is not None}
    return NoiseSettings.of(file, values, (0.0, 2.0), epochs, repeats=2, workers=1)


SMALL = small()
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
    own |= {"settled", "over_rounds"}
    quiet, loud = ({**row}.items() for row in rows)
    assert {key for key, value in quiet if (key, value) not in loud} <= own


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedbcd-p", "fedbcd-s"])
def test_every_algorithm_carries_noise(data: VerticalDataset, algorithm: Any) -> None:  # noqa: ANN401
    settings = small(job__algorithm=algorithm, fdml__own_prediction=None)
    found = sweep(replace(settings, noise=(0.0, 20.0), repeats=1), data)
    assert found[0]["auc_std"] is None
    assert [row["own_prediction"] for row in found] == [None, None]
    assert found[0]["auc_mean"] > found[1]["auc_mean"]


def test_both_own_predictions_are_swept_and_named(
    data: VerticalDataset, rows: list[NoiseRow]
) -> None:
    found = sweep(small(fdml__own_prediction=None), data)
    assert [(row["own_prediction"], row["noise_multiplier"]) for row in found] == [
        ("exact", 0.0), ("exact", 2.0), ("noisy", 0.0), ("noisy", 2.0),
    ]  # fmt: skip
    assert found[:2] == rows
    exact, noisy = found[1], found[3]
    assert exact["aucs"] != noisy["aucs"]
    own = {"own_prediction", "aucs", "aucs_noisy"}
    own |= {"auc_mean", "auc_std", "auc_noisy_mean", "auc_noisy_std", "settled", "over_rounds"}
    assert {key for key, value in exact.items() if value != {**noisy}[key]} <= own
    drawn = sweep_curve(found)
    series = drawn["series"]
    assert list(series) == [
        "own exact, released", "own exact, exact", "own noisy, released", "own noisy, exact",
    ]  # fmt: skip
    assert series["own noisy, exact"] == [row["auc_mean"] for row in found[2:]]
    assert series["own noisy, released"] == [row["auc_noisy_mean"] for row in found[2:]]
    over = rounds_curve(found[2:])
    assert over["x"] == halved(14)
    assert list(over["series"]) == ["z = 0", "z = 2", "exact, z = 2"]
    assert over["series"]["z = 2"][-1] == found[3]["auc_noisy_mean"]
    notes = "\n".join(sweep_notes(found))
    assert "lr, own exact: together" in notes
    assert "lr, own noisy: together" in notes


def test_a_level_is_measured_over_rounds_as_jobs_with_fewer_have_it(data: VerticalDataset) -> None:
    file = Job.of(job={"dataset": "breast_cancer", "rounds": 9, "learning_rate": 0.3})
    settings = replace(NoiseSettings.of(file, {}, (0.0, 2.0), workers=1), repeats=2)
    quiet, row = sweep(settings, data)
    assert [point["rounds"] for point in row["over_rounds"]] == halved(9) == [1, 2, 4, 9]
    for place, rounds in ((1, 2), (3, 9)):
        point = row["over_rounds"][place]
        results = [
            train(settings.job(data, "lr", seed, 2.0).with_settings(rounds=rounds), data)
            for seed in (0, 1)
        ]
        promise = results[0].privacy
        assert promise is not None
        assert point["epsilon_release"] == promise.epsilon_release
        assert point["auc_mean"] == pytest.approx(np.mean([r.clear_auc for r in results]))
        released = np.mean([r.scores[-1].auc for r in results])
        assert point["auc_noisy_mean"] == pytest.approx(released)
    assert row["auc_noisy_mean"] == row["over_rounds"][-1]["auc_noisy_mean"]
    for level in (quiet, row):
        aucs = [point["auc_noisy_mean"] for point in level["over_rounds"]]
        assert all(each < max(aucs) - SETTLED for each in aucs[: level["settled"]])
        assert aucs[level["settled"]] >= max(aucs) - SETTLED
    # Where more rounds are better by less than that, they are not worth their ε.
    assert quiet["settled"] == 2


def test_training_that_ends_by_itself_settles_before_its_rounds_are_over(
    data: VerticalDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word on rounds a job has 100, and its promise is of all of them."""
    trained: list[int] = []

    def counted(job: Job, *more: Any) -> Any:  # noqa: ANN401
        trained.append(job.job.rounds)
        return train(job, *more)

    monkeypatch.setattr("securevfl.benchmarks.noise.train", counted)
    file = Job.of(job={"dataset": "breast_cancer"})
    (row,) = sweep(replace(NoiseSettings.of(file, {}, (0.02,), workers=1), repeats=1), data)
    settled, last = row["over_rounds"][row["settled"]], row["over_rounds"][-1]
    assert (last["rounds"], row["releases"]) == (100, 100)
    assert settled["rounds"] < 50
    assert settled["epsilon_release"] < last["epsilon_release"] == row["epsilon_release"]
    told = " ".join(sweep_notes([row]))
    assert "in place of 100 rounds" in told
    assert "judge your choice by other rows" in told
    # What had ended before is not trained once more; the line in one place has all rounds.
    assert trained.count(100) == 1


def test_networks_are_compared_with_one_network_over_all_columns(data: VerticalDataset) -> None:
    keys: Settings = {"job__model": "nn", "job__hidden": 2, "job__learning_rate": None}
    settings = replace(small(**keys, epochs=1), noise=(0.0,), repeats=1)
    (row,) = sweep(settings, data)
    job = settings.job(data, "nn", 0)
    own, centralized = row["learning_rate"], row["learning_rate_centralized"]
    assert own == tune(job, data).learning_rate
    assert centralized == tuned_in_one_place(job, data)
    job = job.with_settings(learning_rate=own)
    assert row["auc_sum_in_one_place"] == train_in_one_place(job, data).auc
    job = job.with_settings(learning_rate=centralized)
    assert row["auc_centralized"] == train_in_one_place(job, data, one_model=True).auc
    assert "sum of the parties' networks" in "\n".join(sweep_notes([row]))


def test_gradient_noise_makes_the_promise_finite(data: VerticalDataset) -> None:
    settings = small(
        job__standardize=False, privacy__gradient_clip=1.0, privacy__gradient_noise_multiplier=2.0
    )
    _, loud = sweep(replace(settings, repeats=1), data)
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
        small(privacy__clip=1.0),
        replace(SMALL, seed=1),
        replace(SMALL, epochs=3),
        small(privacy__mechanism="laplace"),
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
        return work_of(NoiseSettings.of(job, {}, (0.0, 2.0)), data)

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
    ("size", "steps"),
    [(None, (3, "full")), ("full", (3, "full")), (100, (12, 100)), (999, (3, 456))],
)
def test_epochs_take_the_place_of_a_jobs_rounds(
    data: VerticalDataset, size: int | str | None, steps: tuple[int, int | str]
) -> None:
    file = Job.of(job={"dataset": "breast_cancer", "rounds": 50, "batch_size": size})
    settings = NoiseSettings.of(file, {}, (1.0,), 3)
    found = settings.job(data, "lr", 0, 1.0).job
    assert (found.rounds, found.batch_size) == steps
    assert NoiseSettings.of(file, {}, (1.0,)).job(data, "lr", 0, 1.0).job.rounds == 50


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"job__model": "svm"}, "svm"),
        ({"job__algorithm": "fedsgd"}, r"\[fdml\] is for algorithm 'fdml'"),
        ({"privacy__clip": 0.0}, "clip"),
        ({"privacy__gradient_clip": 1.0}, "gradient_noise_multiplier"),
        ({"privacy__noise_multiplier": 1.0}, "levels of --noise"),
        ({"exchange__scheme": "bfv"}, "under dp"),
        ({"job__rounds": 3}, "--epochs and --rounds"),
        ({"job__hidden": 3}, "needs model = 'mlp'"),
    ],
)
def test_settings_that_cannot_be_are_named(
    data: VerticalDataset, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        sweep(small(**keys), data)


@pytest.mark.parametrize(("noise", "said"), [((), "at least one"), ((-1.0,), "noise_multiplier")])
def test_levels_that_cannot_be_are_named(
    data: VerticalDataset, noise: tuple[float, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        sweep(replace(SMALL, noise=noise), data)


def test_only_models_and_own_predictions_have_several_values() -> None:
    for keys, said in (
        ({"privacy.clip": (1, 2)}, "privacy.clip has 2 values"),
        ({"job.model": ("nn", "mlp")}, "one lr and one nn"),
    ):
        with pytest.raises(ConfigError, match=said):
            NoiseSettings.of(None, keys, (1.0,))
    both = {"job.model": ("lr", "nn"), "job.hidden": ([4, 2],)}
    jobs = NoiseSettings.of(None, both, (1.0,)).jobs
    assert [(name, job.job.model, job.job.hidden) for name, job in jobs.items()] == [
        ("lr", "linear", None),
        ("nn", "mlp", (4, 2)),
    ]


def test_what_noise_is_compared_with_trains_as_the_job_where_sgd_in_one_place_does_not(
    data: VerticalDataset,
) -> None:
    keys: Settings = {
        "job__learning_rate": "auto",
        "job__algorithm": "fedbcd-p",
        "job__schedule": "constant",
    }
    settings = small(**keys, fdml__own_prediction=None)
    row = sweep(replace(settings, repeats=1), data)[0]
    assert row["auc_centralized"] == train(settings.job(data, "lr", 0), data).clear_auc
    assert row["learning_rate"] is None


@pytest.mark.slow
def test_the_curve_of_the_paper(real_data: Callable[..., VerticalDataset]) -> None:
    """Fig. 4 of FDML: above the best party alone for a while, then falling below."""
    a9a = real_data("a9a")
    keys: dict[str, Any] = {"job.learning_rate": (10.0,)}
    settings = NoiseSettings.of(None, keys, (0.0, 4.0, 20.0), 4, repeats=1, workers=1)
    quiet, some, much, *paper = sweep(settings, a9a)
    assert quiet["auc_mean"] > some["auc_mean"] > some["auc_local_only"] > much["auc_mean"]
    # As the paper has it, with one's own noise in the sum, it falls below much sooner.
    assert paper[0]["auc_mean"] > paper[1]["auc_mean"] > paper[2]["auc_mean"]
    assert paper[1]["auc_local_only"] > paper[1]["auc_mean"]
