from collections import Counter
from dataclasses import MISSING, fields, replace
from inspect import Parameter, signature
from math import inf

import numpy as np
import pytest

from securevfl.errors import ConfigError, PeerViolation
from securevfl.horizontal.client import Upload
from securevfl.horizontal.federation import (
    METHODS,
    Adam,
    Blocks,
    Federation,
    Method,
    Settings,
    method_named,
)
from securevfl.horizontal.server import total
from securevfl.horizontal.simulation import Round, floats_of_round, spent
from securevfl.horizontal.training import HorizontalResult, train_horizontal

SIZES = {"conv.weight": 6, "conv.bias": 2, "fc1.weight": 12, "fc1.bias": 3, "fc2.weight": 4}
SETTINGS = Settings(clients=100, taking_part=10, rounds=7, learning_rate=0.1)
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


def test_equal_blocks_cut_tensors_and_leave_the_shared_one_out() -> None:
    blocks = Blocks.equal(SIZES, 4, ["conv"])
    assert [len(each) for each in blocks.own] == [5, 5, 5, 4]
    assert blocks.shared.tolist() == list(range(8))
    assert blocks.uploaded(1).tolist() == [*range(13, 18), *range(8)]
    assert (len(blocks), blocks.parameters) == (4, 27)


def test_blocks_by_layers_hold_whole_tensors_as_even_as_these_allow() -> None:
    blocks = Blocks.by_layers(SIZES, 2, ["fc2"])
    assert [each.tolist() for each in blocks.own] == [[*range(8, 20)], [*range(8), *range(20, 23)]]
    assert blocks.shared.tolist() == list(range(23, 27))
    assert len(Blocks.by_layers(SIZES, 5)) == 5
    assert Blocks.by_layers(SIZES, 2, "fc2").shared.tolist() == list(range(23, 27))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Blocks.equal(SIZES, 28), "blocks = 28: expected 1 to 27"),
        (lambda: Blocks.equal(SIZES, 0), "expected 1 to 27"),
        (lambda: Blocks.equal(SIZES, 2.0), "blocks = 2.0: expected a whole number"),  # type: ignore[arg-type]
        (lambda: Blocks.equal([*SIZES], 2), "sizes: expected numbers by name, not a list"),  # type: ignore[arg-type]
        (lambda: Blocks.by_layers(SIZES, 6), "expected 1 to 5, the unshared tensors"),
        (lambda: Blocks.by_layers(SIZES, 2, ["fc"]), "shared = 'fc': the model's tensors are conv"),
        (lambda: Blocks.by_layers(SIZES, 1, [*SIZES]), "expected 1 to 0"),
        (lambda: Blocks((np.arange(3),), np.arange(2, 5)), "every parameter in one block"),
        (lambda: Blocks((np.arange(3),), np.arange(4, 5)), "every parameter in one block"),
        (lambda: Blocks((np.arange(3), np.arange(0)), np.arange(3, 5)), "no parameters"),
        (lambda: replace(METHODS["fedbcgd"], momentum=1.0), "momentum = 1.0"),
        (lambda: replace(METHODS["fedadam"], momentum=0.5), "adam has its own"),
        (lambda: replace(METHODS["feddc"], blockwise=True), "no blocks"),
        (lambda: replace(METHODS["fedavg"], pull=0.1), "pull = 0.1"),
        (lambda: replace(METHODS["feddc"], pull=-0.1), "pull = -0.1"),
        (lambda: replace(METHODS["feddc"], pull=float("nan")), "pull = nan"),
        (lambda: Method("mine", momentum="most"), "momentum = 'most': expected a number"),  # type: ignore[arg-type]
        (lambda: Method("mine", correction="drfit"), "correction = 'drfit': expected one of none"),  # type: ignore[arg-type]
        (lambda: Adam(floor=0.0), "above 0"),
        (lambda: Adam(second=1.0), r"in \[0, 1\)"),
        (lambda: method_named("fedbcg"), "expected one of fedavg, fedavgm"),
    ],
)
def test_blocks_and_methods_that_cannot_be_are_refused(make: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()  # type: ignore[operator]


def test_groups_are_of_one_size_and_drawn_without_replacement() -> None:
    by = Federation(METHODS["fedbcgd"], SETTINGS, Blocks.equal(SIZES, 5))
    rounds = [by.assignments(index) for index in range(200)]
    for assignments in rounds:
        assert len(assignments) == 10
        assert Counter(assignments.values()) == dict.fromkeys(range(5), 2)
    assert rounds == [by.assignments(index) for index in range(200)]
    assert {client for each in rounds for client in each} == set(range(100))
    other = replace(by, settings=replace(SETTINGS, seed=1))
    assert rounds[0] != other.assignments(0)
    assert by.group_size == 2


def test_who_takes_part_and_in_what_order_rows_come_are_drawn_apart() -> None:
    everyone = replace(SETTINGS, taking_part=100, batch_size=100, epochs=1)
    by = Federation(METHODS["fedavg"], everyone, Blocks.equal(SIZES, 1))
    drawn = list(by.assignments(3))
    for client in range(100):
        generator = np.random.default_rng((0, 3, client))
        assert drawn != generator.choice(100, 100, replace=False).tolist()


@pytest.mark.parametrize("blocks", [20, 6])
def test_blocks_that_do_not_divide_a_round_s_clients_are_refused(blocks: int) -> None:
    with pytest.raises(ConfigError, match=r"taking_part = 10, one of 1, 2, 5, 10$"):
        Federation(METHODS["fedbcgd"], SETTINGS, Blocks.equal(SIZES, blocks))


def test_methods_without_blocks_upload_everything() -> None:
    by = Federation(METHODS["scaffold"], SETTINGS, Blocks.equal(SIZES, 20))
    assert (len(by.blocks), len(by.blocks.shared)) == (1, 0)


def test_the_step_size_decays_by_the_round_and_batches_are_epochs_of_all_rows() -> None:
    assert SETTINGS.step_size(0) == pytest.approx(0.1)
    assert SETTINGS.step_size(3) == pytest.approx(0.1 * 0.998**3)
    batches = replace(SETTINGS, epochs=2, batch_size=4).batches(3, 10, 0)
    assert [len(each) for each in batches] == [4, 4, 2, 4, 4, 2]
    for epoch in (batches[:3], batches[3:]):
        assert sorted(np.concatenate(epoch)) == list(range(10))
    again = replace(SETTINGS, epochs=2, batch_size=4).batches(4, 10, 0)
    assert not np.array_equal(np.concatenate(batches), np.concatenate(again))
    assert [len(each) for each in SETTINGS.batches(0, 50, 0)] == [50] * 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("clients", "taking_part", "rounds", "epochs", "batch_size")),
        *(("taking_part", 101), ("learning_rate", 0.0), ("learning_rate", float("inf"))),
        *(("decay", 0.0), ("decay", 1.1), ("weight_decay", -1.0), ("seed", -1)),
        *(("clip", 0.0), ("clip", -1.0)),
        *((name, 1.5) for name in ("clients", "taking_part", "rounds", "epochs", "batch_size")),
        *(
            (name, float("nan"))
            for name in ("learning_rate", "decay", "weight_decay", "clip", "seed")
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} = "):
        replace(SETTINGS, **{name: value})  # type: ignore[arg-type]


def test_steps_with_a_correction_are_bounded_unless_something_else_is_set() -> None:
    bounds = {
        name: Federation(METHODS[name], SETTINGS, Blocks.equal({"a": 5}, 1)).clip
        for name in METHODS
    }
    corrected = {"scaffold", "feddc", "fedbcgd+", "fedbcgd+:printed"}
    assert bounds == {name: 10.0 if name in corrected else inf for name in METHODS}
    for name in ("fedavg", "scaffold"):
        for clip in (2, inf):
            by = Federation(METHODS[name], replace(SETTINGS, clip=clip), Blocks.whole(5))
            assert by.clip == clip


def test_training_in_one_place_and_on_flower_have_the_same_defaults() -> None:
    taken = signature(train_horizontal).parameters
    for each in fields(Settings):
        if each.name != "clients":
            default = Parameter.empty if each.default is MISSING else each.default
            assert taken[each.name].default == default, each.name


def test_who_learns_what_names_blocks_and_control_variates() -> None:
    assert "its block's" in METHODS["fedbcgd"].learns["server"]
    assert "control" in METHODS["fedbcgd+"].learns["server"]
    assert "all its change" in Method("mine").learns["server"]


def test_a_sum_does_not_depend_on_who_came_first_and_a_block_that_nobody_sent_is_an_error() -> None:
    blocks = Blocks.equal({"a": 5}, 2)
    rng = np.random.default_rng(3)
    uploads = [
        Upload(client, client % 2, rng.standard_normal(3 - client % 2), np.zeros(0))
        for client in range(6)
    ]
    forth, back = total(blocks, uploads), total(blocks, uploads[::-1])
    np.testing.assert_array_equal(forth.changes, back.changes)
    np.testing.assert_allclose(
        forth.changes[blocks.own[1]], sum(each.changes for each in uploads if each.block == 1)
    )
    assert forth.uploads == (3, 3)
    for missing in (uploads[::2], []):
        with pytest.raises(PeerViolation, match="no client uploaded it"):
            total(blocks, missing)


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
