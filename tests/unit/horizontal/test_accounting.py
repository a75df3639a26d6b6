"""Numbers up and down, counted by hand."""

import numpy as np
import pytest

from securevfl.horizontal.codings import BlockUpload
from securevfl.horizontal.federation import METHODS, Blocks, Federation, Settings
from securevfl.horizontal.simulation import (
    Round,
    floats_in,
    floats_of_round,
    spent,
)
from securevfl.horizontal.training import HorizontalResult

# Of the paper's LeNet-5 for 3 x 32 x 32: two convolutions of 64 maps of 5 x 5, dense layers of 384
# and 192, ten classes.
LENET5 = {
    "conv1.weight": 64 * 3 * 25,
    "conv1.bias": 64,
    "conv2.weight": 64 * 64 * 25,
    "conv2.bias": 64,
    "fc1.weight": 1600 * 384,
    "fc1.bias": 384,
    "fc2.weight": 384 * 192,
    "fc2.bias": 192,
    "fc3.weight": 192 * 10,
    "fc3.bias": 10,
}
SETTINGS = Settings(clients=100, taking_part=10, rounds=1000, learning_rate=0.1)


def test_lenet5_uploads_what_was_counted_by_hand() -> None:
    p = sum(LENET5.values())
    assert p == 797_962
    assert (LENET5["fc1.weight"] + LENET5["fc1.bias"]) / p == pytest.approx(0.770, abs=5e-4)
    for cut in (Blocks.equal, Blocks.by_layers):
        blocks = cut(LENET5, 5, ["fc2", "fc3"])
        assert len(blocks.shared) / p == pytest.approx(0.095, abs=1e-4)
        paper, up = floats_of_round(Federation(METHODS["fedbcgd"], SETTINGS, blocks))
        assert paper == p / 5
        assert up / 10 / p == pytest.approx(0.276, abs=5e-4)
        assert up == 2 * (p - 75_850) + 10 * 75_850
        # A thousand models of uploads are five thousand rounds.
        assert 1000 * p / paper == pytest.approx(5000)


@pytest.mark.parametrize(
    ("name", "paper", "up"),
    [
        ("fedavg", 1, 10),
        ("fedavgm", 1, 10),
        ("fedadam", 1, 10),
        ("scaffold", 2, 20),
        ("feddc", 2, 20),
        ("fedbcgd", 1 / 5, 2),
        ("fedbcgd+", 2 / 5, 4),
    ],
)
def test_each_method_is_counted_as_its_paper_counts_it(name: str, paper: float, up: float) -> None:
    by = Federation(METHODS[name], SETTINGS, Blocks.equal({"all": 50}, 5))
    assert floats_of_round(by) == pytest.approx((50 * paper, 50 * up))


def test_numbers_in_a_message_are_entries_of_its_arrays() -> None:
    message = BlockUpload(0, np.zeros(3), np.zeros(4, np.float32), np.zeros(0), np.zeros(0))
    assert floats_in(message) == 7


def test_rounds_add_up_to_the_first_score_that_is_good_enough() -> None:
    scored = tuple(
        Round((0,), 5.0, 20.0, 30.0, 80, 120, 7, ends, score)
        for ends, score in ((1.0, 0.2), (2.0, None), (3.0, 0.4), (4.0, 0.3), (5.0, 0.9))
    )
    by = Federation(METHODS["fedavg"], SETTINGS, Blocks.whole(5))
    trained = HorizontalResult(np.zeros(5), scored, by, {})
    reached = trained.spent_to(0.4)
    assert reached == spent(scored[:3])
    assert reached is not None
    assert (reached.rounds, reached.paper_floats, reached.up_floats) == (3, 15.0, 60.0)
    assert (reached.down_floats, reached.up_bytes, reached.down_bytes) == (90.0, 240, 360)
    assert (reached.gradients, reached.virtual_s) == (21, 3.0)
    assert trained.spent_to(0.95) is None
    assert spent([]).rounds == 0
