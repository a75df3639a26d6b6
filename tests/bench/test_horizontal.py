"""Horizontal methods on scikit-learn's digits: few clients, few rounds."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bench.horizontal import comparison, one_run
from bench.horizontal.comparison import horizontal, journal_of
from bench.horizontal.images import load_images
from bench.horizontal.logistic import Logistic
from bench.horizontal.one_run import Task, Variant, planned_rounds, run
from bench.horizontal.rows import CHANGES, CONVEX, horizontal_page
from bench.horizontal.settings import HorizontalSettings
from securevfl.benchmarks.progress import silent
from securevfl.errors import ConfigError
from securevfl.reports.results import results

SMALL = HorizontalSettings(
    methods=("fedavg", "fedbcgd"),
    images=("digits",),
    rows=300,
    dirichlet=(0.6,),
    clients=6,
    taking_part=2,
    blocks=(2,),
    learning_rate=(0.1,),
    max_rounds=2,
    tuning_rounds=1,
    eval_every=1,
    repeats=1,
    workers=1,
)

SHARED = (120 * 84 + 84 + 84 * 10 + 10) / (62006 - 300)  # fc2 and fc3, and one channel for three


@pytest.fixture(autouse=True)
def _own_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def changed(settings: HorizontalSettings, **changes: Any) -> HorizontalSettings:  # noqa: ANN401
    return settings.model_validate({**settings.model_dump(), **changes})


def trained(settings: HorizontalSettings, method: str, blocks: int = 1) -> dict[str, Any]:
    task = Task("digits", 0.6, method, blocks, settings.learning_rate[0], 0)
    return run(settings, task, lambda _what, _done, _total: None)


def test_training_learns_and_repeats_to_what_rounding_allows() -> None:
    settings = changed(SMALL, rows=400, taking_part=3, max_rounds=10, eval_every=5, batch_size=10)
    learned = trained(settings, "fedbcgd", 3)
    assert learned["rounds"] == [5, 10]
    assert learned["accuracies"][-1] > 0.3  # a guess: 0.1
    assert learned["gradients"] == pytest.approx([5, 10], rel=0.01)
    again = trained(changed(settings, max_rounds=5), "fedbcgd", 3)
    assert again["accuracies"] == pytest.approx(learned["accuracies"][:1], abs=0.02)
    assert again["uploaded"] == pytest.approx(learned["uploaded"][:1])


@pytest.mark.parametrize(
    ("method", "counted", "share"),
    [
        ("fedavg", 1, 1),
        ("scaffold", 2, 2),
        ("fedbcgd", 0.5, 0.5 + 0.5 * SHARED),
        ("fedbcgd+", 1, 1 + SHARED),
        ("fedbcgd:unshared", 0.5, 0.5),
        ("fedpaq", 0.25 * (1 + 4 / 512), 0.25 * (1 + 4 / 512)),
        ("fedbcgd:qsgd", 0.125 * (1 + 4 / 512), 0.125 * (1 + 4 / 512 + SHARED)),
        ("top-k", 0.1 * 1.5, 0.1 * 1.5),
    ],
)
def test_uploads_are_counted_as_the_paper_does_and_truly(
    method: str, counted: float, share: float
) -> None:
    settings = changed(SMALL, rows=60, max_rounds=1)
    found = trained(settings, method, 2)
    # One channel in place of three.
    assert found["parameters"] == 62006 - 300
    assert found["counted"] == [pytest.approx(counted, rel=0.01)]
    # Messages have headers.
    assert found["uploaded"] == [pytest.approx(share, rel=0.01)]
    assert found["downloaded"] == [
        pytest.approx(2 if method in {"scaffold", "fedbcgd+"} else 1, rel=0.01)
    ]


def test_variance_reduction_takes_twice_the_gradients() -> None:
    settings = changed(SMALL, rows=60, max_rounds=1)
    assert trained(settings, "fedbcgd+:printed", 2)["gradients"] == [pytest.approx(2)]


def test_changes_of_a_method_are_those_of_figure_5() -> None:
    whole = Variant.of("fedbcgd", SMALL)
    assert Variant.of("fedbcgd:freezing", SMALL).method == replace(whole.method, freezes=True)
    assert Variant.of("fedbcgd:momentum=0.8", SMALL).method == replace(whole.method, momentum=0.8)
    assert whole.method.momentum == 0.0
    assert (whole.shared, Variant.of("fedbcgd:unshared", SMALL).shared) == (True, False)
    with pytest.raises(ConfigError, match="'fedbcgd:slow': expected qsgd, freezing"):
        Variant.of("fedbcgd:slow", SMALL)
    with pytest.raises(ConfigError, match=r"'fedsgd': expected .*, top-k, fedpaq"):
        Variant.of("fedsgd", SMALL)
    with pytest.raises(ConfigError, match="'fedavg:qsgd': qsgd is of blockwise methods"):
        Variant.of("fedavg:qsgd", SMALL)


def test_what_is_printed_and_what_is_published_stand_beside_each_other() -> None:
    published, printed = (Variant.of(text, SMALL) for text in ("fedbcgd+", "fedbcgd+:printed"))
    assert (published.method.correction, published.method.momentum) == ("scaffold", 0.45)
    assert (printed.method.correction, printed.method.momentum) == ("variance-reduced", 0.8)
    assert (printed.clip, Variant.of("scaffold:unclipped", SMALL).clip) == (None, inf)
    with pytest.raises(ConfigError, match="'fedavg:printed': expected one of"):
        Variant.of("fedavg:printed", SMALL)
    with pytest.raises(ConfigError, match="'fedbcgd:momentum=x': momentum= expects a number"):
        Variant.of("fedbcgd:momentum=x", SMALL)


def test_every_setting_of_a_run_is_that_of_its_federation() -> None:
    given = {
        **{"clients": 8, "taking_part": 4, "decay": 0.9, "weight_decay": 0.02},
        **{"clip": 3.0, "epochs": 2, "batch_size": 7},
    }
    task = Task("digits", 0.6, "fedbcgd", 2, 0.01, 5)
    settings = changed(SMALL, shared_layers=(), max_rounds=3, **given)
    found = one_run.federation_of(settings, task, {"a": 9}).settings
    assert asdict(found) == {**given, "rounds": 3, "learning_rate": 0.01, "seed": 5}


def test_a_run_ends_where_its_budget_does() -> None:
    settings = changed(SMALL, budget=20.0, max_rounds=50)
    rounds = {
        method: planned_rounds(settings, Task("digits", 0.6, method, 5, 0.1, 0))
        for method in ("fedavg", "scaffold", "fedbcgd", "fedbcgd+")
    }
    assert rounds == {"fedavg": 20, "scaffold": 10, "fedbcgd": 50, "fedbcgd+": 50}
    trial = Task("digits", 0.6, "fedavg", 1, 0.1, 0, tuning=True)
    assert planned_rounds(settings, trial) == 1
    assert planned_rounds(changed(settings, tuning_rounds=None), trial) == 20


def test_a_learning_rate_is_chosen_on_training_images_and_another_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    methods = ("fedavg", "fedpaq", "fedbcgd", "fedbcgd:qsgd")
    settings = changed(SMALL, methods=methods, learning_rate=(0.03, 0.1, 0.3), repeats=2)
    images = load_images("digits").first(300)
    told: list[tuple[Task, int]] = []

    def made_up(_settings: object, task: Task, _tell: object) -> dict[str, Any]:
        tuning_seed = settings.seed + one_run.TUNING_SEED if task.tuning else None
        scored = one_run._images("digits", 300, None, tuning_seed)
        told.append((task, len(scored.test_labels)))
        best = 0.1 if task.method == "fedavg" else 0.3
        return a_run(task.seed, [1.0 - abs(task.learning_rate - best)] if task.tuning else [0.5])

    monkeypatch.setattr(comparison, "run", made_up)
    rows = list(horizontal(settings, silent))
    assert [row["learning_rate"] for row in rows] == [0.1, 0.1, 0.3, 0.3]
    trials = [(task, scored) for task, scored in told if task.tuning]
    runs = [(task, scored) for task, scored in told if not task.tuning]
    assert len(trials) == 2 * 3  # a coding has its method's
    assert {scored for _, scored in trials} == {len(images.train) // 5}
    assert {scored for _, scored in runs} == {len(images.test)}
    assert not {task.seed for task, _ in trials} & {task.seed for task, _ in runs}


def a_run(
    seed: int, accuracies: Sequence[float], counted: float = 1.0, diverged: bool = False
) -> dict[str, Any]:
    places = range(1, len(accuracies) + 1)
    return {
        "seed": seed,
        "rounds": [5 * place for place in places],
        "accuracies": list(accuracies),
        "counted": [counted * place for place in places],
        "uploaded": [2 * counted * place for place in places],
        "downloaded": [5.0 * place for place in places],
        "gradients": [5.0 * place for place in places],
        "diverged": diverged,
        "wall_s": 1.0,
        "parameters": 100,
        "shared_parameters": 10,
    }


def test_medians_take_runs_without_the_target_as_the_longest() -> None:
    short, long, never = [0.1, 0.8], [0.1, 0.2, 0.3, 0.9], [0.1, 0.2]
    settings = changed(SMALL, target_accuracy=0.8)
    cell = ("digits", 0.6, "fedavg", 1)

    def row_of(*runs: Sequence[float]) -> dict[str, Any]:
        made = [a_run(seed, accuracies) for seed, accuracies in enumerate(runs)]
        return comparison._row(settings, cell, 0.1, made, ())

    of_all = row_of(short, long, never)
    assert (of_all["reached"], of_all["rounds_to_target"], of_all["repeats"]) == (2, 20, 3)
    assert row_of(short, never, never)["rounds_to_target"] is None
    assert row_of(short)["uploaded_to_target"] == 4
    half = a_run(0, short, counted=0.25)
    beside = comparison._row(settings, ("digits", 0.6, "fedbcgd", 5), 0.1, [half], [of_all])
    assert (beside["fewer_counted"], beside["fewer_uploaded"]) == (8, 8)
    other_split = comparison._row(settings, ("digits", 0.1, "fedbcgd", 5), 0.1, [half], [of_all])
    assert other_split["fewer_counted"] is None


def test_accuracy_at_100_rounds_is_of_the_scorings_before_it_in_runs_that_got_there() -> None:
    rising, short = [place / 100 for place in range(1, 31)], [0.9] * 19
    made = [a_run(seed, accuracies) for seed, accuracies in enumerate((rising, short))]
    row = comparison._row(changed(SMALL), ("digits", 0.6, "fedavg", 1), 0.1, made, ())
    shown = dict(CHANGES)["% at 100 rounds"]
    assert shown(row) == "18.0"
    assert shown({**row, "runs": made[1:]}) == "-"


def test_what_diverged_is_never_the_best_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = changed(SMALL, methods=("fedavg",), learning_rate=(0.1, 5.0))

    def made_up(_settings: object, task: Task, _tell: object) -> dict[str, Any]:
        fast = task.learning_rate > 1
        return a_run(task.seed, [0.9 if fast else 0.2], diverged=fast)

    monkeypatch.setattr(comparison, "run", made_up)
    assert [row["learning_rate"] for row in horizontal(settings, silent)] == [0.1]


def test_divergence_ends_a_run_and_is_told() -> None:
    settings = changed(SMALL, learning_rate=(1e6,), max_rounds=30)
    found = trained(settings, "fedavg")
    assert found["diverged"]
    row = comparison._row(settings, ("digits", 0.6, "fedavg", 1), 1e6, [found], ())
    assert [cell(row) for _, cell in CONVEX[5:]] == ["-", "-", "-", "-", "0"]
    assert (row["final_accuracy"], row["rounds"], row["rounds_to_target"]) == (0, 0, None)


def test_an_interrupt_keeps_rows_and_the_same_command_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = changed(SMALL, repeats=2)
    calls: list[Task] = []
    told: list[str] = []

    def made_up(_settings: object, task: Task, _tell: object) -> dict[str, Any]:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(task)
        return a_run(task.seed, [0.5])

    def report(what: str, done: float = 0, total: int | None = None) -> None:
        del done, total
        told.append(what)

    monkeypatch.setattr(comparison, "run", made_up)
    rows: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        rows.extend(horizontal(settings, report))
    assert [row["repeats"] for row in rows] == [2, 1]
    assert told[-1] == "1 of 4 runs"
    before = list(calls)
    calls.clear()
    told.clear()
    rows = list(horizontal(changed(settings, workers=1), report))
    assert told[0] == "going on: 3 pieces of work were done before"
    assert [row["repeats"] for row in rows] == [2, 2]
    assert len(calls) == 1
    assert calls[0] not in before
    assert journal_of(settings).done() == {}
    json.dumps(rows, allow_nan=False)


def test_a_fresh_run_forgets_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("digits", 0.6, "fedavg", 1, 0.1, 0)
    settings = changed(SMALL, methods="fedavg")
    monkeypatch.setattr(comparison, "run", lambda *_: a_run(0, [0.5]))
    for fresh, final in ((False, 0.9), (True, 0.5)):
        journal_of(settings).add(task.key, a_run(0, [0.9]))
        (row,) = horizontal(changed(settings, fresh=fresh), silent)
        assert row["final_accuracy"] == final


def test_a_method_without_blocks_has_one_row_whatever_the_blocks() -> None:
    settings = changed(SMALL, methods=("fedavg", "fedbcgd"), blocks=(1, 2))
    cells = comparison._cells(settings)
    assert [(method, blocks) for _, _, method, blocks in cells] == [
        ("fedavg", 1), ("fedbcgd", 1), ("fedbcgd", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"blocks": (3,)}, "divisor of taking_part"),
        ({"shared_layers": ("fc4",)}, "shared = 'fc4'"),
        ({"methods": ("fedsgd",)}, "'fedsgd'"),
        ({"images": ("imagenet",)}, "unknown 'imagenet'"),
        ({"learning_rate": (0.1, -1.0)}, "learning_rate = -1"),
        ({"dirichlet": ()}, "expected one of each"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    change: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "in_processes", None)  # where work begins
    with pytest.raises(ConfigError, match=told):
        next(horizontal(changed(SMALL, **change), silent))


def test_a_page_has_accuracy_over_uploads_and_rounds() -> None:
    settings = changed(SMALL, methods=("fedavg", "top-k", "fedbcgd+", "fedbcgd:qsgd"), rows=60)
    made = results(
        command="bench.horizontal",
        seed=0,
        settings=settings.model_dump(mode="json"),
        rows=list(horizontal(settings, silent)),
    )
    shown = horizontal_page(made)
    assert shown.count("<svg") == 2
    assert "models uploaded a client" in shown


LOGISTIC = changed(
    SMALL, model="logistic", shared_layers="bias", clients=10, taking_part=10, batch_size=1000
)


def test_logistic_regression_is_scored_by_the_way_to_its_optimum() -> None:
    rng = np.random.default_rng(3)
    inputs, labels = rng.standard_normal((60, 2, 2)), rng.integers(0, 3, 60)
    model = Logistic(inputs, labels, 3, 0.1)
    (problem, every) = (model.problem(np.arange(60)), np.arange(60))
    assert model.way(model.weights()) == 0.0
    assert model.objective(model.weights()) == pytest.approx(np.log(3))
    at = rng.standard_normal(15)
    for entry in range(15):
        shift = 1e-5 * np.eye(15)[entry]
        slope = (problem.loss(at + shift) - problem.loss(at - shift)) / 2e-5
        assert problem.gradient(at, every)[entry] == pytest.approx(slope, abs=1e-6)
    reference = LogisticRegression(C=1 / (0.1 * 60), fit_intercept=False, tol=1e-8)
    flat = inputs.reshape(60, 4) - inputs.reshape(60, 4).mean(0)
    reference.fit(np.c_[flat, np.ones(60)], labels)  # with a bias under L2 as well
    found = np.append(reference.coef_[:, :4].T.ravel(), reference.coef_[:, 4])
    assert model.objective(found) == pytest.approx(model.least, rel=1e-6)
    assert model.way(found) == pytest.approx(1.0, abs=1e-5)


def test_full_gradients_descend_to_the_optimum_of_logistic_regression() -> None:
    settings = changed(LOGISTIC, max_rounds=150, weight_decay=0.1, learning_rate=0.5, decay=1.0)
    assert trained(settings, "fedavg")["accuracies"][-1] == pytest.approx(1.0, abs=1e-3)
