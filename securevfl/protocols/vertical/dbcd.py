"""DBCD (Mahajan, Keerthi, Sundararajan, JMLR 2017): L1-regularized linear models in column blocks.

A round, at common predictions H = Σ_k X_kθ_k:

1. label → feature parties: residuals d, from which f″ follows (`BendingLoss`).
2. all: minimize their local approximation over a working set (`L1Block`): a direction Δ_k.
3. feature → label party: X_k(θ_k + Δ_k), and penalties for a grid of steps. The label party knows
   X_kθ_k, or the sum, from before: this is the paper's X_kΔ_k, and noise on it does not add up
   over rounds.
4. label → feature parties: the step of its line search, and whether the objective is as low as the
   tolerance asks; 4(K − 1) messages a round.

In the paper all nodes hold the labels; here the label party alone does and gives residuals.

Learns:
    label party: X_k(θ_k + Δ_k) of every round and party, and so X_kθ_k and X_kΔ_k; ‖θ_k‖₁ for a
        grid of steps. Under masks only their sums.
    feature party: d of every round, and so every label and H of logistic loss and of squared loss
        in time (d = H − y); of squared hinge where it is not 0. The steps, and how many.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from typing_extensions import override

from securevfl.errors import ConfigError
from securevfl.job import DbcdSettings
from securevfl.models.losses import BendingLoss
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import TellsResiduals
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.privacy_account import Visits
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.vertical.dbcd_rounds import take_part
from securevfl.protocols.vertical.program import run_party
from securevfl.runtime.simulation import Program


class Dbcd(Algorithm):
    """Block coordinate descent for L1-regularized linear models."""

    name = "dbcd"
    needs = (TellsResiduals,)
    takes_sparse = False
    settings = DbcdSettings
    gradient_steps = False
    keeps_state = False
    defaults = MappingProxyType(
        {"local_steps": "exact", "batch_size": "full", "acceleration": "none", "l2": 0.0}
    )
    roles = (
        (
            "label party",
            "X_k(θ_k + Δ_k) of every round, as the exchange shows H_k; ‖θ_k‖₁ for a grid of "
            "steps, or the sum of them",
            "features; where masked, any single party's",
        ),
        (
            "feature party",
            "d of every round, so every label in time; how many rounds each λ₁ took",
            "others' features",
        ),
    )

    @override
    def check(self, plan: Plan) -> None:
        """Refuse what it does not have."""
        for wrong, told in _refusals(plan, plan.job.section(DbcdSettings, self.name)):
            if wrong:
                raise ConfigError(told)

    @override
    def visits(self, plan: Plan) -> Visits:
        """One release a visit."""
        return Visits(1, 1, 1)

    @override
    def programs(self, plan: Plan, places: Mapping[str, Workplace]) -> dict[str, Program[Any]]:
        """Those of the parties."""
        return {
            name: partial(run_party, plan=plan, workplace=place, train=take_part)
            for name, place in places.items()
        }


def _refusals(plan: Plan, own: DbcdSettings) -> Iterator[tuple[object, str]]:
    """What is wrong with a job, if it is true, and what to say then."""
    settings, privacy = plan.job.job, plan.job.privacy
    yield (
        (own.path is None) == (settings.l1 == 0),
        "algorithm = 'dbcd' takes either job.l1 above 0 or [dbcd] path",
    )
    path = own.path or ()
    yield np.any(np.diff(path) >= 0), "[dbcd] path: expected falling values"
    yield (
        len(path) > 1 and plan.exchange.adds_noise,
        "[dbcd] path: under noise nobody can tell when a λ₁ is done; take job.l1",
    )
    yield (
        own.size is not None and own.working_set == "all",
        "[dbcd] size belongs to working_set = 'greedy'",
    )
    yield (
        not isinstance(plan.loss, BendingLoss),
        f"loss = {plan.loss.name!r}: dbcd takes logistic (two classes), squared, taylor-logistic "
        "or squared-hinge",
    )
    yield plan.networks, "algorithm = 'dbcd' trains linear models only"
    yield plan.batch_size != "full", "algorithm = 'dbcd' takes all rows: batch_size = 'full'"
    yield privacy.gradient_clip, "gradient_clip: dbcd takes no gradient steps"
    yield (
        settings.learning_rate != "auto" or settings.schedule or settings.divide_by_sqrt_parties,
        "algorithm = 'dbcd' searches for its steps: drop learning_rate, schedule and "
        "divide_by_sqrt_parties",
    )
    yield (
        settings.acceleration == "nesterov",
        "acceleration = 'nesterov': dbcd has [dbcd] momentum in its place",
    )
    yield (
        settings.local_rule != "curvature",
        f"local_rule = {settings.local_rule!r}: dbcd follows curvature",
    )
    yield (
        privacy.label_noise_multiplier,
        "label_noise_multiplier: dbcd's line search tells of exact labels",
    )


DESCRIPTIONS = (Dbcd(),)
