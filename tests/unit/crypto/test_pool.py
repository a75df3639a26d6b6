"""A stock of one-time items."""

from itertools import count

from securevfl.crypto.scheme import BlinderPool


def test_a_pool_fills_to_its_capacity_and_gives_every_item_once() -> None:
    numbers = count()
    pool = BlinderPool(lambda: next(numbers), 2)
    assert [pool.make_one() for _ in range(3)] == [True, True, False]
    assert len(pool) == 2
    # The oldest first; what is not in stock is made.
    assert [pool.take() for _ in range(4)] == [0, 1, 2, 3]
    assert len(pool) == 0
    assert pool.make_one()
    assert pool.take() == 4
