"""The description of the exchanges under homomorphic encryption, whatever the scheme.

What travels is in `encrypted` (residuals hidden), `one_trip` (the same, one round trip) and
`encrypted_both` (both sides hidden); what is sized and chosen for them, in `sizing`.
"""

from collections.abc import Collection

from typing_extensions import override

from securevfl.crypto.schemes import SCHEMES, require_choice
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings, Job
from securevfl.models.losses import quadratic_loss
from securevfl.protocols.exchange import (
    Established,
    Exchange,
    Learns,
    Session,
    Shown,
    Side,
    Variant,
)
from securevfl.protocols.exchanges.class_sums import (
    FeatureClassSums,
    LabelClassSums,
    establish_class_sums,
)
from securevfl.protocols.exchanges.encrypted import EncryptedLabelSide
from securevfl.protocols.exchanges.encrypted_both import EncryptedBothSide
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey
from securevfl.protocols.exchanges.one_trip import OneTripFeatureSide, OneTripLabelSide
from securevfl.protocols.exchanges.per_step import check_per_step, feature_side
from securevfl.protocols.exchanges.sizing import MOST_ROWS_AHEAD, product_format, takes_one_trip
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import gathering_of, require_summands
from securevfl.protocols.session.keys import exchange_keys
from securevfl.protocols.session.party import Party

OWN_GRADIENT = "only its own gradient X_kᵀd/S"


class UnderEncryption(Exchange):
    """Residuals, or both sides, under one homomorphic scheme.

    Args:
        name: of the scheme.
    """

    encrypts = True
    variants: tuple[Variant, ...] = (
        {"exchange": {"round_trips": 2}},
        {"exchange": {"hide": "both"}},
    )

    def __init__(self, name: str) -> None:
        self._scheme = SCHEMES[name]
        self.name = name
        self.is_slow = self._scheme.is_slow
        if self._scheme.seconds is not None:
            self.variants = (*self.variants, {"exchange": {"round_trips": 1}})

    @override
    def check(self, plan: Plan) -> None:
        """Refuse combinations that do not exist, and networks where they would tell labels."""
        settings, parties = plan.job.exchange, len(plan.facts.names)
        require_choice(settings.scheme, settings.key_bits, settings.engine)
        if settings.predictions == "masked":
            require_summands(parties)
        if settings.hide == "both":
            if settings.predictions == "masked":
                raise ConfigError("hide = 'both' sends no predictions: predictions = 'masked'")
            quadratic_loss(plan.loss.name)
        if settings.round_trips == 1:
            self._check_one_trip(plan)
        if settings.he_per_step:
            check_per_step(plan)
        if plan.networks and not plan.algorithm.own_components:
            _check_networks(plan, plan.networks.keys() - {plan.facts.label_party})

    def _check_one_trip(self, plan: Plan) -> None:
        settings = plan.job.exchange
        if self._scheme.seconds is None:
            able = [name for name, scheme in SCHEMES.items() if scheme.seconds is not None]
            raise ConfigError(
                f"round_trips = 1 needs scheme {' or '.join(able)}, not {self.name!r}"
            )
        if settings.hide != "residuals" or settings.predictions != "clear":
            raise ConfigError("round_trips = 1 needs hide = 'residuals' and predictions = 'clear'")
        if plan.algorithm.in_turns:
            raise ConfigError("round_trips = 1 needs an algorithm whose parties step all at once")
        if plan.most_batch_rows > MOST_ROWS_AHEAD:
            raise ConfigError(
                f"round_trips = 1 multiplies by S x S numbers: batch_size is "
                f"{plan.most_batch_rows}, at most {MOST_ROWS_AHEAD} expected; use 2 or auto"
            )

    @override
    def learns(self, job: Job) -> Learns:
        """Gradients at feature parties; the label party sees predictions, or nothing either."""
        settings = job.exchange
        if settings.hide == "both":
            return Learns(
                label_party=OWN_GRADIENT,
                label_party_not="others' H and G",
                feature_party=OWN_GRADIENT,
                feature_party_not="d, labels, others' H and G; at K ≥ 3 also whose share is which",
                predictions="hidden",
                residuals="hidden",
                gradients=True,
            )
        masked = settings.predictions == "masked"
        seen = "only the sum of the others' H_k" if masked else "every H_k"
        if settings.round_trips == 1:
            seen += ", opened, and a power of two that scales it"
        elif settings.round_trips == "auto" and self._scheme.seconds is not None and not masked:
            seen += " (in one round trip opened, with a power of two that scales it)"
        return Learns(
            label_party=seen,
            label_party_not="G_k",
            feature_party=OWN_GRADIENT,
            feature_party_not="d, labels, others' H and G",
            predictions="summed" if masked else "singly",
            residuals="hidden",
            gradients=True,
        )

    @override
    def held_out(self, job: Job, parties: int) -> Shown:
        """As in rounds; where both sides are hidden, as sums among three parties or more."""
        is_sum = job.exchange.hide == "both" and parties > 2  # noqa: PLR2004
        return "summed" if is_sum else super().held_out(job, parties)

    @override
    def messages(self, settings: ExchangeSettings, parties: int) -> int:
        """4(K − 1), in one round trip 3(K − 1), hiding both sides 3(K² − K); auto counts two.

        Under `he_per_step` 2(Q + 1)(K − 1), which is told for Q = 1.
        """
        if settings.hide == "both":
            return 3 * (parties**2 - parties)
        return (3 if settings.round_trips == 1 else 4) * (parties - 1)

    @override
    def key_owners(self, settings: ExchangeSettings, party: Party) -> tuple[str, ...]:
        """The label party, or everyone."""
        return party.names if settings.hide == "both" else (party.label_party,)

    @override
    async def establish(self, session: Session) -> Established:
        """Size the products, make and exchange keys."""
        party, plan, agreement = session.party, session.plan, session.agreement
        settings = plan.job.exchange
        shown = self.held_out(plan.job, len(party.names))
        sums = shown == "summed"
        gathering = gathering_of(party, agreement.masks, sums=sums)
        fmt, ahead = (product_format(plan, agreement, ahead=each) for each in (False, True))
        one_trip = takes_one_trip(plan, fmt, ahead)
        if one_trip:
            fmt = ahead
        own, evaluators = await exchange_keys(
            party, settings, fmt, owners=self.key_owners(settings, party), keys=session.keys
        )
        peers = {name: PeerKey(party, name, each, fmt) for name, each in evaluators.items()}
        own_key = None
        if own is not None:
            own_key = OwnKey(party, own, dict(agreement.columns), fmt, session.leakage)
        side: Side
        if settings.hide == "both":
            assert own_key is not None  # noqa: S101
            affine = quadratic_loss(party.loss.name)
            side = EncryptedBothSide(
                party,
                affine,
                fmt.value_bound,
                own_key=own_key,
                peer_keys=peers,
                masks=agreement.masks,
            )
        elif own_key is not None and one_trip:
            assert session.lookahead is not None  # noqa: S101
            one = OneTripLabelSide(party, gathering, own_key, session.lookahead)
            return Established(one, gathering, own, one.in_flight)
        elif own_key is not None:
            side = EncryptedLabelSide(party, gathering, own_key)
        elif one_trip:
            key = peers[party.label_party]
            assert session.lookahead is not None  # noqa: S101
            ours = OneTripFeatureSide(party, gathering, key, session.lookahead)
            return Established(ours, gathering, own, ours.in_flight)
        else:
            side = feature_side(plan, party, gathering, peers[party.label_party])
        if shown != "hidden":
            return Established(side, gathering, own)
        class_sums = await establish_class_sums(session)
        return Established(
            side,
            gathering,
            own,
            gives_held_out=class_sums if isinstance(class_sums, FeatureClassSums) else None,
            scores_held_out=class_sums if isinstance(class_sums, LabelClassSums) else None,
        )


def _check_networks(plan: Plan, at_feature_parties: Collection[str]) -> None:
    settings = plan.job.exchange
    if settings.hide == "both":
        raise ConfigError("hide = 'both' takes linear models only")
    if not at_feature_parties:
        return
    if plan.loss.outputs > 1:
        raise ConfigError(
            f"networks at feature parties take two classes under encryption, not "
            f"{plan.loss.outputs}; use plain or masked, or linear models"
        )
    if settings.round_trips == 1:
        raise ConfigError("round_trips = 1 takes linear models at feature parties")
