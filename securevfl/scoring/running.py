"""Scoring new rows in one process: every party is its own program, over the simulated network."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.data.ids import ids_alike
from securevfl.data.tables import fingerprint, row_digests
from securevfl.job import Job
from securevfl.models.storage import SavedModel
from securevfl.privacy.accounting import spent
from securevfl.protocols.catalogue import algorithm_of, exchange_of
from securevfl.protocols.plan import Facts
from securevfl.protocols.predicting import ScoringPlace, ScoringPlan, score_rows
from securevfl.protocols.resolving import agreed_hash
from securevfl.protocols.session.privacy_account import FRESH, NO_PROMISE, one_release
from securevfl.runtime.costs import Costs, JobCosts, job_costs
from securevfl.runtime.simulation import Tamper, simulate
from securevfl.runtime.views import View
from securevfl.scoring.joint_model import label_party_of


@dataclass(frozen=True)
class ReleaseOfRow:
    """The privacy guarantee of scoring under noise, for each new row.

    Attributes:
        mechanism: gaussian or laplace.
        noise_multiplier: z.
        clip: β.
        delta: δ.
        epsilon: of this one release; None if infinite.
    """

    mechanism: str
    noise_multiplier: float
    clip: float
    delta: float
    epsilon: float | None
    noise: str


@dataclass(frozen=True, eq=False)
class Scored:
    """Scored rows.

    Attributes:
        predictions: H, shape (rows, C), at the label party.
        views: each party's view, if recorded.
        release: the privacy guarantee for each row; None without noise.
        wall_s: seconds on this machine's clock.
    """

    plan: ScoringPlan
    predictions: FloatArray
    ledgers: dict[str, Costs]
    views: dict[str, View]
    release: ReleaseOfRow | None
    wall_s: float

    @property
    def costs(self) -> JobCosts:
        """Costs of the scoring."""
        return job_costs(self.ledgers, 1)


def scoring_plan(job: Job, parts: Mapping[str, SavedModel]) -> ScoringPlan:
    """How a job's parties score new rows; a ConfigError for models or exchanges that cannot."""
    names = tuple(parts)
    plan = ScoringPlan(job, algorithm_of(job), exchange_of(job), names, label_party_of(parts))
    _ = plan.shown
    return plan


def score(
    plan: ScoringPlan,
    parts: Mapping[str, SavedModel],
    features: Mapping[str, FloatArray],
    ids: tuple[str, ...],
    *,
    raw: Mapping[str, FloatArray] | None = None,
    sources: Mapping[str, str] | None = None,
    guard_directory: Path | None = None,
    record_views: bool = False,
    tamper: Tamper | None = None,
) -> Scored:
    """Run all parties' programs.

    `features` are each party's columns of the rows, unscaled, `raw` those before its recipe, and
    `sources` its file, see `RowsToScore`. Feature parties record in `guard_directory` which rows
    were scored.

    Raises:
        PeerError: parts of different models, or a party that violates the protocol.
        FeatureLeakRefused: other models have already revealed too much of a party's rows.
        BudgetExhausted: one noisy release would exceed the budget.
    """
    rows_hash = bytes.fromhex(fingerprint(ids))
    people = row_digests(ids_alike(ids)) if sources else None
    release = _release(plan, parts[plan.label_party])
    programs = {
        name: partial(
            score_rows,
            plan=plan,
            place=ScoringPlace(
                part,
                features[name],
                rows_hash,
                guard_directory,
                (raw or {}).get(name),
                (sources or {}).get(name, ""),
                people,
            ),
        )
        for name, part in parts.items()
    }
    started = time.perf_counter()
    simulated = simulate(
        programs,
        plan.job.network.resolve(),
        job_hash=plan.job.hash(),
        record_views=record_views,
        tamper=tamper,
    )
    wall = time.perf_counter() - started
    predictions = simulated.results[plan.label_party]
    assert predictions is not None  # noqa: S101
    return Scored(plan, predictions, simulated.costs, simulated.views, release, wall)


def trained_in(plan: ScoringPlan, model: SavedModel) -> bool | None:
    """Whether a model was trained in this very job; None if its file does not say.

    What guards may let pass changes no model, so a job that allows more or less is the same one.
    """
    header = model.header
    if header.rows is None:
        return None
    facts = Facts(
        names=plan.names,
        label_party=plan.label_party,
        rows=header.rows,
        test_rows=0,
        classes=header.classes,
        row_digests=np.empty(0, np.uint64),
    )
    custom = header.network is not None and header.network.kind == "custom"
    modules = plan.names if custom else ()
    jobs = (
        plan.job.with_settings(allow_label_leak=label, allow_feature_leak=feature)
        for label, feature in product((False, True), repeat=2)
    )
    return any(agreed_hash(job, facts, modules).hex() == header.job_hash for job in jobs)


def _release(plan: ScoringPlan, model: SavedModel) -> ReleaseOfRow | None:
    if not plan.exchange.adds_noise:
        return None
    settings = plan.job.privacy
    mechanism = one_release(settings, model.header.given)
    found = spent(mechanism, 1, settings.delta).release
    return ReleaseOfRow(
        mechanism=mechanism.name,
        noise_multiplier=mechanism.noise_multiplier,
        clip=mechanism.clip,
        delta=settings.delta,
        epsilon=found if np.isfinite(found) else None,
        noise=FRESH if settings.noise_seed is None else NO_PROMISE,
    )
