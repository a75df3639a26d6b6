"""Budgets of the `dp` exchange: what is refused before anything is sent, and what is spent."""

from typing import Any

import numpy as np
import pytest

from securevfl.errors import BudgetExhausted
from securevfl.job import Job
from securevfl.protocols.session.privacy_account import PrivacyAccount
from securevfl.training import Environment, plan_for, train
from tests.end_to_end.dp_jobs import FEW, noisy
from tests.jobs import breast_cancer


def sent_nothing() -> tuple[Environment, list[bytes]]:
    seen: list[bytes] = []

    def watch(sender: str, to: str, data: bytes) -> bytes:
        seen.append(data)
        return data

    return Environment(tamper=watch), seen


@pytest.mark.parametrize(
    ("privacy", "settings", "said"),
    [
        ({"noise_multiplier": 1, "release_budget": 5}, {}, "releases of a sample would be"),
        ({"noise_multiplier": 1, "budget": 5}, {}, "would be inf end to end"),
        (
            {
                "noise_multiplier": 9,
                "gradient_clip": 1,
                "gradient_noise_multiplier": 1,
                "budget": 5,
            },
            {},
            "end to end",
        ),
        (
            {"noise_multiplier": 4, "release_budget": 5},
            {"eval_every": 1, "rounds": 100},
            "held-out",
        ),
    ],
)
def test_a_job_that_would_pass_its_budget_never_starts(
    privacy: dict[str, object], settings: dict[str, Any], said: str
) -> None:
    environment, seen = sent_nothing()
    with pytest.raises(BudgetExhausted, match=said):
        noisy(breast_cancer(), privacy, environment, **{"rounds": 40, **settings})
    assert not seen


def test_a_budget_is_checked_beforehand_and_by_every_party_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    privacy = {"noise_multiplier": 1, "release_budget": 5}
    job = Job.of(job={**FEW, "rounds": 40}, exchange={"scheme": "dp"}, privacy=privacy)
    with pytest.raises(BudgetExhausted):
        plan_for(job, breast_cancer())
    # Between real parties nobody checks for the others: let the first check pass.
    checks, check = [], PrivacyAccount.require_budget

    def after_the_first(account: PrivacyAccount) -> None:
        checks.append(account)
        if len(checks) > 1:
            check(account)

    monkeypatch.setattr(PrivacyAccount, "require_budget", after_the_first)
    environment, seen = sent_nothing()
    with pytest.raises(BudgetExhausted):
        train(job, breast_cancer(), environment)
    assert not seen


@pytest.mark.parametrize(
    ("privacy", "which"),
    [
        ({"release_budget": 3.34}, "epsilon_release"),
        ({"release_budget": 3.34, "mechanism": "laplace"}, "epsilon_release"),
        ({"budget": 8.0, "gradient_clip": 1.0}, "epsilon_end_to_end"),
    ],
)
def test_noise_that_is_calibrated_spends_the_budget_and_no_more(
    privacy: dict[str, object], which: str
) -> None:
    promise = noisy(breast_cancer(), privacy).privacy
    assert promise is not None
    budget = privacy.get("budget", privacy.get("release_budget"))
    assert isinstance(budget, float)
    assert 0.99 * budget <= getattr(promise, which) <= budget


def test_a_feature_partys_gradient_steps_are_private_and_the_label_partys_are_exact() -> None:
    """A clip of next to nothing leaves a feature party where it starts."""
    privacy = {"noise_multiplier": 1, "gradient_clip": 1e-12, "gradient_noise_multiplier": 1}
    result = noisy(breast_cancer(), privacy, start="zero")
    moved = {name: np.abs(each.model.weights).max() for name, each in result.outcomes.items()}
    assert moved["party1"] > 1e-3
    assert 0 < moved["party2"] < 1e-9
