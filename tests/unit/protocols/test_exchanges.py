"""Which exchanges are let through, who owns keys, and what encrypted products are sized for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from securevfl.crypto.bfv_parameters import BfvParameters
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import SCHEMES
from securevfl.errors import ConfigError, RangeExceeded
from securevfl.job import Job
from securevfl.models.curvature import MOST_GRAM_COLUMNS
from securevfl.models.losses import Logistic
from securevfl.protocols.catalogue import ALGORITHMS, EXCHANGES
from securevfl.protocols.exchanges.class_sums import class_sum_format
from securevfl.protocols.exchanges.under_encryption import one_trip_pays, product_format
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.transfer.sides import score_format
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import Line
from tests.plans import NAMES, agreement_of, plan_of


class Named:
    name = "shop"


def party() -> Party:
    return Party(cast(Channel, Named()), cast(Costs, None), NAMES, "bank", Logistic())


def plan(
    exchange: dict[str, object], loss: str = "logistic", parties: int = 2, classes: int = 2
) -> Plan:
    return plan_of(parties=parties, classes=classes, job={"loss": loss}, exchange=exchange)


@pytest.mark.parametrize(
    ("exchange", "loss", "parties", "classes"),
    [
        ({"scheme": "plain"}, "logistic", 2, 2),
        ({"scheme": "plain", "predictions": "masked"}, "logistic", 3, 3),
        ({"scheme": "masked"}, "logistic", 3, 2),
        ({"scheme": "paillier", "key_bits": 2048, "engine": "phe"}, "logistic", 2, 2),
        ({"scheme": "ckks", "predictions": "masked"}, "logistic", 3, 4),
        ({"scheme": "ckks", "hide": "both"}, "squared", 2, 2),
        ({"scheme": "paillier", "hide": "both"}, "taylor-logistic", 5, 2),
        ({"scheme": "bfv", "round_trips": 1}, "logistic", 2, 2),
    ],
)
def test_an_exchange_that_fits_is_let_through(
    exchange: dict[str, object], loss: str, parties: int, classes: int
) -> None:
    assert plan(exchange, loss, parties, classes).exchange.name == exchange["scheme"]


@pytest.mark.parametrize(
    ("exchange", "loss", "parties", "classes", "message"),
    [
        ({"scheme": "masked"}, "logistic", 2, 2, "at least 3 parties"),
        ({"scheme": "ckks", "predictions": "masked"}, "logistic", 2, 2, "at least 3 parties"),
        ({"scheme": "plain", "hide": "both"}, "squared", 2, 2, "needs a homomorphic scheme"),
        ({"scheme": "plain", "round_trips": 1}, "logistic", 2, 2, "needs a homomorphic scheme"),
        ({"scheme": "ckks", "hide": "both"}, "logistic", 2, 2, "'squared' or 'taylor-logistic'"),
        ({"scheme": "ckks", "hide": "both"}, "logistic", 2, 3, "'multinomial': hide = 'both'"),
        ({"scheme": "bfv", "hide": "both"}, "multinomial", 2, 3, "'squared' or 'taylor-logistic'"),
        ({"scheme": "bfv", "hide": "both"}, "squared-hinge", 2, 2, "needs 'squared' or"),
        (
            {"scheme": "ckks", "hide": "both", "predictions": "masked"},
            "squared",
            3,
            2,
            "sends no predictions",
        ),
        ({"scheme": "plain", "key_bits": 3072}, "logistic", 2, 2, "has no keys"),
        ({"scheme": "masked", "engine": "phe"}, "logistic", 3, 2, "has no keys"),
        ({"scheme": "dp", "predictions": "masked"}, "logistic", 3, 2, "adds noise at each party"),
    ],
)
def test_an_exchange_that_cannot_be_is_refused(
    exchange: dict[str, object], loss: str, parties: int, classes: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(exchange, loss, parties, classes)


@pytest.mark.parametrize("catalogue", [EXCHANGES, ALGORITHMS])
def test_a_name_is_described_where_the_catalogue_says(catalogue: Mapping[str, Any]) -> None:
    assert all(each.name == name for name, each in catalogue.items())
    assert catalogue is ALGORITHMS or {*SCHEMES} < {*catalogue}


@pytest.mark.parametrize("name", EXCHANGES)
def test_only_encrypted_exchanges_reveal_gradients_in_place_of_residuals(name: str) -> None:
    exchange = EXCHANGES[name]
    learns = exchange.learns(Job.of(exchange={"scheme": name}))
    assert learns.gradients == (exchange.encrypts and not exchange.shares_parameters)
    assert (learns.residuals == "hidden") == exchange.encrypts


@pytest.mark.parametrize(
    ("exchange", "owners"),
    [
        ({"scheme": "masked"}, ()),
        ({"scheme": "ckks"}, ("bank",)),
        ({"scheme": "ckks", "hide": "both"}, NAMES),
    ],
)
def test_keys_belong_to_nobody_to_the_label_party_or_to_all(
    exchange: dict[str, object], owners: tuple[str, ...]
) -> None:
    resolved = plan(exchange, "squared", parties=3)
    assert resolved.exchange.key_owners(resolved.job.exchange, party()) == owners


def format_of(
    exchange: dict[str, object],
    loss: str = "logistic",
    *,
    parties: int = 3,
    classes: int = 2,
    rows: int = 64,
    feature_bound: float = 1.0,
    exact: int = 32,
) -> ProductFormat:
    resolved = plan_of(
        parties=parties, classes=classes, rows=rows, job={"loss": loss}, exchange=exchange
    )
    agreement = agreement_of(*[7] * parties, feature_bound=feature_bound, fraction_bits=exact)
    return product_format(resolved, agreement)


CKKS: dict[str, object] = {"scheme": "ckks", "prediction_bound": 8}
BOTH = {**CKKS, "hide": "both"}


@pytest.mark.parametrize(
    ("exchange", "given", "bound"),
    [
        (CKKS, {"parties": 5}, 1),
        (CKKS, {"parties": 5, "classes": 3}, 1),
        (CKKS, {"loss": "squared"}, 8 * 3 + 1),
        (CKKS, {"loss": "taylor-logistic"}, 0.25 * 8 * 3 + 0.5),
        (BOTH, {"loss": "taylor-logistic"}, 0.25 * 8 + 0.5),
        (CKKS, {"loss": "squared-hinge"}, 2 * (1 + 8 * 3)),
    ],
)
def test_residuals_are_bounded_by_one_or_follow_all_predictions_or_ones_own(
    exchange: dict[str, object], given: dict[str, Any], bound: float
) -> None:
    assert format_of(exchange, **given).value_bound == bound


def test_the_format_of_products_is_the_jobs_with_room_for_the_sum_over_all_senders() -> None:
    exchange = {"scheme": "ckks", "value_fraction_bits": 20, "feature_fraction_bits": 12}
    fmt = format_of(exchange, rows=100, feature_bound=8.0)
    assert (fmt.rows, fmt.matrix_bound, fmt.summands) == (100, 8.0, 1)
    assert (fmt.value_fraction_bits, fmt.matrix_fraction_bits) == (20, 12)
    assert format_of(BOTH, "squared", parties=5).summands == 4


@pytest.mark.parametrize("lookahead", [False, True])
def test_formats_say_whether_the_label_party_learns_products(lookahead: bool) -> None:
    resolved = plan_of(parties=3, exchange={"scheme": "bfv"})
    fmt = product_format(resolved, agreement_of(3, 9, 5), lookahead=lookahead)
    assert fmt.opened == lookahead


def test_scores_are_products_that_the_label_party_learns() -> None:
    both = {"scheme": "bfv", "hide": "both"}
    sums = plan_of(exchange=both, job={"loss": "taylor-logistic"})
    transfer = plan_of(exchange=both, job={"algorithm": "ftl", "loss": "taylor-logistic"})
    assert class_sum_format(sums).opened
    assert score_format(transfer, units=4).opened


def test_layouts_are_for_the_widest_party_and_sizes_for_all_rounds() -> None:
    resolved = plan_of(parties=3, exchange={"scheme": "bfv"}, job={"rounds": 77})
    for columns in ((3, 9, 5), (9, 3, 5)):
        fmt = product_format(resolved, agreement_of(*columns))
        assert (fmt.columns, fmt.rounds) == (9, 77)


@pytest.mark.parametrize(
    ("rows", "exact", "bits"),
    [
        (64, 32, (20, 14)),  # products of 47 bits and fewer take two primes
        (256, 32, (19, 13)),
        (2048, 32, (18, 12)),
        (4096, 32, (17, 12)),  # more rows take fewer bits of v, and X keeps its own
        (32_561, 32, (15, 12)),
        (1 << 20, 32, (13, 12)),  # none is handy: the coarsest
        (256, 14, (19, 13)),
        (256, 10, (20, 10)),
        (1 << 20, 0, (20, 0)),
        (256, 3, (20, 3)),
    ],
)
def test_fixed_point_of_bfv_is_the_finest_with_short_ciphertexts(
    rows: int, exact: int, bits: tuple[int, int]
) -> None:
    fmt = format_of({"scheme": "bfv"}, rows=rows, feature_bound=32.0, exact=exact)
    assert (fmt.value_fraction_bits, fmt.matrix_fraction_bits) == bits
    if rows < 1 << 20:
        assert fmt.largest_product.bit_length() < 48


def test_a_jobs_own_fixed_point_is_kept_but_for_bits_that_would_be_zero() -> None:
    exchange = {"scheme": "bfv", "value_fraction_bits": 30, "feature_fraction_bits": 20}
    for exact, expected in ((32, 20), (20, 20), (7, 7), (0, 0)):
        fmt = format_of(exchange, rows=9, exact=exact)
        assert (fmt.value_fraction_bits, fmt.matrix_fraction_bits) == (30, expected)


@pytest.mark.parametrize(("scheme", "bits"), [("paillier", (24, 0)), ("ckks", (24, 16))])
def test_only_exact_schemes_drop_the_bits_of_exact_features(
    scheme: str, bits: tuple[int, int]
) -> None:
    fmt = format_of({"scheme": scheme}, rows=9, exact=0)
    assert (fmt.value_fraction_bits, fmt.matrix_fraction_bits) == bits


def test_next_predictions_take_columns_a_summand_and_inexact_numbers() -> None:
    resolved = plan_of(
        classes=3,
        job={"rounds": 7},
        exchange={"scheme": "bfv"},
        network={"latency_ms": 150.0, "bandwidth_mbit": 20.0},
    )
    fmt = product_format(resolved, agreement_of(10, 4, fraction_bits=0), lookahead=True)
    assert (fmt.columns, fmt.summands, fmt.matrix_fraction_bits) == (74, 2, 14)
    assert (fmt.vectors, fmt.rounds, fmt.bandwidth_mbit, fmt.latency_ms) == (3, 7, 20.0, 150.0)


@pytest.mark.parametrize(
    ("exchange", "algorithm", "says"),
    [
        ({"scheme": "ckks"}, "fedbcd-p", "needs scheme bfv, not 'ckks'"),
        ({"scheme": "paillier"}, "fedbcd-p", "needs scheme bfv, not 'paillier'"),
        ({"scheme": "bfv", "hide": "both"}, "fedbcd-p", "hide = 'residuals'"),
        ({"scheme": "bfv", "predictions": "masked"}, "fedbcd-p", "predictions = 'clear'"),
        ({"scheme": "bfv"}, "fedbcd-s", "step all at once"),
    ],
)
def test_one_round_trip_is_refused_where_it_does_not_exist(
    exchange: dict[str, object], algorithm: str, says: str
) -> None:
    loss = "squared" if exchange.get("hide") else "logistic"
    with pytest.raises(ConfigError, match=says):
        plan_of(
            parties=3,
            job={"algorithm": algorithm, "loss": loss},
            exchange={**exchange, "round_trips": 1},
        )


def test_one_trip_pays_where_a_round_trip_takes_longer_than_what_is_sent_more() -> None:
    resolved = plan_of(rows=512, classes=3, exchange={"scheme": "bfv"})
    fmt, wider = (
        product_format(resolved, agreement_of(8, 4), lookahead=each) for each in (False, True)
    )
    seconds = SCHEMES["bfv"].seconds
    assert seconds is not None
    extra_ms = 1e3 * 3 * (seconds(wider) - seconds(fmt))
    assert extra_ms > 0
    assert one_trip_pays(replace(resolved, line=Line(extra_ms / 2 * 1.01, 1000.0)), fmt, wider)
    assert not one_trip_pays(replace(resolved, line=Line(extra_ms / 2 * 0.99, 1000.0)), fmt, wider)
    never = Line(1e6, 1000.0)
    assert one_trip_pays(replace(resolved, line=never), fmt, wider)
    wide = replace(fmt, columns=MOST_GRAM_COLUMNS + 1)
    assert not one_trip_pays(replace(resolved, line=never), wide, wider)
    too_large = replace(wider, rows=1 << 30)
    assert not one_trip_pays(replace(resolved, line=never), fmt, too_large)
    others: tuple[dict[str, object], ...] = (
        {"scheme": "paillier"},
        {"scheme": "bfv", "hide": "both"},
        {"scheme": "bfv", "predictions": "masked"},
    )
    for other in others:
        slow = plan(other, "squared", parties=3)
        assert not one_trip_pays(replace(slow, line=never), fmt, wider)


@pytest.mark.parametrize("rows", [4097, 32_561])
def test_one_trip_is_refused_where_its_matrix_would_be_too_large(rows: int) -> None:
    with pytest.raises(ConfigError, match=rf"batch_size is {rows}, at most 4096 expected"):
        plan_of(rows=rows, exchange={"scheme": "bfv", "round_trips": 1})
    resolved = plan_of(rows=rows, exchange={"scheme": "bfv"})
    fmt, wider = (
        product_format(resolved, agreement_of(8, 4), lookahead=each) for each in (False, True)
    )
    assert not one_trip_pays(replace(resolved, line=Line(1e6, 1e6)), fmt, wider)
    plan_of(rows=4096, exchange={"scheme": "bfv", "round_trips": 1})
    plan_of(rows=rows, job={"batch_size": 64}, exchange={"scheme": "bfv", "round_trips": 1})


def test_one_trip_pays_less_where_a_line_serves_more_evaluators() -> None:
    def pays(parties: int, latency_ms: float) -> bool:
        resolved = plan_of(parties=parties, rows=256, exchange={"scheme": "bfv"})
        resolved = replace(resolved, line=Line(latency_ms, 20.0))
        formats = (
            product_format(resolved, agreement_of(*[7] * parties), lookahead=each)
            for each in (False, True)
        )
        return one_trip_pays(resolved, *formats)

    assert pays(2, 150.0)
    assert not pays(5, 150.0)
    assert pays(5, 600.0)


def test_products_of_full_batches_that_fit_no_fixed_point_are_refused_with_their_numbers() -> None:
    with pytest.raises(RangeExceeded, match=r"1 x 60000 rows .* needs 60 bits, more than the 57"):
        BfvParameters.of(format_of({"scheme": "bfv"}, rows=60_000, feature_bound=2.0**18))
