"""Blind jobs with products in clear and pads that a test can read, or give.

What is proven of a blind view is a bijection between pads; how ciphertexts hide is another matter
(tests/unit/crypto). So here a ciphertext is the words themselves, and every party draws its pads
from a tape: fresh ones, or those with which a test wants it to run.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
from typing_extensions import override

from securevfl.arrays import IntArray, Labels, RingArray
from securevfl.crypto import ring, ring_products
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.protocols.blind import ahead, pads, training
from securevfl.protocols.blind.ahead import Links, Pads
from securevfl.protocols.blind.pads import Holding
from securevfl.protocols.blind.residuals import BetweenTwo, ResidualShares
from securevfl.protocols.blind.rounds import Rounds, SharedWeights
from securevfl.protocols.blind.schedule import Round
from securevfl.training import Environment, TrainingResult, train

Tape = Sequence[RingArray]
UNIFORM = ring.uniform


@dataclass(eq=False)
class Product:
    """One product ahead, as both ends have it: M·V + mask."""

    matrix: IntArray
    values: RingArray
    mask: RingArray

    @property
    def decrypted(self) -> RingArray:
        return ring.reduced(ring.Factor(self.matrix) @ self.values + self.mask)


@dataclass(eq=False)
class Insight:
    """What one party had in a run: nothing that an attack may have of another."""

    links: Links
    pads: dict[str, list[RingArray]] = field(default_factory=dict)  # as a holder, by owner
    products: list[Product] = field(default_factory=list)  # as an owner
    own: SharedWeights | None = None  # before the first round
    rounds: Rounds | None = None
    residuals: ResidualShares | None = None
    labels: dict[int, Labels | None] = field(default_factory=dict)


@dataclass(eq=False)
class Told:
    """The pads that one party is to draw: as a holder by owner, as an owner its masks in order."""

    pads: Mapping[str, Tape]
    masks: Tape


class _Dispenser:
    def __init__(self, given: Tape | None, drawn: list[RingArray]) -> None:
        self._given, self._drawn = None if given is None else deque(given), drawn

    def draw(self, *shape: int) -> RingArray:
        words = UNIFORM(*shape) if self._given is None else self._given.popleft()
        assert words.shape == shape
        self._drawn.append(words)
        return words


class ClearOwner(RingProductOwner):
    def __init__(self, product_format: RingProductFormat) -> None:
        self.product_format = product_format

    @property
    @override
    def public_bytes(self) -> bytes:
        return b"in clear"

    @override
    def encrypt(self, values: RingArray) -> bytes:
        return values.tobytes()

    @override
    def decrypt(self, ciphertext: bytes) -> RingArray:
        fmt = self.product_format
        return np.frombuffer(ciphertext, np.uint64).reshape(fmt.outputs, fmt.columns).copy()


class _ClearEvaluator(RingProductEvaluator):
    insight: Insight | None = None
    tape: "_Dispenser | None" = None

    def __init__(self, public_bytes: bytes, product_format: RingProductFormat) -> None:
        assert public_bytes == b"in clear"
        self.product_format = product_format

    @override
    def product(self, encrypted: bytes, matrix: IntArray) -> tuple[bytes, RingArray]:
        fmt = self.product_format
        values = np.frombuffer(encrypted, np.uint64).reshape(fmt.inner, fmt.columns)
        draw = ring_products.uniform if self.tape is None else self.tape.draw
        made = Product(matrix, values, draw(fmt.outputs, fmt.columns))
        if self.insight is not None:
            self.insight.products.append(made)
        return made.decrypted.tobytes(), made.mask


@dataclass(eq=False)
class World:
    """A finished run, and what was in every party of it."""

    result: TrainingResult
    insights: dict[str, Insight]


def run(job: Job, dataset: VerticalDataset, told: Mapping[str, Told] | None = None) -> World:
    """A job with products in clear.

    Args:
        job: the settings.
        dataset: the data.
        told: by party, what it is to draw; all others draw afresh.
    """
    insights: dict[str, Insight] = {}
    with pytest.MonkeyPatch.context() as patch:
        _watch(patch, insights, told or {})
        result = train(job, dataset, Environment(record_views=True))
    return World(result, insights)


def _in_clear(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ring_products, "RingProductOwner", ClearOwner)
    patch.setattr(ring_products, "RingProductEvaluator", _ClearEvaluator)


def _watch(
    patch: pytest.MonkeyPatch, insights: dict[str, Insight], told: Mapping[str, Told]
) -> None:
    _in_clear(patch)
    make, inputs = Links.make, Holding.inputs
    tapes: dict[int, _Dispenser] = {}

    async def watched_make(self: Links, rounds: Sequence[Round]) -> Pads:
        name = self._party.name
        insight = insights.setdefault(name, Insight(self))
        given = told.get(name)
        for owner, holding in self._holdings.items():
            drawn = insight.pads.setdefault(owner, [])
            tapes[id(holding)] = _Dispenser(None if given is None else given.pads[owner], drawn)
        masks = _Dispenser(None if given is None else given.masks, [])
        for key in (self._keys.for_steps, self._keys.for_predictions):
            assert isinstance(key, _ClearEvaluator)
            key.insight, key.tape = insight, masks
        return await make(self, rounds)

    def watched_inputs(self: Holding, groups: Mapping[int, Sequence[Round]]) -> object:
        with _drawing(tapes[id(self)]):
            return inputs(self, groups)

    class Watched(Rounds):
        @override
        async def take(self, each: Round, labels: Labels | None) -> None:
            insight = insights[self._party.name]
            if insight.rounds is None:
                insight.rounds, insight.own = self, copy(self._own)
                assert isinstance(self._residuals, BetweenTwo)
                insight.residuals = self._residuals._residuals
            insight.labels[each.index] = labels
            await super().take(each, labels)

    patch.setattr(ahead.Links, "make", watched_make)
    patch.setattr(Holding, "inputs", watched_inputs)
    patch.setattr(training, "Rounds", Watched)


@contextmanager
def _drawing(tape: _Dispenser) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "uniform", tape.draw)
        yield


@contextmanager
def weakened(where: str, uniform: Callable[..., RingArray]) -> Iterator[None]:
    """Blind jobs that draw holders' pads, or owners' masks, by another function.

    What must not be done, to see it leak; no job file and nothing in the package comes here.
    """
    with pytest.MonkeyPatch.context() as patch:
        _in_clear(patch)
        if where == "masks":
            patch.setattr(ring_products, "uniform", uniform)
        else:
            patch.setattr(pads, "ring", _Ring(uniform))
        yield


class _Ring:
    """The ring as a module knows it, but for one function."""

    def __init__(self, uniform: Callable[..., RingArray]) -> None:
        self.uniform = uniform

    def __getattr__(self, name: str) -> object:
        return getattr(ring, name)
