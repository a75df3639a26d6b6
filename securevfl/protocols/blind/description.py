"""The description of `blind`: rounds run on secret shares, and only the final model is revealed.

Learns: no party sees anything of another during rounds; see `Blind.learns` for the end.
Source: docs/explanation/blind.md; docs/decisions/0032-blind.md.
"""

from typing import Any

from typing_extensions import override

from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings, Job
from securevfl.models.losses import Logistic, QuadraticLoss
from securevfl.protocols.blind.offline import make_offline
from securevfl.protocols.blind.rounds import BlindPart
from securevfl.protocols.exchange import Exchange, Learns, Shown, TrainsOnShares, Variant, as_shown
from securevfl.protocols.plan import Plan

NOT_TAKEN = (
    "key_bits",
    "engine",
    "value_fraction_bits",
    "feature_fraction_bits",
    "round_trips",
    "he_per_step",
    "prediction_bound",
)
"""Keys of `[exchange]` that have no meaning here."""


class Blind(Exchange):
    """Secret shares of parameters, predictions and residuals; products are made offline."""

    name = "blind"
    takes = tuple(ExchangeSettings.model_fields)
    encrypts = True
    new_rows = as_shown
    # A series replaces σ, and final weights are rounded up or down at random. The largest error of
    # 500 runs with fresh pads was 0.0305 (K = 2) and 0.0197 (K = 3), of 10^6 simulated roundings
    # 0.0307, so a larger one has a probability below 10^-5.
    error = 0.034
    variants: tuple[Variant, ...] = ({}, {"exchange": {"scores": "rows"}})

    def part(self, training: Any) -> BlindPart:  # noqa: ANN401
        """A party's rounds on shares."""
        return BlindPart(training)

    async def make_offline(self, training: Any) -> Any:  # noqa: ANN401
        """A party's part of the offline phase, before the job."""
        return await make_offline(training)

    @override
    def check(self, plan: Plan) -> None:
        settings = plan.job.job
        if TrainsOnShares not in plan.algorithm.needs:
            raise ConfigError(
                f"algorithm = {plan.algorithm.name!r}: 'blind' takes fedsgd and fedbcd-p, whose "
                "steps follow from residuals alone"
            )
        if plan.networks or settings.head != "sum":
            raise ConfigError("scheme = 'blind' takes linear models only, without a head")
        if settings.l1:
            raise ConfigError("scheme = 'blind': shares do not support l1")
        if settings.local_rule not in ("curvature", "frozen"):
            raise ConfigError(f"scheme = 'blind' takes no local_rule = {settings.local_rule!r}")
        before_the_end = "scheme = 'blind' reveals no parameters before the last round: "
        if settings.target_auc is not None:
            raise ConfigError(f"{before_the_end}drop target_auc")
        if settings.eval_every not in (0, "never"):
            raise ConfigError(f"{before_the_end}drop eval_every, or take 0 or 'never'")
        if not isinstance(plan.loss, Logistic | QuadraticLoss):
            raise ConfigError(
                f"loss = {plan.loss.name!r}: 'blind' takes logistic (two classes), taylor-logistic "
                "or squared: with more classes take scheme = 'bfv', or a label column of two"
            )
        _check_exchange(plan)

    @override
    def learns(self, job: Job) -> Learns:
        shown = "sums of H over classes"
        if job.exchange.scores == "rows":
            shown = "H of held-out rows"
        elif job.job.loss == "squared":
            shown += ", or of squared errors of real targets"
        end = "its own θ_k at the end, rounded"
        if job.job.loss == "logistic":
            end += ", and of each other party how far its rows could move and whether its H "
            end += "stayed in range"
        return Learns(
            label_party=f"nothing in rounds; {end}, and {shown}",
            label_party_not="others' H, G and θ",
            feature_party=f"nothing in rounds; {end}",
            feature_party_not="d, labels, its own G, others' H, G and θ",
            predictions="hidden",
            residuals="hidden",
            gradients=False,
        )

    @override
    def held_out(self, job: Job, parties: int) -> Shown:
        """Hidden behind class sums; with `scores = "rows"` singly at K = 2, else summed."""
        if job.exchange.scores != "rows":
            return "hidden"
        return "summed" if parties > 2 else "singly"  # noqa: PLR2004

    @override
    def messages(self, settings: ExchangeSettings, parties: int) -> int:
        """4(K − 1) for logistic residuals; affine ones take 3K − 4, and 2 at K = 2."""
        return 4 * (parties - 1)


DESCRIPTIONS = (Blind(),)


def _check_exchange(plan: Plan) -> None:
    settings = plan.job.exchange
    if settings.hide != "residuals" or settings.predictions != "clear":
        raise ConfigError("scheme = 'blind' always hides both: drop hide and predictions")
    if settings.period is not None and plan.loss.name != "logistic":
        raise ConfigError(f"period is for loss = 'logistic', not {plan.loss.name!r}")
    for key in NOT_TAKEN:
        if getattr(settings, key) != ExchangeSettings.model_fields[key].default:
            raise ConfigError(f"scheme = 'blind' has no use for this setting: drop {key}")
