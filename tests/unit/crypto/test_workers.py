"""Products in several processes: the same numbers, and clear ends."""

import os
import signal

import numpy as np
import pytest

from securevfl.crypto.paillier_fast import FastPaillierEvaluator, FastPaillierOwner
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import make_evaluator, make_owner
from securevfl.errors import ConfigError, CryptoError
from securevfl.job import Job
from tests.ciphertexts import drawn, product

ROWS, COLUMNS = 9, 5
FORMAT = ProductFormat(rows=ROWS, value_bound=1.0, matrix_bound=4.0, columns=COLUMNS)


@pytest.fixture(scope="module")
def owner() -> FastPaillierOwner:
    return FastPaillierOwner.insecure_for_tests(FORMAT, 512)


@pytest.fixture(scope="module")
def evaluator(owner: FastPaillierOwner) -> FastPaillierEvaluator:
    spread = FastPaillierEvaluator.insecure_for_tests(owner.public_bytes, FORMAT)
    spread.spread_over(3)
    return spread


@pytest.mark.parametrize("rows", [1, 2, ROWS])
@pytest.mark.parametrize("extreme", [False, True])
def test_three_processes_find_what_one_finds(
    owner: FastPaillierOwner, evaluator: FastPaillierEvaluator, rows: int, extreme: bool
) -> None:
    values, matrix = drawn(FORMAT, rows, COLUMNS, rows)
    if extreme:
        values[:] = FORMAT.largest_value
        matrix[:] = -FORMAT.largest_entry
    assert np.array_equal(product(owner, evaluator, values, matrix), matrix.T @ values)


def test_a_worker_that_dies_ends_the_product(owner: FastPaillierOwner) -> None:
    evaluator = FastPaillierEvaluator.insecure_for_tests(owner.public_bytes, FORMAT)
    evaluator.spread_over(2)
    encrypted = owner.encrypt(np.ones(ROWS, np.int64))
    prepared = evaluator.prepare(np.ones((ROWS, COLUMNS), np.int64))
    evaluator.masked_product(encrypted, prepared)
    workers = evaluator._accumulate.__self__  # type: ignore[attr-defined]
    (child,) = workers._pool._processes
    os.kill(child, signal.SIGKILL)
    workers._pool._processes[child].join(10)
    with pytest.raises(CryptoError, match="a worker process died"):
        evaluator.masked_product(encrypted, prepared)


@pytest.mark.parametrize(("scheme", "engine"), [("bfv", None), ("ckks", None), ("paillier", "phe")])
def test_schemes_that_do_not_spread_say_so(scheme: str, engine: str | None) -> None:
    bits = 2048 if engine else None
    owner = make_owner(scheme, FORMAT, key_bits=bits, engine=engine)
    with pytest.raises(ConfigError, match="workers is 2, 1 expected"):
        make_evaluator(scheme, owner.public_bytes, FORMAT, key_bits=bits, engine=engine, workers=2)


def test_the_number_of_workers_is_each_partys_own_affair() -> None:
    one, two = (
        Job.of(exchange={"scheme": "paillier", "workers": count}).hash() for count in (1, 2)
    )
    assert one == two
