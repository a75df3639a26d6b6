"""Blind jobs with products in clear and pads that a test can read, or give.

What is proven of a blind view is a bijection between pads; how ciphertexts hide is another matter
(tests/unit/crypto). So here a ciphertext is the numbers themselves, and every party draws its pads
from a tape: fresh ones, or those with which a test wants it to run.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ring, ring_products, slot_products
from securevfl.crypto.masks import PairwiseMasks
from securevfl.crypto.residues import uniform_below
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.slot_parameters import SlotParameters
from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.protocols.blind import links, residuals
from securevfl.protocols.blind.residuals import uniform_phases
from securevfl.protocols.blind.rounds import BlindPart
from securevfl.protocols.session.agreement import Agreement
from securevfl.runtime.simulation import Tamper
from securevfl.training import Environment, TrainingResult, train

KINDS = ("pads", "masks", "phases", "slots")
Words = NDArray[Any]


@dataclass(eq=False)
class Tape:
    """What one party draws.

    Attributes:
        drawn: by kind, in order: as a holder ξ and ζ⟨o⟩ of every round, link by link; as an owner
            what masks its products; shares of ρ; what masks products in slots. Where it is empty,
            all that is drawn is fresh.
        zeros: shares of zero, by context.
    """

    drawn: dict[str, list[Words]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    zeros: dict[str, RingArray] = field(default_factory=dict)

    def copy(self) -> "Tape":
        return Tape({kind: list(words) for kind, words in self.drawn.items()}, dict(self.zeros))


@dataclass(eq=False)
class World:
    """A finished run, and by party what it drew and what it came to."""

    result: TrainingResult
    tapes: dict[str, Tape]
    parts: dict[str, BlindPart]


class _Drawing:
    """One party's words of a run: those given, or fresh ones; remembered."""

    def __init__(self, given: Tape | None) -> None:
        self._given = None
        if given is not None and given.drawn:
            self._given = {kind: deque(words) for kind, words in given.drawn.items()}
        self._zeros = {} if given is None else given.zeros
        self.tape = Tape()

    def draw(self, kind: str, fresh: Callable[[], Words]) -> Words:
        words = fresh() if self._given is None else self._given[kind].popleft().copy()
        assert words.shape == fresh().shape
        self.tape.drawn[kind].append(words.copy())
        return words

    def zero(self, context: str, fresh: RingArray) -> RingArray:
        self.tape.zeros[context] = self._zeros.get(context, fresh)
        return self.tape.zeros[context]


_CURRENT: ContextVar[_Drawing | None] = ContextVar("whose words are drawn", default=None)


def _draw(kind: str, fresh: Callable[[], Words]) -> Words:
    current = _CURRENT.get()
    return fresh() if current is None else current.draw(kind, fresh)


IN_CLEAR = b"in clear"


class ClearOwner(RingProductOwner):
    def __init__(self, product_format: RingProductFormat, seed: bytes | None = None) -> None:
        self.product_format, self._public_bytes = product_format, (seed or b"") + IN_CLEAR

    @override
    def encrypt(self, values: RingArray) -> bytes:
        return values.tobytes()

    @override
    def decrypt(self, ciphertext: bytes) -> RingArray:
        fmt = self.product_format
        return np.frombuffer(ciphertext, np.uint64).reshape(fmt.outputs, fmt.columns).copy()


class _ClearEvaluator(RingProductEvaluator):
    masks = staticmethod(ring.uniform)

    def __init__(self, public_bytes: bytes, product_format: RingProductFormat) -> None:
        assert public_bytes.endswith(IN_CLEAR)
        self.product_format = product_format

    @override
    def product(self, encrypted: bytes, matrix: IntArray) -> tuple[bytes, RingArray]:
        fmt = self.product_format
        values = np.frombuffer(encrypted, np.uint64).reshape(fmt.inner, fmt.columns)
        mask = _draw("masks", lambda: self.masks(fmt.outputs, fmt.columns))
        return ring.reduced(ring.Factor(matrix) @ values + mask).tobytes(), mask


class _ClearSlotOwner(SlotOwner):
    def __init__(self, parameters: SlotParameters, seed: bytes | None = None) -> None:
        self._parameters, self._public_bytes = parameters, (seed or b"") + IN_CLEAR

    @override
    def encrypt(self, parts: IntArray) -> tuple[bytes, bytes]:
        return parts[0].tobytes(), parts[1].tobytes()

    @override
    def decrypt(self, replies: tuple[bytes, ...], count: int) -> RingArray:
        found = np.stack([np.frombuffer(each, np.uint64) for each in replies])
        return found - np.uint64(self._parameters.plain_modulus)


class _ClearSlotEvaluator(SlotEvaluator):
    def __init__(self, public_bytes: bytes, parameters: SlotParameters) -> None:
        assert public_bytes.endswith(IN_CLEAR)
        self._parameters = parameters

    @override
    def multiply(
        self, encrypted: tuple[bytes, ...], parts: IntArray
    ) -> tuple[tuple[bytes, bytes], RingArray]:
        prime = self._parameters.plain_modulus
        x, y = (np.frombuffer(each, np.int64) for each in encrypted)
        both = np.stack([x * parts[0] - y * parts[1], y * parts[0] + x * parts[1]])
        masks = _draw("slots", lambda: uniform_below(prime, both.size).reshape(both.shape))
        reply = (both - masks.view(np.int64)) % prime
        return (reply[0].tobytes(), reply[1].tobytes()), masks


def run(
    job: Job,
    dataset: VerticalDataset,
    tapes: Mapping[str, Tape] | None = None,
    tamper: Tamper | None = None,
) -> World:
    """A job with products in clear.

    Args:
        job: the settings.
        dataset: the data.
        tapes: by party, what it is to draw; all others draw afresh.
        tamper: changes messages on their way.
    """
    drawings: dict[str, _Drawing] = {}
    parts: dict[str, BlindPart] = {}
    with pytest.MonkeyPatch.context() as patch:
        _in_clear(patch)
        _watch(patch, drawings, tapes or {}, parts)
        result = train(job, dataset, Environment(record_views=True, tamper=tamper))
    return World(result, {name: each.tape for name, each in drawings.items()}, parts)


def _in_clear(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ring_products, "RingProductOwner", ClearOwner)
    patch.setattr(ring_products, "RingProductEvaluator", _ClearEvaluator)
    patch.setattr(slot_products, "SlotOwner", _ClearSlotOwner)
    patch.setattr(slot_products, "SlotEvaluator", _ClearSlotEvaluator)


def _watch(
    patch: pytest.MonkeyPatch,
    drawings: dict[str, _Drawing],
    tapes: Mapping[str, Tape],
    parts: dict[str, BlindPart],
) -> None:
    agree, zero_share = BlindPart.agree, PairwiseMasks.zero_share

    async def watched(part: BlindPart) -> Agreement:
        name = part.training.party.name
        drawings[name] = _Drawing(tapes.get(name))
        _CURRENT.set(drawings[name])  # of this party's task
        parts[name] = part
        return await agree(part)

    def share(
        self: PairwiseMasks, members: Sequence[str], context: str, shape: tuple[int, ...]
    ) -> RingArray:
        fresh, current = zero_share(self, members, context, shape), _CURRENT.get()
        assert current is not None
        return current.zero(context, fresh)

    patch.setattr(BlindPart, "agree", watched)
    patch.setattr(PairwiseMasks, "zero_share", share)
    patch.setattr(links, "ring", _Ring(lambda *shape: _draw("pads", lambda: ring.uniform(*shape))))
    patch.setattr(
        residuals, "uniform_phases", lambda rows: _draw("phases", lambda: uniform_phases(rows))
    )


@contextmanager
def weakened(where: str, uniform: Callable[..., RingArray]) -> Iterator[None]:
    """Blind jobs that draw holders' pads, or owners' masks, by another function.

    What must not be done, to see it leak; no job file and nothing in the package comes here.
    """
    with pytest.MonkeyPatch.context() as patch:
        _in_clear(patch)
        if where == "masks":
            patch.setattr(_ClearEvaluator, "masks", staticmethod(uniform))
        else:
            patch.setattr(links, "ring", _Ring(uniform))
        yield


class _Ring:
    """The ring as a module knows it, but for one function."""

    def __init__(self, uniform: Callable[..., RingArray]) -> None:
        self.uniform = uniform

    def __getattr__(self, name: str) -> object:
        return getattr(ring, name)
