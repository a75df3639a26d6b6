"""A job resolved: what it leaves open, how far steps go, and what is refused beforehand."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from securevfl.errors import BudgetExhausted, ConfigError
from securevfl.models.linear import LinearModel
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.protocols.plan import Plan, StepSize
from securevfl.protocols.session.gathering import Step
from securevfl.protocols.vertical.runner import steps_of
from tests.plans import NAMES, plan_of


def test_all_exchange_once_a_round_or_in_turns_from_the_label_party_on() -> None:
    assert list(steps_of(plan_of(parties=3), 4, alternating=False)) == [Step(4, NAMES, NAMES)]
    turns = plan_of(parties=3, job={"algorithm": "fedbcd-s"})
    steps = [step for t in range(5) for step in steps_of(turns, t, alternating=True)]
    assert [step.index for step in steps] == list(range(15))
    assert steps[6:9] == [
        Step(6, ("bank",), NAMES),
        Step(7, ("shop",), ("bank",)),
        Step(8, ("lab",), ("shop",)),
    ]


def test_step_sizes_are_constant_or_fall_with_the_root_of_rounds() -> None:
    assert [StepSize(0.6).at(t) for t in (0, 3, 8)] == [0.6, 0.6, 0.6]
    assert [StepSize(0.6, decays=True).at(t) for t in (0, 3, 8)] == pytest.approx([0.6, 0.3, 0.2])
    assert StepSize(0.6, decays=True, parties=9).at(3) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("job", "decays"),
    [
        ({}, False),
        ({"schedule": "inverse-sqrt"}, True),
        ({"algorithm": "fdml"}, True),
        ({"algorithm": "fdml", "schedule": "constant"}, False),
        ({"algorithm": "fdml", "learning_rate": "auto"}, False),
        ({"algorithm": "fdml", "learning_rate": "auto", "model": "mlp", "hidden": [2]}, True),
        ({"algorithm": "fdml", "learning_rate": "auto", "schedule": "inverse-sqrt"}, True),
    ],
)
def test_a_schedule_is_the_jobs_or_else_the_algorithms(
    job: dict[str, object], decays: bool
) -> None:
    assert plan_of(job={"learning_rate": 0.1, **job}).step_size.decays == decays


@pytest.mark.parametrize(
    ("algorithm", "steps"), [("fedsgd", 1), ("fedbcd-p", 7), ("fedbcd-s", 7), ("fdml", 1)]
)
def test_local_steps_in_force_are_the_algorithms(algorithm: str, steps: int) -> None:
    assert plan_of(job={"algorithm": algorithm, "local_steps": 7}).local_steps == steps


@pytest.mark.parametrize(
    ("local_rule", "follows"),
    [
        ("curvature", {}),
        ("frozen", {"frozen": True}),
        ("gauss-newton", {"gauss_newton": True}),
        ("exact", {"own_loss": True}),
    ],
)
def test_the_rule_of_local_steps_is_the_jobs(local_rule: str, follows: dict[str, bool]) -> None:
    network = {"model": "mlp"} if local_rule == "gauss-newton" else {}
    rule = plan_of(job={"local_rule": local_rule, "learning_rate": 0.1, **network}).rule
    usual = {"frozen": False, "gauss_newton": False, "own_loss": False}
    assert {name: getattr(rule, name) for name in usual} == {**usual, **follows}
    assert rule.curvature == (0.0 if rule.frozen else 0.25)


def test_the_largest_batch_is_known_before_it_comes() -> None:
    plan = plan_of(rows=100, job={"batch_size": 30})
    assert max(len(plan.schedule.batch(index)) for index in range(20)) == plan.most_batch_rows
    shuffled = plan_of(rows=100, job={"batch_size": 30, "sampling": "shuffle"})
    # The remainder is spread.
    assert shuffled.most_batch_rows == 34
    assert max(len(shuffled.schedule.batch(index)) for index in range(20)) == 34


def test_networks_are_those_of_the_parties_that_have_one() -> None:
    party = [
        {"name": "shop", "role": "feature", "model": "mlp", "hidden": [3]},
        {"name": "bank", "role": "label"},
    ]
    plan = plan_of(party=party)
    assert {name: network.hidden for name, network in plan.networks.items()} == {"shop": (3,)}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"job": {"algorithm": "fedbcd"}}, "algorithm = 'fedbcd': unknown; nearest is 'fedbcd-"),
        (
            {"parties": 3, "job": {"algorithm": "fdml"}, "exchange": {"predictions": "masked"}},
            "not with exchange 'plain' as it is set",
        ),
        ({"exchange": {"scheme": "pailier"}}, "nearest is 'paillier'"),
        ({"fdml": {"staleness": 3}}, r"\[fdml\] is for algorithm 'fdml', not 'fedbcd-p'"),
        ({"privacy": {"noise_multiplier": 1.0}}, "for exchanges that add noise, not 'plain'"),
        ({"exchange": {"scheme": "dp"}}, r"needs privacy\.noise_multiplier"),
        ({"network": {"preset": "moon"}}, "network = 'moon'"),
        ({"job": {"batch_size": 65}}, "batch_size: 65"),
        ({"test_rows": 0, "job": {"target_auc": 0.9}}, "needs held-out rows, and there are none"),
        ({"job": {"model": "custom"}}, "needs a module"),
        ({"job": {"model": "mlp", "start": "zero"}}, "gives a network no gradient"),
    ],
)
def test_a_job_that_cannot_be_run_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(**sections)


def test_an_exchange_that_shows_two_parties_sums_is_refused_by_transfer_learning() -> None:
    # One from outside: those of the catalogue sum over more than two themselves.
    plan = plan_of(job={"algorithm": "ftl", "loss": "taylor-logistic"})
    with pytest.raises(ConfigError, match="no predictions that could be masked"):
        plan.algorithm.check(replace(plan, exchange=EXCHANGES["masked"]))


def test_a_budget_that_would_be_passed_is_refused_before_any_work() -> None:
    privacy = {"noise_multiplier": 1.0, "release_budget": 0.5}
    with pytest.raises(BudgetExhausted):
        plan_of(exchange={"scheme": "dp"}, privacy=privacy)


def test_an_algorithms_own_section_has_defaults_and_is_checked() -> None:
    assert plan_of(job={"algorithm": "fdml"}).job.own == {}
    with pytest.raises(ConfigError, match=r"fdml\.staleness = -1"):
        plan_of(job={"algorithm": "fdml"}, fdml={"staleness": -1})
    with pytest.raises(ConfigError, match=r"unknown key 'fdml\.stale': nearest known key is"):
        plan_of(job={"algorithm": "fdml"}, fdml={"stale": 1})


@pytest.mark.parametrize(
    ("job", "start"),
    [
        ({"algorithm": "fdml"}, "zero"),
        ({"algorithm": "fdml", "start": "random"}, "random"),
        ({"algorithm": "fdml", "model": "mlp"}, "random"),
        ({"algorithm": "fedsgd"}, "random"),
    ],
)
def test_a_start_is_random_where_it_hides_something_or_breaks_a_symmetry(
    job: dict[str, Any], start: str
) -> None:
    assert plan_of(job=job).job.job.start == start


def test_the_hash_covers_an_algorithms_own_section() -> None:
    hashes = {
        plan_of(job={"algorithm": "fdml"}, fdml={"staleness": limit}).hash for limit in (0, 1)
    }
    assert len(hashes) == 2


ROWS = 300
MLP = {"model": "mlp", "hidden": [3]}
PRIVATE = {"noise_multiplier": 5.0, "gradient_clip": 1.0, "gradient_noise_multiplier": 5.0}


def plan(job: dict[str, Any] | None = None, **sections: Any) -> Plan:  # noqa: ANN401
    return plan_of(rows=ROWS, job={"batch_size": None, **(job or {})}, **sections)


def settled(found: Plan) -> tuple[object, object, object, object]:
    settings = found.job.job
    return settings.local_steps, settings.batch_size, settings.acceleration, settings.l2


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({}, ("exact", "full", "nesterov", 1 / ROWS)),
        ({"algorithm": "fedbcd-s"}, ("exact", "full", "none", 1 / ROWS)),
        ({"algorithm": "fedsgd"}, (1, 128, "none", 1 / ROWS)),
        ({"algorithm": "fdml"}, (1, 128, "none", 1 / ROWS)),
        ({"algorithm": "fedsgd", "local_steps": 7}, (1, 128, "none", 1 / ROWS)),
        ({"local_steps": 7}, (7, 128, "none", 1 / ROWS)),
        ({"local_rule": "frozen"}, (5, 128, "none", 1 / ROWS)),
        ({"local_rule": "gauss-newton"}, ("exact", "full", "nesterov", 1 / ROWS)),
        (MLP, (20, 128, "none", 1 / ROWS)),
        ({"learning_rate": 0.1}, (5, 128, "none", 0.0)),
        ({"learning_rate": 0.1, "algorithm": "fedsgd"}, (1, 128, "none", 0.0)),
        ({"schedule": "inverse-sqrt"}, (5, 128, "none", 1 / ROWS)),
        # What is said stays said.
        ({"batch_size": 64}, ("exact", 64, "nesterov", 1 / ROWS)),
        ({"batch_size": "full", "learning_rate": 0.1}, (5, "full", "none", 0.0)),
        ({"acceleration": "none"}, ("exact", "full", "none", 1 / ROWS)),
        (
            {"algorithm": "fedbcd-s", "acceleration": "nesterov"},
            ("exact", "full", "nesterov", 1 / ROWS),
        ),
        ({"l2": 0.0}, ("exact", "full", "nesterov", 0.0)),
        ({"l2": 0.5, "learning_rate": 0.1}, (5, 128, "none", 0.5)),
        ({"local_steps": "exact"}, ("exact", "full", "nesterov", 1 / ROWS)),
    ],
)
def test_what_is_not_said_follows(job: dict[str, Any], expected: tuple[object, ...]) -> None:
    assert settled(plan(job)) == expected


def test_few_rows_are_one_batch() -> None:
    found = plan_of(rows=90, job={"batch_size": None, "local_steps": 5})
    assert found.job.job.batch_size == 90
    assert found.full_batches


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ({"learning_rate": 0.1}, "no step size: drop learning_rate = 0.1, or give a number of"),
        ({"schedule": "constant"}, "drop schedule and divide_by_sqrt_parties"),
        ({"divide_by_sqrt_parties": True}, "drop schedule and divide_by_sqrt_parties"),
        ({"local_rule": "frozen"}, "minimum of a majorizer: local_rule = 'frozen' has none"),
        ({"algorithm": "fedsgd"}, "fedsgd takes one gradient step; use fedbcd-p"),
        ({"algorithm": "fdml"}, "fdml takes one gradient step; use fedbcd-p"),
        (MLP, "takes linear models, and party 'bank' trains a network"),
    ],
)
def test_exact_steps_refuse_what_they_cannot_take(job: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan({**job, "local_steps": "exact"})
    assert told in str(refused.value)


def test_noise_end_to_end_takes_a_learning_rate() -> None:
    noisy: dict[str, Any] = {"exchange": {"scheme": "dp"}, "privacy": PRIVATE}
    assert settled(plan({"learning_rate": 0.1}, **noisy)) == (5, 128, "none", 0.0)
    with pytest.raises(ConfigError, match="which no epsilon covers: give a learning_rate"):
        plan(**noisy)


def test_the_hash_is_that_of_the_settled_job() -> None:
    """Parties agree on it: two ways to say a job are one, and other rows another."""
    said = {"local_steps": "exact", "batch_size": "full", "acceleration": "nesterov"}
    assert plan().hash == plan({**said, "l2": 1 / ROWS, "learning_rate": "auto"}).hash
    assert plan().hash != plan({"l2": 0.0}).hash
    assert plan().hash != plan_of(rows=ROWS - 1, job={"batch_size": None}).hash


@pytest.mark.parametrize(
    ("sections", "watched"),
    [
        ({}, True),
        ({"job": {"algorithm": "fedsgd"}}, True),
        ({"job": MLP}, True),
        ({"job": {"learning_rate": 0.1}}, False),
        ({"job": {"algorithm": "fdml"}}, False),
        ({"exchange": {"scheme": "dp"}, "privacy": {"noise_multiplier": 5.0}}, True),
        (
            {
                "exchange": {"scheme": "dp"},
                "privacy": {"noise_multiplier": 5.0, "label_noise_multiplier": 1.0},
            },
            False,
        ),
    ],
)
def test_who_is_watched(sections: dict[str, Any], watched: bool) -> None:
    assert plan(**sections).stops_early == watched


BOTH: dict[str, Any] = {"exchange": {"scheme": "bfv", "hide": "both"}}
NOISY: dict[str, Any] = {"exchange": {"scheme": "dp"}, "privacy": {"noise_multiplier": 5.0}}
LABEL_NOISE = {"noise_multiplier": 5.0, "label_noise_multiplier": 1.0}
SIGNS = {"exchange": {"scheme": "dp"}, "privacy": LABEL_NOISE}


@pytest.mark.parametrize(
    ("sections", "parties", "scale", "most", "columns"),
    [
        ({}, 2, 2**0.5 / 2, 2, 7),
        ({}, 5, 5**0.5 / 2, 5, 7),
        ({"job": {"algorithm": "fedbcd-s"}}, 5, 2**0.5 / 2, 1, 7),
        # More than K where it may not majorize.
        ({"job": {"batch_size": 64}}, 5, 5**0.5 / 2, inf, 7),
        (NOISY, 5, 5**0.5 / 2, inf, 7),
        ({"job": MLP}, 5, 5**0.5 / 2, inf, 0),
        # K at once where nobody would notice that less is too little.
        (SIGNS, 5, 5, inf, 7),
        ({"job": {"loss": "squared"}, **BOTH}, 5, 5, 5, 7),
        ({"job": {"learning_rate": 0.1, "batch_size": "full"}}, 5, 5, inf, 0),
        # Gradient steps prove nothing: the label party follows its true loss.
        ({"job": {"local_steps": 9, "batch_size": "full"}}, 5, 5**0.5 / 2, inf, 7),
        ({"job": {"local_steps": 1, "batch_size": "full"}}, 5, 5**0.5 / 2, inf, 7),
        ({"job": {"local_steps": 9, "batch_size": 64}}, 5, 5**0.5 / 2, inf, 7),
        # Windows of batches would tell late.
        ({"job": {"local_steps": 1, "batch_size": 64}}, 5, 5, inf, 7),
        ({"job": {"algorithm": "fedbcd-s", "local_steps": 1, "batch_size": 64}}, 5, 1, inf, 7),
    ],
)
def test_how_far_parties_go(
    sections: dict[str, Any], parties: int, scale: float, most: float, columns: int
) -> None:
    found = plan(parties=parties, **sections)
    pace = found.steps(LinearModel(np.zeros((3, 1))), np.ones((ROWS, 3)), 7).pace
    assert pace.scale == pytest.approx(scale)
    assert (pace.most, pace.columns) == (most, columns)
    assert (pace.rows, pace.derived) == (ROWS, found.derives_steps)


FEDSGD: dict[str, Any] = {"algorithm": "fedsgd"}
BLIND: dict[str, Any] = {"exchange": {"scheme": "blind"}}


@pytest.mark.parametrize(
    ("sections", "plain", "growth"),
    [
        ({"job": FEDSGD}, True, 1.0),
        ({"job": {**FEDSGD, "l1": 0.1}}, True, 1.0),
        ({"job": {**FEDSGD, "schedule": "inverse-sqrt"}}, True, 0.0),
        ({"job": {"local_steps": 1}}, True, 1.0),
        ({"job": {"algorithm": "fdml"}}, True, 0.5),
        ({"job": {"algorithm": "fdml"}, **NOISY}, True, 0.0),
        ({}, False, 1.0),
        ({"job": {"local_steps": 2}}, False, 1.0),
        ({"job": {**FEDSGD, **MLP}}, False, 1.0),
        ({"job": {**FEDSGD, "learning_rate": 0.1}}, False, 1.0),
        # Noise is not of batches alone, or all know what steps follow from.
        ({"job": FEDSGD, **NOISY}, False, 1.0),
        ({"job": FEDSGD, **BLIND}, False, 1.0),
    ],
)
def test_whose_noise_is_that_of_plain_steps(
    sections: dict[str, Any], plain: bool, growth: float
) -> None:
    found = plan(**sections)
    pace = found.steps(LinearModel(np.zeros((3, 1))), np.ones((ROWS, 3)), 7).pace
    assert (pace.plain, pace.growth) == (plain, growth)


def test_feature_parties_start_small_where_steps_are_exact() -> None:
    for parties in (2, 5):
        found = plan(parties=parties)
        assert found.start_deviation("bank") == 1.0
        assert found.start_deviation(NAMES[0]) == pytest.approx(0.5 / (parties - 1) ** 0.5)
        assert found.row_offsets == 0


def test_gradient_steps_start_next_to_zero_beside_row_offsets() -> None:
    found = plan({"local_steps": 5}, parties=4)
    assert found.row_offsets == 0.5
    assert found.start_deviation("bank") == found.start_deviation(NAMES[0]) == 0.025


def test_no_offsets_where_all_have_labels_or_networks_start_at_random() -> None:
    assert plan({"start": "zero", "local_steps": 5}).row_offsets == 0
    for settings in ({"algorithm": "fdml"}, {"model": "mlp"}):
        found = plan(settings)
        assert found.row_offsets == 0
        assert found.start_deviation("bank") == found.start_deviation(NAMES[0]) == 1.0


MASKED: dict[str, Any] = {"exchange": {"scheme": "masked"}}
SUMMED: dict[str, Any] = {"exchange": {"scheme": "plain", "predictions": "masked"}}
ENCRYPTED: dict[str, Any] = {"exchange": {"scheme": "bfv"}}


@pytest.mark.parametrize(
    ("sections", "job", "every"),
    [
        ({}, {}, "doubling"),
        (NOISY, {}, "doubling"),
        (MASKED, {}, 0),
        (SUMMED, {}, 0),
        (ENCRYPTED, {}, 0),
        # Among three parties no rows are scored that nobody agreed to open.
        (BOTH, {"loss": "squared"}, "never"),
        ({"exchange": {**BOTH["exchange"], "scores": "rows"}}, {"loss": "squared"}, 0),
        # A target is looked for as training goes on; the guard counts it.
        (ENCRYPTED, {"target_auc": 0.9}, 1),
        (ENCRYPTED, {"eval_every": 3}, 3),
        ({}, {"target_auc": 0.9}, 1),
        ({}, {"eval_every": 0}, 0),
        ({}, {"eval_every": "never"}, "never"),
    ],
)
def test_how_often_held_out_rows_are_scored(
    sections: dict[str, Any], job: dict[str, Any], every: object
) -> None:
    assert plan(job, parties=3, **sections).job.job.eval_every == every


def test_scorings_thin_out() -> None:
    timetable = plan({"rounds": 100}).timetable
    due = [done for done in range(1, 101) if timetable.due(done)]
    assert due == [1, 2, 4, 8, 16, 32, 52, 72, 92, 100]
    assert [timetable.times(rounds) for rounds in (1, 2, 3, 33, 52, 100)] == [1, 2, 3, 7, 7, 10]


def test_a_job_that_never_scores_has_no_times_to() -> None:
    timetable = plan({"eval_every": "never"}).timetable
    assert timetable.times(10) == 0
    assert not timetable.due(10)
    with pytest.raises(ConfigError, match="target_auc needs held-out rows scored"):
        plan({"eval_every": "never", "target_auc": 0.9})
