from collections.abc import Mapping
from typing import Any

import pytest

from securevfl.auditing.judging import Immune
from securevfl.auditing.measures.scored_features import held_out
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.job import Job
from tests.unit.auditing.cells import Cells, cells_of, finding, reason

OWN, EVERY = "this job's scorings", "scored every round"
BOTH = {"scheme": "bfv", "hide": "both"}


@pytest.fixture
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test is about the job's own scorings, what-ifs need no precision."""
    monkeypatch.setattr("securevfl.auditing.measures.scored_features.WHAT_IF_ROUNDS", 10)


def measured(exchange: Mapping[str, object], parties: int = 2, **settings: object) -> Cells:
    privacy = {"noise_multiplier": 20.0, "noise_seed": 1} if exchange["scheme"] == "dp" else {}
    job = {"rounds": 3, "batch_size": "full", "learning_rate": 0.3, "local_steps": 2, **settings}
    described = Job.of(job=job, exchange=dict(exchange), privacy=privacy)
    subject = Subject(described, load("breast_cancer", parties=parties), 0)
    return cells_of(held_out(subject))


@pytest.mark.parametrize(
    ("exchange", "parties", "error", "rank"),
    [
        ({"scheme": "plain"}, 2, 1e-6, 15),
        pytest.param({"scheme": "bfv"}, 2, 1e-6, 15, marks=pytest.mark.slow),
        ({"scheme": "masked"}, 3, 1e-3, 20),
        pytest.param(
            {"scheme": "bfv", "predictions": "masked"}, 3, 1e-3, 20, marks=pytest.mark.slow
        ),
        pytest.param({**BOTH, "scores": "rows"}, 3, 1e-3, 20, marks=pytest.mark.slow),
    ],
)
def test_a_scoring_every_round_gives_the_features_of_everyone(
    exchange: dict[str, object], parties: int, error: float, rank: int
) -> None:
    loss = "taylor-logistic" if "hide" in exchange else "logistic"
    cases = measured(exchange, parties, learning_rate="auto", local_steps=None, loss=loss)
    found = finding(cases[EVERY])
    assert cases[EVERY].what_if
    assert not cases[OWN].what_if
    assert found.value < error
    assert found.detail["rank"] == found.detail["rank_of_features"] == rank
    assert found.detail["known_rows"] == rank
    assert found.detail["least_cosine"] == pytest.approx(1)
    assert found.bar > 0.5


@pytest.mark.usefixtures("_few_rounds")
def test_the_jobs_own_settings_say_how_often_it_scores() -> None:
    assert finding(measured({"scheme": "bfv"})[OWN]).detail["scorings"] == 1
    assert finding(measured({"scheme": "bfv"}, eval_every=1)[OWN]).detail["scorings"] == 3
    assert finding(measured({"scheme": "plain"})[OWN]).detail["scorings"] == 3
    ended = measured({"scheme": "bfv"}, target_auc=0.5, rounds=20)[OWN]
    assert finding(ended).detail["scorings"] < 20


@pytest.mark.usefixtures("_few_rounds")
def test_one_scoring_is_what_the_trained_model_gives_and_more_are_more() -> None:
    exact: dict[str, Any] = {"learning_rate": "auto", "local_steps": None, "rounds": 8}
    once = finding(measured({"scheme": "bfv"}, **exact)[OWN])
    assert once.detail["rank"] == 1
    assert abs(once.advantage) < 1e-6
    assert 0.3 < once.value < once.detail["own_columns"]
    often = finding(measured({"scheme": "bfv"}, **exact, eval_every=1)[OWN])
    assert often.advantage > often.margin


def test_noise_leaves_the_space_open() -> None:
    found = finding(measured({"scheme": "dp"})[EVERY])
    assert found.value > 0.4


@pytest.mark.parametrize("every", [0, 1])
def test_where_sums_over_classes_score_there_is_nothing_to_attack(every: int) -> None:
    (row,) = measured(BOTH, loss="taylor-logistic", eval_every=every).values()
    assert row.outcome == Immune("scoring shows no prediction of a row")


@pytest.mark.parametrize("parties", [2, 3])
def test_where_parameters_stay_in_shares_rows_are_opened_once_or_never(parties: int) -> None:
    rows = {"scheme": "blind", "scores": "rows"}
    (row,) = measured(rows, parties, loss="taylor-logistic").values()
    assert row.case == OWN
    assert finding(row).detail["scorings"] == finding(row).detail["rank"] == 1
    (row,) = measured({"scheme": "blind"}, parties, loss="taylor-logistic").values()
    assert row.outcome == Immune("scoring shows no prediction of a row")


def test_a_job_that_never_scores_shows_nothing() -> None:
    (row,) = measured({"scheme": "bfv"}, eval_every="never").values()
    assert row.outcome == Immune("the job never scores")


def test_networks_are_not_attacked_and_it_is_said() -> None:
    assert "networks" in reason(measured({"scheme": "plain"}, model="mlp", hidden=[3])[OWN])


def test_fewer_rows_are_scored_as_the_job_says() -> None:
    job = Job.of(job={"eval_every": 3, "target_auc": 0.9}, exchange={"scheme": "paillier"})
    subject = Subject(job, load("breast_cancer"), 0)
    for each in (subject, subject.with_rows(100)):
        assert each.scoring == {"eval_every": 3, "target_auc": 0.9}
        assert (each.job.job.eval_every, each.job.job.target_auc) == (0, None)
