"""Dry runs of `blind`: samples of products, everything else in clear and charged."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import IntArray
from securevfl.crypto import ring
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.scheme import KEY_SEED_BYTES
from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner
from securevfl.runtime.costs import Stopwatch
from securevfl.training import Environment, dry_run, resolved, sampled_keys, train
from securevfl.training.sampled_keys import Charges, SampledKeys, sampled
from tests.jobs import breast_cancer, job_of

SEED = bytes(KEY_SEED_BYTES)
LONG = RingProductFormat(inner=3000, outputs=700, columns=21, matrix_bound=4095)


def evaluated(layout: RingLayout) -> float:
    """An evaluator's work in C as it was measured, by three primes, in inputs."""
    plaintexts = layout.chunks * layout.sides
    of_plaintexts = plaintexts * (0.025 + 0.107 * layout.groups)
    return (0.32 * layout.inputs + of_plaintexts + 1.53 * layout.replies) / 0.32


class Work:
    """A clock that only homomorphic work moves, by one second a ciphertext."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        layouts: dict[str, Callable[[RingLayout], float]] = {
            "encrypt": lambda layout: layout.inputs,
            "decrypt": lambda layout: layout.replies,
            "product": evaluated,
        }
        for kind in (RingProductOwner, RingProductEvaluator):
            for name, of in layouts.items():
                if hasattr(kind, name):
                    self._moved_by(patch, kind, name, partial(self._of_layout, of))
        for slots, names in ((SlotOwner, ("encrypt", "decrypt")), (SlotEvaluator, ("multiply",))):
            for name in names:
                self._moved_by(patch, slots, name, lambda end: 2.0)

    @staticmethod
    def _of_layout(of: Callable[[RingLayout], float], end: Any) -> float:  # noqa: ANN401
        return of(end._layout)

    def _moved_by(
        self, patch: pytest.MonkeyPatch, kind: type, name: str, by: Callable[[Any], float]
    ) -> None:
        done = getattr(kind, name)

        def counted(end: object, *arguments: object) -> object:
            self.now += by(end)
            return done(end, *arguments)

        patch.setattr(kind, name, counted)

    def environment(self) -> Environment:
        return Environment(stopwatch=Stopwatch(lambda: self.now))


@pytest.mark.parametrize(
    ("parties", "most", "settings"),
    [
        (2, 1, {"loss": "logistic", "rounds": 4}),
        (2, 64, {"loss": "logistic", "rounds": 4}),
        (2, 1, {"loss": "taylor-logistic", "rounds": 6, "batch_size": 100}),
        (3, 1, {"loss": "taylor-logistic", "rounds": 4}),
    ],
)
def test_a_forecast_charges_the_work_of_the_job_and_has_its_bytes(
    parties: int, most: int, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_keys, "MOST_CIPHERTEXTS", most)
    monkeypatch.setattr(sampled_keys, "LEAST_CALLS", 1)
    work, job, dataset = Work(monkeypatch), job_of("blind", **settings), breast_cancer(parties)
    expected = dry_run.dry_run(*resolved(job, dataset, ()), work.environment())
    done = work.now
    result = train(job, dataset, work.environment())
    assert most > 1 or done < work.now - done
    assert expected.bytes_sent == result.costs().bytes_sent
    assert expected.compute_s == pytest.approx(result.costs().compute_s, rel=0.1)
    for party in expected.parties:
        made = result.ledgers[party.name].seconds["correlated_randomness"]
        assert party.compute_s == pytest.approx(made, rel=0.1)


@pytest.mark.parametrize("shape", [(200_000, 21), (21, 200_000), (12_000, 300)])
def test_samples_of_a_long_table_charge_what_an_evaluator_takes(shape: tuple[int, int]) -> None:
    inner, outputs = shape
    whole = RingLayout.of(RingProductFormat(inner, outputs, 28, 4095))
    part, charged = sampled(whole), sampled_keys._evaluated
    assert charged(whole) / charged(part) == pytest.approx(
        evaluated(whole) / evaluated(part), rel=0.1
    )


def test_products_are_right_however_few_are_encrypted() -> None:
    keys, fmt = SampledKeys(Charges(Stopwatch())), LONG
    layout = RingLayout.of(fmt)
    assert max(sampled(layout).inputs, sampled(layout).replies) < max(layout.inputs, layout.replies)
    owner = keys.ring_owner(fmt, SEED)
    evaluator = keys.ring_evaluator(owner.public_bytes, fmt)
    generator = np.random.default_rng(5)
    matrix: IntArray = generator.integers(-4095, 4096, (fmt.outputs, fmt.inner))
    values = ring.uniform(fmt.inner, fmt.columns)
    encrypted = owner.encrypt(values)
    reply, mask = evaluator.product(encrypted, matrix)
    real = RingProductOwner(fmt, SEED)
    assert len(encrypted) == len(real.encrypt(values))
    opened = ring.reduced(owner.decrypt(reply) - mask)
    assert np.array_equal(opened, ring.reduced(matrix.view(np.uint64) @ values))


def test_only_the_process_that_made_a_key_knows_what_it_encrypts() -> None:
    made, others = (SampledKeys(Charges(Stopwatch())) for _ in range(2))
    owner = made.ring_owner(LONG, SEED)
    with pytest.raises(KeyError):
        others.ring_evaluator(owner.public_bytes, LONG)
