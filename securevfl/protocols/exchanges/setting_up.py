"""Every exchange by name, and how a party sets up its side of one."""

import difflib
from dataclasses import dataclass
from functools import partial

from securevfl.crypto.scheme import KeyOwner, ProductFormat
from securevfl.crypto.schemes import (
    SCHEMES,
    with_fraction_bits,
)
from securevfl.errors import (
    ConfigError,
    RangeExceeded,
)
from securevfl.job import ExchangeSettings
from securevfl.models.losses import Loss, quadratic_loss
from securevfl.protocols.exchange import Exchange
from securevfl.protocols.exchanges.encrypted import EncryptedFeatureSide, EncryptedLabelSide
from securevfl.protocols.exchanges.encrypted_both import EncryptedBothSide
from securevfl.protocols.exchanges.homomorphic import OwnKey, PeerKey
from securevfl.protocols.exchanges.label_guard import LeakageCount
from securevfl.protocols.exchanges.noisy import NoisyGathering
from securevfl.protocols.exchanges.one_trip import Lookahead, OneTripFeatureSide, OneTripLabelSide
from securevfl.protocols.exchanges.plain import PlainFeatureSide, PlainLabelSide
from securevfl.protocols.session.agreement import MOST_FRACTION_BITS, Agreement
from securevfl.protocols.session.gathering import ClearGathering, Gathering, MaskedGathering
from securevfl.protocols.session.keys import KeyMaker, exchange_keys
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.privacy_account import Noise
from securevfl.runtime.line import Line

IN_CLEAR = ("plain", "masked", "dp")
EXCHANGES = (*IN_CLEAR, *SCHEMES)


@dataclass(frozen=True)
class Established:
    """One party's exchange, ready for the first round.

    Attributes:
        exchange: its side.
        gathering: how held-out predictions travel.
        key: its own homomorphic key, if it has one.
        leakage: what the gradients it decrypts reveal.
    """

    exchange: Exchange
    gathering: Gathering
    key: KeyOwner | None
    leakage: LeakageCount


def check_exchange(
    settings: ExchangeSettings, loss: Loss, parties: int, algorithm: str = "fedbcd-p"
) -> None:
    """Check that an exchange exists and fits the loss, the parties and the algorithm.

    Raises:
        ConfigError: it does not.
    """
    name = settings.scheme
    if name not in EXCHANGES:
        nearest = difflib.get_close_matches(name, EXCHANGES, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"exchange = {name!r}: unknown; nearest is {nearest!r}, known are "
            f"{', '.join(EXCHANGES)}"
        )
    masked = name == "masked" or settings.predictions == "masked"
    if masked:
        _check_masked(name, parties)
    if settings.hide == "both":
        if name in IN_CLEAR:
            raise ConfigError(f"hide = 'both' needs a homomorphic scheme, not {name!r}")
        if masked:
            raise ConfigError("hide = 'both' sends no predictions: predictions = 'masked'")
        quadratic_loss(loss.name)
    if settings.round_trips == 1:
        _require_one_trip(settings, algorithm)
    if name in IN_CLEAR and (settings.key_bits or settings.engine):
        raise ConfigError(f"exchange {name!r} has no keys: drop key_bits and engine")


def _check_masked(name: str, parties: int) -> None:
    if name == "dp":
        raise ConfigError("exchange 'dp' adds noise at each party: predictions = 'clear'")
    if parties < 3:  # noqa: PLR2004
        raise ConfigError(
            f"masked predictions need at least 3 parties, this job has {parties}: with one "
            "feature party the sum is its prediction"
        )


def _require_one_trip(settings: ExchangeSettings, algorithm: str) -> None:
    """Check that a round can do with one round trip.

    Raises:
        ConfigError: it cannot; the message says why.
    """
    able = [name for name, scheme in SCHEMES.items() if scheme.seconds is not None]
    if settings.scheme not in able:
        raise ConfigError(
            f"round_trips = 1 needs scheme {' or '.join(able)}, not {settings.scheme!r}"
        )
    if settings.hide != "residuals" or settings.predictions != "clear":
        raise ConfigError("round_trips = 1 needs hide = 'residuals' and predictions = 'clear'")
    if algorithm == "fedbcd-s":
        raise ConfigError("round_trips = 1 needs all parties at once: fedsgd or fedbcd-p")


def reveals_gradients(settings: ExchangeSettings) -> bool:
    """Whether peers learn aggregated gradients only, so that the label guard applies."""
    return settings.scheme not in IN_CLEAR


def key_owners(party: Party, settings: ExchangeSettings) -> tuple[str, ...]:
    """Who owns a homomorphic key: nobody, the label party, or everyone."""
    if settings.scheme in IN_CLEAR:
        return ()
    return party.names if settings.hide == "both" else (party.label_party,)


def product_format(
    settings: ExchangeSettings,
    loss: Loss,
    parties: int,
    *,
    rows: int,
    feature_bound: float,
    feature_fraction_bits: int = MOST_FRACTION_BITS,
    columns: int = 1,
    rounds: int = 1,
    bandwidth_mbit: float = 1000.0,
    latency_ms: float = 0.5,
    rows_ahead: int = 0,
) -> ProductFormat:
    """Fixed point and bounds of a job's encrypted products.

    Fixed point is the job's, or else the scheme's; features that are exact with fewer fraction
    bits take fewer. Residuals of logistic losses stay within ±1. Affine ones follow the
    predictions: of one party where each encrypts its own, of all where the label party encrypts
    their sum. `rows_ahead` columns beside X carry next predictions, which take a summand of
    their own and are never exact.
    """
    value_bound = 1.0
    if loss.name not in {"logistic", "multinomial"}:
        affine = quadratic_loss(loss.name)
        summed = 1 if settings.hide == "both" else parties
        largest = settings.prediction_bound * summed
        value_bound = affine.curvature * largest + affine.label_bound
    summands = parties - 1 if settings.hide == "both" else 1
    return with_fraction_bits(
        settings.scheme,
        ProductFormat(
            rows=rows,
            value_bound=value_bound,
            matrix_bound=feature_bound,
            summands=summands + (1 if rows_ahead else 0),
            columns=columns + rows_ahead,
            vectors=loss.outputs,
            rounds=rounds,
            bandwidth_mbit=bandwidth_mbit,
            latency_ms=latency_ms,
        ),
        value_bits=settings.value_fraction_bits,
        matrix_bits=settings.feature_fraction_bits,
        exact_bits=None if rows_ahead else feature_fraction_bits,
    )


async def establish(
    party: Party,
    settings: ExchangeSettings,
    agreement: Agreement,
    *,
    batch_rows: int,
    total_rows: int,
    network: Line,
    lookahead: Lookahead,
    in_turns: bool,
    nonlinear: frozenset[str],
    keys: KeyMaker,
    noise: Noise | None = None,
) -> Established:
    """Set up this party's side: gather, make keys, exchange public ones.

    Args:
        party: who it is.
        settings: the job's exchange.
        agreement: what the parties agreed on.
        batch_rows: the most rows of a batch.
        total_rows: N.
        network: between the parties.
        lookahead: what this party knows of coming rounds.
        in_turns: whether parties take turns within a round.
        nonlinear: the parties that train a network.
        keys: makes homomorphic keys.
        noise: what the `dp` exchange adds.

    Raises:
        RangeExceeded: products could overflow; before any key is made.
        PeerViolation: a peer's key does not fit.
    """
    leakage = LeakageCount(total_rows, party.loss.outputs, agreement.columns, nonlinear=nonlinear)
    if settings.scheme == "dp":
        assert noise is not None  # noqa: S101
        return _noisy(party, noise, leakage)
    gathering = _gathering(party, settings, agreement)
    if settings.scheme in IN_CLEAR:
        plain = PlainLabelSide if party.holds_labels else PlainFeatureSide
        return Established(plain(party, gathering), gathering, None, leakage)
    format_for = partial(
        product_format,
        settings,
        party.loss,
        len(party.names),
        rows=batch_rows,
        feature_bound=agreement.feature_bound,
        feature_fraction_bits=agreement.feature_fraction_bits,
        columns=max(agreement.own_columns, *agreement.columns.values()),
        rounds=lookahead.rounds,
        bandwidth_mbit=network.bandwidth_mbit,
        latency_ms=network.latency_ms,
    )
    fmt, ahead = format_for(), format_for(rows_ahead=batch_rows)
    one_trip = settings.round_trips == 1 or (
        settings.round_trips == "auto"
        and not in_turns
        and nonlinear <= {party.label_party}
        and one_trip_pays(settings, fmt, ahead, network)
    )
    if one_trip:
        fmt = ahead
    own, evaluators = await exchange_keys(
        party, settings, fmt, owners=key_owners(party, settings), keys=keys
    )
    peers = {name: PeerKey(party, name, each, fmt) for name, each in evaluators.items()}
    own_key = None
    if own is not None:
        own_key = OwnKey(party, own, dict(agreement.columns), fmt, leakage)
    exchange: Exchange
    if settings.hide == "both":
        assert own_key is not None  # noqa: S101
        exchange = EncryptedBothSide(
            party,
            quadratic_loss(party.loss.name),
            fmt.value_bound,
            own_key=own_key,
            peer_keys=peers,
            masks=agreement.masks,
        )
    elif own_key is not None:
        exchange = (
            OneTripLabelSide(party, gathering, own_key, lookahead)
            if one_trip
            else EncryptedLabelSide(party, gathering, own_key)
        )
    else:
        key = peers[party.label_party]
        exchange = (
            OneTripFeatureSide(party, gathering, key, lookahead)
            if one_trip
            else EncryptedFeatureSide(party, gathering, key)
        )
    return Established(exchange, gathering, own, leakage)


def _noisy(party: Party, noise: Noise, leakage: LeakageCount) -> Established:
    gathering = NoisyGathering(party, noise.predictions, noise.generator)
    exchange: Exchange = PlainFeatureSide(party, gathering)
    if party.holds_labels:
        perturb = None
        if noise.residuals is not None:
            perturb = partial(noise.residuals.perturb, generator=noise.generator)
        exchange = PlainLabelSide(party, gathering, perturb)
    return Established(exchange, gathering, None, leakage)


def one_trip_pays(
    settings: ExchangeSettings, fmt: ProductFormat, ahead: ProductFormat, network: Line
) -> bool:
    """Whether larger replies take less time than a second round trip.

    Args:
        settings: the job's exchange.
        fmt: of two round trips.
        ahead: of one.
        network: between the parties.
    """
    seconds = SCHEMES[settings.scheme].seconds
    if seconds is None or settings.hide != "residuals" or settings.predictions != "clear":
        return False
    try:
        extra = seconds(ahead) - seconds(fmt)
    except RangeExceeded:
        return False
    return extra * fmt.vectors < 2 * network.latency_seconds


def _gathering(
    party: Party, settings: ExchangeSettings, agreement: Agreement
) -> ClearGathering | MaskedGathering:
    # Where both sides are hidden, held-out predictions should not show singly either.
    wants_sum = settings.hide == "both" and len(party.names) > 2  # noqa: PLR2004
    if settings.scheme == "masked" or settings.predictions == "masked" or wants_sum:
        return MaskedGathering(party, agreement.masks)
    return ClearGathering(party)
