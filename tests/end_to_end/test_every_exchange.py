"""Every exchange that is known keeps the one contract."""

from typing import Any

import pytest

from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.protocols.catalogue import EXCHANGES
from tests.end_to_end.contract import check_contract

ROWS = 48


def few_rows(parties: int) -> VerticalDataset:
    return some_rows(load("breast_cancer", parties=parties), ROWS)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, variant, id=f"{name}-{number}")
        for name, exchange in EXCHANGES.items()
        for number, variant in enumerate(exchange.variants)
    ],
)
def test_views_show_what_the_description_says(name: str, variant: dict[str, Any]) -> None:
    check_contract(EXCHANGES[name], variant, few_rows)


@pytest.mark.parametrize("name", ["plain", "bfv"])
def test_the_contract_holds_with_masked_predictions(name: str) -> None:
    variant = {"exchange": {"predictions": "masked"}}
    exchange = EXCHANGES[name]
    assert exchange.fewest_parties == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(exchange), "fewest_parties", 3)
        check_contract(exchange, variant, few_rows)
