"""Federated transfer learning (Liu, Chen, Yang 2018) with the local steps of FedBCD.

The label party A has labelled rows, the other party B has others, and some rows both hold. Each
trains one hidden layer; a row of B scores Φ·u_B, Φ the mean of y·u_A. A round: both give components
of a batch of common rows, and each takes Q local steps from those of the other, both at once
(FedBCD-p; FedSGD at Q = 1) or A first (`in_turns`, FedBCD-s). The objective is in `objective`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from securevfl.data.tables import VerticalDataset, overlapping
from securevfl.errors import ConfigError
from securevfl.job import FtlSettings, Job
from securevfl.models.layers import BOUNDED
from securevfl.models.local_model import Network
from securevfl.protocols.algorithm import Algorithm, Role
from securevfl.protocols.exchange import Exchange, GivesSingly, HoldsKeys, Shown
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.session.privacy_account import Visits
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.transfer.noisy import check_noise
from securevfl.protocols.transfer.settings import settings_of
from securevfl.protocols.transfer.taking_part import take_part
from securevfl.protocols.vertical.program import run_party
from securevfl.runtime.simulation import Program
from securevfl.sparse import SameRows

LABEL_PARTY, FEATURE_PARTY = "label party", "feature party"
IN_CLEAR = {
    LABEL_PARTY: (
        "u_B of every row of a batch; φ of every held-out row",
        "B's features",
    ),
    FEATURE_PARTY: (
        "Φ, and ½yΦ + 2g·u_A of every row of a batch, so every label",
        "A's features",
    ),
}
ENCRYPTED = {
    LABEL_PARTY: (
        "its own gradient; a power of two above u_B; φ of held-out rows",
        "u_B; φ of training rows",
    ),
    FEATURE_PARTY: (
        "its own gradient, which tells of labels at every visit; one above Φ",
        "Φ, u_A, and labels where no guard is overruled",
    ),
}


class Ftl(Algorithm):
    """Transfer learning between two parties."""

    name = "ftl"
    needs = (GivesSingly, HoldsKeys)
    takes_sparse = False
    settings = FtlSettings
    only_loss: ClassVar[str | None] = "taylor-logistic"
    roles = (
        (f"{LABEL_PARTY} in clear", *IN_CLEAR[LABEL_PARTY]),
        (f"{FEATURE_PARTY} in clear", *IN_CLEAR[FEATURE_PARTY]),
        (f"{LABEL_PARTY}, encrypted", *ENCRYPTED[LABEL_PARTY]),
        (f"{FEATURE_PARTY}, encrypted", *ENCRYPTED[FEATURE_PARTY]),
    )

    @override
    def roles_in(self, plan: Plan) -> tuple[Role, ...]:
        """Those in clear or under encryption."""
        told = ENCRYPTED if plan.exchange.encrypts else IN_CLEAR
        return tuple((role, *learns) for role, learns in told.items())

    @override
    def check(self, plan: Plan) -> None:
        """Refuse what it does not have."""
        job = plan.job
        if len(plan.facts.names) != 2:  # noqa: PLR2004
            raise ConfigError(f"algorithm = 'ftl' takes 2 parties, not {len(plan.facts.names)}")
        if job.exchange.predictions == "masked" or plan.learns.predictions == "summed":
            raise ConfigError("algorithm = 'ftl' gives no predictions that could be masked")
        if plan.exchange.adds_noise:
            check_noise(plan)
        if plan.exchange.encrypts:
            _check_encrypted(job)
        activation = settings_of(plan).activation
        if activation not in BOUNDED and (plan.exchange.encrypts or plan.exchange.adds_noise):
            raise ConfigError(
                f"ftl.activation = {activation!r}: exchange {plan.exchange.name!r} needs units "
                f"with a bound: {' or '.join(BOUNDED)}"
            )
        _check_steps(job)

    @override
    def visits(self, plan: Plan) -> Visits:
        """One release of d units a visit, and Φ every round."""
        steps = plan.rule.local_steps
        return Visits(1, 1, steps, every_round=1, outputs=settings_of(plan).units)

    @override
    def rows(self, job: Job, dataset: VerticalDataset[SameRows]) -> VerticalDataset[SameRows]:
        """The overlap, and the label party's own rows."""
        settings = job.section(FtlSettings, self.name)
        taken = overlapping(dataset, settings.overlap, job.job.seed)
        if dataset.own_rows is None:
            return taken
        dropped = dict(dataset.dropped)
        dropped[dataset.label_party] = dropped.get(dataset.label_party, 0) - len(dataset.own_rows)
        return replace(taken, dropped=dropped)

    @override
    def networks(self, job: Job, facts: Facts) -> dict[str, Network]:
        """One layer each."""
        models = {job.job.model, *(job.model_of(name).model for name in facts.names)}
        if models != {"linear"}:
            raise ConfigError("algorithm = 'ftl' brings its own layers: [ftl] units, activation")
        settings = job.section(FtlSettings, self.name)
        network = Network("dense", (settings.units,), settings.activation)
        return dict.fromkeys(facts.names, network)

    @override
    def held_out(self, plan: Plan) -> Shown:
        """φ of every row, whatever the exchange."""
        return "singly"

    @override
    def new_rows(self, job: Job, exchange: Exchange, parties: int) -> Shown:
        """Not yet: φ = Φ·u_B asks for Φ at the feature party, or a product of its own."""
        raise ConfigError(
            "algorithm = 'ftl' scores rows in training only: hold new ones out as test_data"
        )

    @override
    def programs(self, plan: Plan, places: Mapping[str, Workplace]) -> dict[str, Program[Any]]:
        """Those of both parties."""
        return {
            name: partial(run_party, plan=plan, workplace=place, train=take_part)
            for name, place in places.items()
        }


def _check_encrypted(job: Job) -> None:
    if job.exchange.hide != "both":
        raise ConfigError("algorithm = 'ftl' encrypts components of both: hide = 'both'")
    if job.job.eval_every == "never":
        raise ConfigError(
            "eval_every = 'never': under encryption only held-out scores tell whether anything "
            "was learned"
        )


def _check_steps(job: Job) -> None:
    settings = job.job
    if settings.local_rule not in ("curvature", "gauss-newton"):
        raise ConfigError("algorithm = 'ftl' takes local_rule = 'curvature' or 'gauss-newton'")
    if settings.acceleration == "nesterov":
        raise ConfigError("acceleration: algorithm = 'ftl' has none")
    if settings.l1:
        raise ConfigError("l1 is for linear models: algorithm = 'ftl' has l2")
    if not settings.intercept:
        raise ConfigError("intercept = false: the units of algorithm = 'ftl' have biases")


DESCRIPTIONS = (Ftl(),)
