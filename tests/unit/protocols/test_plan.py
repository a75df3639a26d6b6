"""The exchanges of a round, step sizes, and which exchanges there are."""

from typing import cast

import pytest

from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings
from securevfl.models.losses import Logistic, Loss, Multinomial, Squared, TaylorLogistic
from securevfl.protocols.exchanges.setting_up import check_exchange, product_format
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.signals import LocalRule
from securevfl.protocols.vertical.fedbcd import Plan, StepSize
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs

NAMES = ("shop", "bank", "lab")


def plan(in_turns: bool) -> Plan:
    return Plan(10, in_turns, StepSize(0.1), LocalRule(Logistic(), 5))


def party() -> Party:
    channel, costs = cast(Channel, None), cast(Costs, None)  # a plan asks neither
    return Party(channel, costs, NAMES, "bank", Logistic())


def test_in_fedbcd_p_all_parties_exchange_once_a_round() -> None:
    assert list(plan(in_turns=False).steps(4, party())) == [Step(4, NAMES, NAMES)]


def test_in_fedbcd_s_the_label_party_begins_and_each_sees_all_earlier_turns() -> None:
    assert list(plan(in_turns=True).steps(2, party())) == [
        Step(6, ("bank",), NAMES),
        Step(7, ("shop",), ("bank",)),
        Step(8, ("lab",), ("shop",)),
    ]


def test_no_two_exchanges_of_a_job_share_a_number() -> None:
    numbers = [step.index for t in range(5) for step in plan(in_turns=True).steps(t, party())]
    assert numbers == list(range(15))


def test_step_sizes_are_constant_or_fall_with_the_root_of_rounds() -> None:
    assert [StepSize(0.6).at(t) for t in (0, 3, 8)] == [0.6, 0.6, 0.6]
    assert [StepSize(0.6, decays=True).at(t) for t in (0, 3, 8)] == pytest.approx([0.6, 0.3, 0.2])
    assert StepSize(0.6, decays=True, parties=9).at(3) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("settings", "loss", "parties", "told"),
    [
        ({"scheme": "pailier"}, Logistic(), 2, "nearest is 'paillier'"),
        ({"scheme": "masked"}, Logistic(), 2, "at least 3 parties"),
        ({"scheme": "ckks", "predictions": "masked"}, Logistic(), 2, "at least 3 parties"),
        ({"scheme": "plain", "hide": "both"}, Squared(), 2, "needs a homomorphic scheme"),
        ({"scheme": "ckks", "hide": "both"}, Logistic(), 2, "'squared' or 'taylor-logistic'"),
        ({"scheme": "ckks", "hide": "both"}, Multinomial(3), 2, "'squared' or"),
        (
            {"scheme": "ckks", "hide": "both", "predictions": "masked"},
            Squared(),
            3,
            "sends no predictions",
        ),
        ({"scheme": "plain", "key_bits": 3072}, Logistic(), 2, "has no keys"),
        ({"scheme": "masked", "engine": "phe"}, Logistic(), 3, "has no keys"),
    ],
)
def test_an_exchange_that_cannot_be_is_refused(
    settings: dict[str, object], loss: Loss, parties: int, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_exchange(ExchangeSettings.model_validate(settings), loss, parties)


def format_of(loss: Loss, hide: str, parties: int) -> ProductFormat:
    settings = ExchangeSettings.model_validate(
        {"scheme": "ckks", "hide": hide, "prediction_bound": 8}
    )
    return product_format(settings, loss, parties, rows=64, feature_bound=4.0)


def test_logistic_residuals_are_bounded_by_one() -> None:
    assert format_of(Logistic(), "residuals", 5).value_bound == 1
    assert format_of(Multinomial(3), "residuals", 5).value_bound == 1


def test_affine_residuals_follow_all_predictions_or_ones_own() -> None:
    assert format_of(Squared(), "residuals", 3).value_bound == 8 * 3 + 1
    assert format_of(TaylorLogistic(), "residuals", 3).value_bound == 0.25 * 8 * 3 + 0.5
    assert format_of(TaylorLogistic(), "both", 3).value_bound == 0.25 * 8 + 0.5


def test_room_covers_the_sum_over_all_senders() -> None:
    assert format_of(TaylorLogistic(), "both", 5).summands == 4
    assert format_of(TaylorLogistic(), "residuals", 5).summands == 1
