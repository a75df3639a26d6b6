"""Which exchanges are let through, who owns keys, and where the label guard applies."""

from dataclasses import replace
from typing import cast

import pytest

from securevfl.crypto.schemes import SCHEMES
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings
from securevfl.models.losses import Logistic, Loss, Multinomial, Squared, TaylorLogistic
from securevfl.protocols.exchanges.setting_up import (
    EXCHANGES,
    check_exchange,
    key_owners,
    one_trip_pays,
    product_format,
    reveals_gradients,
)
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.line import Line

NAMES = ("shop", "bank", "lab")


class Named:
    name = "shop"


def party() -> Party:
    return Party(cast(Channel, Named()), cast(Costs, None), NAMES, "bank", Logistic())


def settings(**values: object) -> ExchangeSettings:
    return ExchangeSettings.model_validate(values)


@pytest.mark.parametrize(
    ("exchange", "loss", "parties"),
    [
        (settings(scheme="plain"), Logistic(), 2),
        (settings(scheme="plain", predictions="masked"), Multinomial(3), 3),
        (settings(scheme="masked"), Logistic(), 3),
        (settings(scheme="paillier", key_bits=2048, engine="phe"), Logistic(), 2),
        (settings(scheme="ckks", predictions="masked"), Multinomial(4), 3),
        (settings(scheme="ckks", hide="both"), Squared(), 2),
        (settings(scheme="paillier", hide="both"), TaylorLogistic(), 5),
    ],
)
def test_an_exchange_that_fits_is_let_through(
    exchange: ExchangeSettings, loss: Loss, parties: int
) -> None:
    check_exchange(exchange, loss, parties)


def test_every_scheme_is_an_exchange() -> None:
    assert ("plain", "masked", "dp", *SCHEMES) == EXCHANGES


def test_only_encrypted_exchanges_reveal_gradients_in_place_of_residuals() -> None:
    assert [name for name in EXCHANGES if reveals_gradients(settings(scheme=name))] == [*SCHEMES]


def test_keys_belong_to_nobody_to_the_label_party_or_to_all() -> None:
    assert key_owners(party(), settings(scheme="masked")) == ()
    assert key_owners(party(), settings(scheme="ckks")) == ("bank",)
    assert key_owners(party(), settings(scheme="ckks", hide="both")) == NAMES


def test_the_format_of_products_is_the_jobs() -> None:
    exchange = settings(scheme="ckks", value_fraction_bits=20, feature_fraction_bits=12)
    fmt = product_format(exchange, Logistic(), 3, rows=100, feature_bound=8.0)
    assert (fmt.rows, fmt.matrix_bound) == (100, 8.0)
    assert (fmt.value_fraction_bits, fmt.matrix_fraction_bits) == (20, 12)


@pytest.mark.parametrize(
    ("rows", "exact", "bits"),
    [
        (64, 32, (20, 14)),  # products of 47 bits and fewer have replies of one prime
        (256, 32, (19, 13)),
        (2048, 32, (18, 12)),
        (1 << 20, 32, (18, 12)),  # none is handy: the coarsest
        (256, 14, (19, 13)),
        (256, 10, (20, 10)),
        (1 << 20, 0, (20, 0)),
        (256, 3, (20, 3)),
    ],
)
def test_fixed_point_of_bfv_is_the_finest_with_short_replies(
    rows: int, exact: int, bits: tuple[int, int]
) -> None:
    fmt = product_format(
        settings(scheme="bfv"),
        Logistic(),
        3,
        rows=rows,
        feature_bound=32.0,
        feature_fraction_bits=exact,
    )
    assert (fmt.value_fraction_bits, fmt.matrix_fraction_bits) == bits
    if rows < 1 << 20:
        assert fmt.largest_product.bit_length() < 48


def test_a_jobs_own_fixed_point_is_kept_but_for_bits_that_would_be_zero() -> None:
    exchange = settings(scheme="bfv", value_fraction_bits=30, feature_fraction_bits=20)
    for exact, expected in ((32, 20), (20, 20), (7, 7), (0, 0)):
        fmt = product_format(
            exchange, Logistic(), 2, rows=9, feature_bound=1.0, feature_fraction_bits=exact
        )
        assert (fmt.value_fraction_bits, fmt.matrix_fraction_bits) == (30, expected)


@pytest.mark.parametrize(("scheme", "bits"), [("paillier", (24, 0)), ("ckks", (24, 16))])
def test_only_exact_schemes_drop_the_bits_of_exact_features(
    scheme: str, bits: tuple[int, int]
) -> None:
    fmt = product_format(
        settings(scheme=scheme),
        Logistic(),
        2,
        rows=9,
        feature_bound=1.0,
        feature_fraction_bits=0,
    )
    assert (fmt.value_fraction_bits, fmt.matrix_fraction_bits) == bits


def test_next_predictions_take_columns_a_summand_and_inexact_numbers() -> None:
    fmt = product_format(
        settings(scheme="bfv"),
        Multinomial(3),
        2,
        rows=64,
        feature_bound=1.0,
        feature_fraction_bits=0,
        columns=10,
        rounds=7,
        bandwidth_mbit=20.0,
        latency_ms=150.0,
        rows_ahead=64,
    )
    assert (fmt.columns, fmt.summands, fmt.matrix_fraction_bits) == (74, 2, 14)
    assert (fmt.vectors, fmt.rounds, fmt.bandwidth_mbit, fmt.latency_ms) == (3, 7, 20.0, 150.0)


@pytest.mark.parametrize(
    ("exchange", "algorithm", "says"),
    [
        ({"scheme": "ckks"}, "fedbcd-p", "needs scheme bfv, not 'ckks'"),
        ({"scheme": "bfv", "hide": "both"}, "fedbcd-p", "hide = 'residuals'"),
        ({"scheme": "bfv", "predictions": "masked"}, "fedbcd-p", "predictions = 'clear'"),
        ({"scheme": "bfv"}, "fedbcd-s", "fedsgd or fedbcd-p"),
    ],
)
def test_one_round_trip_is_refused_where_it_does_not_exist(
    exchange: dict[str, object], algorithm: str, says: str
) -> None:
    loss = Squared() if exchange.get("hide") else Logistic()
    with pytest.raises(ConfigError, match=says):
        check_exchange(settings(**exchange, round_trips=1), loss, 3, algorithm)
    check_exchange(settings(scheme="bfv", round_trips=1), Logistic(), 2, "fedsgd")


def test_one_trip_pays_where_a_round_trip_takes_longer_than_what_is_sent_more() -> None:
    exchange = settings(scheme="bfv")
    fmt, ahead = (
        product_format(
            exchange, Multinomial(3), 2, rows=512, feature_bound=1.0, columns=8, rows_ahead=rows
        )
        for rows in (0, 512)
    )
    seconds = SCHEMES["bfv"].seconds
    assert seconds is not None
    extra_ms = 1e3 * 3 * (seconds(ahead) - seconds(fmt))
    assert extra_ms > 0
    assert one_trip_pays(exchange, fmt, ahead, Line(extra_ms / 2 * 1.01, 1000.0))
    assert not one_trip_pays(exchange, fmt, ahead, Line(extra_ms / 2 * 0.99, 1000.0))
    never = Line(1e6, 1000.0)
    too_large = replace(ahead, rows=1 << 30)
    assert not one_trip_pays(exchange, fmt, too_large, never)
    for other in (
        settings(scheme="paillier"),
        settings(scheme="bfv", hide="both"),
        settings(scheme="bfv", predictions="masked"),
    ):
        assert not one_trip_pays(other, fmt, ahead, never)
