"""Which exchanges are let through, who owns keys, and where the label guard applies."""

from typing import cast

import pytest

from securevfl.crypto.schemes import SCHEMES
from securevfl.job import ExchangeSettings
from securevfl.models.losses import Logistic, Loss, Multinomial, Squared, TaylorLogistic
from securevfl.protocols.exchange import Party
from securevfl.protocols.exchanges import (
    EXCHANGES,
    check_exchange,
    key_owners,
    product_format,
    reveals_gradients,
)
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs

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
    assert ("plain", "masked", *SCHEMES) == EXCHANGES


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
