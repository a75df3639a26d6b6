"""The description of the exchanges under homomorphic encryption, one for each scheme.

The protocols, with their sources and who learns what, are in `encrypted` and `class_sums`.
"""

from collections.abc import Collection, Mapping

from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import SCHEMES, require_choice, with_fraction_bits
from securevfl.errors import ConfigError, RangeExceeded
from securevfl.job import ExchangeSettings, Job
from securevfl.models.curvature import MOST_GRAM_COLUMNS
from securevfl.models.losses import quadratic_loss
from securevfl.protocols.exchange import (
    Established,
    Exchange,
    Learns,
    Session,
    Shown,
    Side,
    Variant,
    as_shown,
)
from securevfl.protocols.exchanges.class_sums import establish_class_sums
from securevfl.protocols.exchanges.encrypted import (
    EncryptedBothSide,
    EncryptedFeatureSide,
    EncryptedLabelSide,
    OneTripFeatureSide,
    OneTripLabelSide,
    PerStepFeatureSide,
)
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.gathering import Party, gathering_of, require_summands
from securevfl.protocols.session.keys import exchange_keys

# One round trip multiplies by a new S' x S matrix every round: 0.4 GB in NTT form at this S.
MOST_LOOKAHEAD_ROWS = 4096
OWN_GRADIENT = "only its own gradient X_kᵀd/S"


class UnderEncryption(Exchange):
    """Residuals, or predictions and residuals, under the homomorphic scheme `name`."""

    takes = tuple(ExchangeSettings.model_fields)
    encrypts = True
    new_rows = as_shown
    variants: tuple[Variant, ...] = (
        {"exchange": {"round_trips": 2}},
        {"exchange": {"hide": "both"}},
    )

    def __init__(self, name: str) -> None:
        self._scheme = SCHEMES[name]
        self.name = name
        self.is_slow, self.repeats = self._scheme.is_slow, self._scheme.exact
        if self._scheme.seconds is not None:
            self.variants = (*self.variants, {"exchange": {"round_trips": 1}})

    @override
    def check(self, plan: Plan) -> None:
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
            _check_per_step(plan)
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
        if plan.algorithm.alternating:
            raise ConfigError("round_trips = 1 needs an algorithm whose parties step all at once")
        if plan.most_batch_rows > MOST_LOOKAHEAD_ROWS:
            raise ConfigError(
                f"round_trips = 1 multiplies by S x S numbers: batch_size is "
                f"{plan.most_batch_rows}, at most {MOST_LOOKAHEAD_ROWS} expected; use 2 or auto"
            )

    @override
    def learns(self, job: Job) -> Learns:
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
        """As in rounds; with `scores = "rows"` singly at K = 2, else summed."""
        if job.exchange.scores != "rows":
            return super().held_out(job, parties)
        return "summed" if parties > 2 else "singly"  # noqa: PLR2004

    @override
    def messages(self, settings: ExchangeSettings, parties: int) -> int:
        """As in `encrypted`; auto counts two round trips, and `he_per_step` Q = 1."""
        if settings.hide == "both":
            return 3 * (parties**2 - parties)
        return (3 if settings.round_trips == 1 else 4) * (parties - 1)

    @override
    def key_owners(self, settings: ExchangeSettings, party: Party) -> tuple[str, ...]:
        return party.names if settings.hide == "both" else (party.label_party,)

    async def keys(
        self, session: Session, product_format: ProductFormat, columns: Mapping[str, int]
    ) -> tuple[OwnKey | None, dict[str, PeerKey]]:
        """Make and exchange keys, see `HoldsKeys`."""
        party, settings = session.party, session.plan.job.exchange
        owners = self.key_owners(settings, party)
        own, ends = await exchange_keys(
            party,
            settings,
            product_format,
            owners=owners,
            keys=session.keys,
            seed=session.agreement.seed,
        )
        peers = {name: PeerKey(party, name, each, product_format) for name, each in ends.items()}
        if own is None:
            return None, peers
        return OwnKey(party, own, dict(columns), product_format, session.leakage), peers

    async def establish(self, session: Session) -> Established:
        """Size the products, then make and exchange keys."""
        party, plan, agreement = session.party, session.plan, session.agreement
        shown = self.held_out(plan.job, len(party.names))
        gathering = gathering_of(party, agreement.masks, sums=shown == "summed")
        fmt, wider = (product_format(plan, agreement, lookahead=each) for each in (False, True))
        one_trip = takes_one_trip(plan, fmt, wider)
        own, peers = await self.keys(session, wider if one_trip else fmt, agreement.columns)
        side: Side
        in_flight: dict[str, FloatArray] = {}
        if plan.job.exchange.hide == "both":
            assert own is not None  # noqa: S101
            affine = quadratic_loss(party.loss.name)
            side = EncryptedBothSide(party, affine, own, peers, agreement.masks)
        elif one_trip:
            assert session.lookahead is not None  # noqa: S101
            if own is None and session.lookahead.steps.signs is not None:
                raise ConfigError(
                    f"party {party.name!r}: monotone takes two round trips a round, as encrypted "
                    "steps keep no signs: set round_trips = 2"
                )
            if own is not None:
                side = OneTripLabelSide(party, gathering, own, session.lookahead)
            else:
                key = peers[party.label_party]
                side = OneTripFeatureSide(party, gathering, key, session.lookahead)
            in_flight = side.in_flight
        elif own is not None:
            side = EncryptedLabelSide(party, gathering, own)
        elif plan.job.exchange.he_per_step:
            key = peers[party.label_party]
            side = PerStepFeatureSide(party, gathering, key, plan.rule.curvature)
        else:
            side = EncryptedFeatureSide(party, gathering, peers[party.label_party])
        sums = await establish_class_sums(session) if shown == "hidden" else None
        return Established(side, gathering, own.owner if own else None, in_flight, sums, one_trip)


def product_format(plan: Plan, agreement: Agreement, *, lookahead: bool = False) -> ProductFormat:
    """Fixed point and bounds of a job's encrypted products.

    Fraction bits are the job's, or else the scheme's, or fewer where features are exact with fewer.
    Residuals of logistic losses and the hinge stay within ±1; others are bounded through the
    predictions of one party, or of all where the label party encrypts residuals of the sum. Layouts
    fit the widest party, and noise tells nothing over all products of all rounds. With `lookahead`,
    columns beside X carry the next batch's predictions, which the label party learns; they are one
    more summand and never exact.
    """
    settings, loss = plan.job.exchange, plan.loss
    both, parties = settings.hide == "both", len(plan.facts.names)
    largest = settings.prediction_bound * (1 if both else parties)
    summands = parties - 1 if both else 1
    columns = max(agreement.own_columns, *agreement.columns.values())
    return with_fraction_bits(
        settings.scheme,
        ProductFormat(
            rows=plan.most_batch_rows,
            value_bound=loss.residual_bound(largest),
            matrix_bound=agreement.feature_bound,
            summands=summands + int(lookahead),
            columns=columns + (plan.most_batch_rows if lookahead else 0),
            vectors=loss.outputs,
            rounds=plan.rounds * plan.products,
            bandwidth_mbit=plan.line.bandwidth_mbit,
            latency_ms=plan.line.latency_ms,
            evaluators=parties - 1,
            opened=lookahead,
        ),
        value_bits=settings.value_fraction_bits,
        matrix_bits=settings.feature_fraction_bits,
        exact_bits=None if lookahead else agreement.feature_fraction_bits,
    )


def takes_one_trip(plan: Plan, fmt: ProductFormat, wider: ProductFormat) -> bool:
    """Whether rounds take one round trip: as the job says, or where that is faster."""
    trips = plan.job.exchange.round_trips
    if trips != "auto":
        return trips == 1
    linear = plan.networks.keys() <= {plan.facts.label_party}
    return linear and not plan.algorithm.alternating and one_trip_pays(plan, fmt, wider)


def one_trip_pays(plan: Plan, fmt: ProductFormat, wider: ProductFormat) -> bool:
    """Whether larger replies cost less time than a second round trip."""
    settings = plan.job.exchange
    seconds = SCHEMES[settings.scheme].seconds
    if plan.most_batch_rows > MOST_LOOKAHEAD_ROWS:
        return False
    # The next point takes a P x P matrix; a network at the label party hides P of the others.
    if fmt.columns > MOST_GRAM_COLUMNS and not plan.networks:
        return False
    if seconds is None or settings.hide != "residuals" or settings.predictions != "clear":
        return False
    if settings.he_per_step:
        return False
    try:
        extra = seconds(wider) - seconds(fmt)
    except RangeExceeded:
        return False
    return extra * fmt.vectors < 2 * plan.line.latency_seconds


def _check_per_step(plan: Plan) -> None:
    settings, exchange = plan.job.job, plan.job.exchange
    if not plan.algorithm.repeats_products:
        raise ConfigError(f"he_per_step: algorithm {plan.algorithm.name!r} repeats no products")
    in_both = exchange.hide == "both" and not plan.algorithm.own_components
    if in_both or exchange.round_trips == 1:
        raise ConfigError("he_per_step needs hide = 'residuals' and no round_trips = 1")
    if settings.learning_rate == "auto":
        raise ConfigError("he_per_step needs a learning_rate and a number of local_steps")
    if settings.proximal or settings.acceleration == "nesterov":
        raise ConfigError("he_per_step takes plain gradient steps: no proximal, no acceleration")
    if settings.local_rule == "gauss-newton":
        raise ConfigError("he_per_step follows networks themselves: no local_rule = 'gauss-newton'")


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


DESCRIPTIONS = tuple(map(UnderEncryption, SCHEMES))
