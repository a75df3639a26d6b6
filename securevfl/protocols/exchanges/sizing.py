"""Fixed point and bounds of a job's encrypted products, and when one round trip is enough."""

from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import SCHEMES, with_fraction_bits
from securevfl.errors import RangeExceeded
from securevfl.models.curvature import MOST_GRAM_COLUMNS
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement

# One round trip multiplies by a new S' x S matrix every round: 0.4 GB in NTT form at this S.
MOST_ROWS_AHEAD = 4096


def product_format(plan: Plan, agreement: Agreement, *, ahead: bool = False) -> ProductFormat:
    """Fixed point and bounds of a job's encrypted products.

    Fixed point is the job's, or else the scheme's; features that are exact with fewer fraction
    bits take fewer. Residuals of logistic losses and of the hinge stay within ±1. Others follow
    the predictions: of one party where each encrypts its own, of all where the label party encrypts
    their sum. Layouts are for the widest party, and flooding lasts for all products of all
    rounds.

    Args:
        plan: of the job.
        agreement: what the parties told each other.
        ahead: columns beside X carry the next batch's predictions, which take a summand of their
            own and are never exact.
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
            summands=summands + int(ahead),
            columns=columns + (plan.most_batch_rows if ahead else 0),
            vectors=loss.outputs,
            rounds=plan.rounds * plan.products,
            bandwidth_mbit=plan.line.bandwidth_mbit,
            latency_ms=plan.line.latency_ms,
            evaluators=parties - 1,
        ),
        value_bits=settings.value_fraction_bits,
        matrix_bits=settings.feature_fraction_bits,
        exact_bits=None if ahead else agreement.feature_fraction_bits,
    )


def takes_one_trip(plan: Plan, fmt: ProductFormat, ahead: ProductFormat) -> bool:
    """Whether a round of a job takes one round trip: as it says, or where that is faster.

    Args:
        plan: of the job.
        fmt: of two round trips.
        ahead: of one.
    """
    trips = plan.job.exchange.round_trips
    if trips != "auto":
        return trips == 1
    linear = plan.networks.keys() <= {plan.facts.label_party}
    return linear and not plan.algorithm.in_turns and one_trip_pays(plan, fmt, ahead)


def one_trip_pays(plan: Plan, fmt: ProductFormat, ahead: ProductFormat) -> bool:
    """Whether larger replies take less time than a second round trip."""
    settings = plan.job.exchange
    seconds = SCHEMES[settings.scheme].seconds
    if plan.most_batch_rows > MOST_ROWS_AHEAD:
        return False
    # Steps ahead are a matrix of P x P; with a network at the label party the widest is no P.
    if fmt.columns > MOST_GRAM_COLUMNS and not plan.networks:
        return False
    if seconds is None or settings.hide != "residuals" or settings.predictions != "clear":
        return False
    if settings.he_per_step:
        return False
    try:
        extra = seconds(ahead) - seconds(fmt)
    except RangeExceeded:
        return False
    return extra * fmt.vectors < 2 * plan.line.latency_seconds
