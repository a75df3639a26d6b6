import numpy as np

from securevfl.protocols.session.label_guard import LeakageCount, batch_digest


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def count(total: int = 160, outputs: int = 1) -> LeakageCount:
    return LeakageCount(total, outputs, {"shop": 10, "bank": 5})


def test_every_distinct_batch_counts_once_whatever_the_order_of_its_rows() -> None:
    leakage = count()
    for batch in (rows(0, 1, 2), rows(2, 0, 1), rows(0, 1, 2)):
        leakage.add("shop", batch)
    assert leakage.ratio == 10 / 160
    leakage.add("shop", rows(3, 4, 5))
    assert leakage.ratio == 20 / 160


def test_a_batch_is_counted_by_its_rows() -> None:
    leakage = count()
    for _ in range(2):
        leakage.add("shop", rows(0, 1))
    assert leakage.revealed == {"shop": {batch_digest(rows(0, 1)): 10}}


def test_peers_may_collude_and_are_added_up() -> None:
    leakage = count()
    leakage.add("shop", rows(0, 1))
    leakage.add("bank", rows(0, 1))
    assert leakage.ratio == 15 / 160


def test_class_probabilities_sum_to_one_so_ten_outputs_hold_nine_unknowns() -> None:
    leakage = count(outputs=10)
    leakage.add("shop", rows(0))
    assert leakage.ratio == 10 * 10 / (160 * 9)


def test_different_rows_have_different_names() -> None:
    names = {batch_digest(rows(*numbers)) for numbers in [(0,), (1,), (0, 1), (0, 256), ()]}
    assert len(names) == 5


def network_count(total: int = 1600) -> LeakageCount:
    return LeakageCount(total, 1, {"shop": 10, "bank": 5}, nonlinear=frozenset({"shop"}))


def test_every_visit_of_a_batch_counts_for_a_network() -> None:
    leakage = network_count()
    for _ in range(3):
        leakage.add("shop", rows(0, 1))
        leakage.add("bank", rows(0, 1))
    assert leakage.ratio == (3 * 10 + 5) / 1600
