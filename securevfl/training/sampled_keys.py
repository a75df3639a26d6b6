"""Keys of a dry run of `blind`: samples are encrypted, everything else is charged and in clear.

Parties make the products of all rounds before these begin, of sizes that follow from the job's own.
A dry run has these sizes, and does the homomorphic work on a sample: of the first products under
each key, up to `MOST_CIPHERTEXTS` in each direction, in the same layout. What a sample took is
charged for everything like it. Messages have the bytes of the whole, as all ciphertexts of a key
have equally many. The numbers go from one end of a key to the other in clear, inside this process.
They are right, and so is all that follows from them: a job that would fail fails here as well.
Nothing of it may leave this process.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ring
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.crypto.slot_parameters import SlotParameters
from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner
from securevfl.protocols.session.keys import KeyMaker
from securevfl.runtime.costs import Stopwatch

MOST_CIPHERTEXTS, LEAST_CALLS = 64, 4
# Relative costs of an evaluator's work: an input, a plaintext, a product, a reply. They matter only
# where a sample has another mixture than the whole.
_INPUT, _PLAINTEXT, _PRODUCT, _REPLY = 0.5, 0.06, 0.01, 5.0
_BLOCK = 1 << 12

T = TypeVar("T")


class Charges(Stopwatch):
    """Measures as another stopwatch does, and adds what is owed for work that was not done."""

    def __init__(self, measured: Stopwatch) -> None:
        super().__init__(measured.clock)
        self._measured, self.owed = measured, 0.0

    @override
    def charge(self, phase: str, elapsed: float) -> float:
        owed, self.owed = self.owed, 0.0
        return self._measured.charge(phase, max(elapsed + owed, 0.0))

    @contextmanager
    def unmeasured(self) -> Iterator[None]:
        """For work that the job itself does not have."""
        began = self.clock()
        yield
        self.owed -= self.clock() - began


class _Sample(Generic[T]):
    """Work that is done by the first calls, and charged to all: `times` what it took."""

    def __init__(self, charges: Charges, calls: int, times: float) -> None:
        self._charges, self._left, self._times = charges, calls, times
        self._took: list[float] = []
        self._last: T

    def of(self, work: Callable[[], T]) -> T:
        """What the work gives, or gave when it was done last."""
        with self._charges.unmeasured():
            if len(self._took) < self._left:
                began = self._charges.clock()
                self._last = work()
                self._took.append(self._charges.clock() - began)
        self._charges.owed += self._times * sum(self._took) / len(self._took)
        return self._last


@dataclass(frozen=True, eq=False)
class _InClear:
    """What the owner of a key encrypts, and what it decrypts, in order."""

    values: deque[Any] = field(default_factory=deque)
    products: deque[RingArray] = field(default_factory=deque)


def sampled(layout: RingLayout) -> RingLayout:
    """The same layout of fewer rows, or columns, of both matrices."""
    fmt, groups = layout.product_format, min(layout.groups, MOST_CIPHERTEXTS)
    most = MOST_CIPHERTEXTS // groups
    part = replace(
        fmt,
        inner=min(fmt.inner, most * layout.chunk),
        outputs=min(fmt.outputs, most * layout.side),
        columns=min(fmt.columns, groups * layout.together),
    )
    return replace(layout, product_format=part)


class _RingSample:
    """A layout, and a sample of it."""

    def __init__(self, product_format: RingProductFormat) -> None:
        self.whole = RingLayout.of(product_format)
        self.part = sampled(self.whole)
        largest = max(self.part.inputs, self.part.replies)
        self.calls = max(MOST_CIPHERTEXTS // largest, LEAST_CALLS)

    def times(self, work: Callable[[RingLayout], float]) -> float:
        return work(self.whole) / work(self.part)

    def filled(self, sample: bytes, ciphertexts: Callable[[RingLayout], int]) -> bytes:
        """As many bytes as the whole has."""
        have, want = ciphertexts(self.part), ciphertexts(self.whole)
        return (sample * -(-want // have))[: len(sample) // have * want]

    def cut(self, whole: bytes, ciphertexts: Callable[[RingLayout], int]) -> bytes:
        """The sample's."""
        return whole[: len(whole) // ciphertexts(self.whole) * ciphertexts(self.part)]


def _inputs(layout: RingLayout) -> int:
    return layout.inputs


def _replies(layout: RingLayout) -> int:
    return layout.replies


def _evaluated(layout: RingLayout) -> float:
    plaintexts = layout.chunks * layout.sides
    of_plaintexts = plaintexts * (_PLAINTEXT + layout.groups * _PRODUCT)
    return layout.inputs * _INPUT + of_plaintexts + layout.replies * _REPLY


class _RingOwner(RingProductOwner):
    def __init__(self, product_format: RingProductFormat, seed: bytes, charges: Charges) -> None:
        self.product_format, self._sample = product_format, _RingSample(product_format)
        part = self._sample.part
        self._key = RingProductOwner(part.product_format, seed, layout=part)
        self._public_bytes, self.in_clear = self._key.public_bytes, _InClear()
        of, calls = self._sample.times, self._sample.calls
        self._encrypting = _Sample[bytes](charges, calls, of(_inputs))
        self._decrypting = _Sample[RingArray](charges, calls, of(_replies))

    @override
    def encrypt(self, values: RingArray) -> bytes:
        self.in_clear.values.append(values)
        fmt = self._key.product_format
        part = values[: fmt.inner, : fmt.columns]
        return self._sample.filled(self._encrypting.of(lambda: self._key.encrypt(part)), _inputs)

    @override
    def decrypt(self, ciphertext: bytes) -> RingArray:
        part = self._sample.cut(ciphertext, _replies)
        self._decrypting.of(lambda: self._key.decrypt(part))
        return self.in_clear.products.popleft()


class _RingEvaluator(RingProductEvaluator):
    def __init__(
        self, public_bytes: bytes, fmt: RingProductFormat, charges: Charges, in_clear: _InClear
    ) -> None:
        self.product_format, self._sample = fmt, _RingSample(fmt)
        part = self._sample.part
        self._key = RingProductEvaluator(public_bytes, part.product_format, layout=part)
        self._charges, self._in_clear = charges, in_clear
        times = self._sample.times(_evaluated)
        self._multiplying = _Sample[bytes](charges, self._sample.calls, times)

    @override
    def product(self, encrypted: bytes, matrix: IntArray) -> tuple[bytes, RingArray]:
        fmt = self._key.product_format
        part, rows = self._sample.cut(encrypted, _inputs), matrix[: fmt.outputs, : fmt.inner]
        reply = self._multiplying.of(lambda: self._key.product(part, rows)[0])
        with self._charges.unmeasured():
            mask = ring.uniform(self.product_format.outputs, self.product_format.columns)
            product = _multiplied(matrix, self._in_clear.values.popleft())
            self._in_clear.products.append(ring.reduced(product + mask))
            return self._sample.filled(reply, _replies), mask


def _multiplied(matrix: IntArray, values: RingArray) -> RingArray:
    """M·V modulo 2^64, without copies of either."""
    product = np.zeros((len(matrix), values.shape[1]), np.uint64)
    for row in range(0, matrix.shape[0], _BLOCK):
        for column in range(0, matrix.shape[1], _BLOCK):
            block = matrix[row : row + _BLOCK, column : column + _BLOCK]
            product[row : row + _BLOCK] += ring.Factor(block) @ values[column : column + _BLOCK]
    return product


class _SlotOwner(SlotOwner):
    def __init__(self, parameters: SlotParameters, seed: bytes, charges: Charges) -> None:
        super().__init__(parameters, seed)
        self.in_clear = _InClear()
        self._encrypting = _Sample[tuple[bytes, bytes]](charges, -(-MOST_CIPHERTEXTS // 2), 1)
        self._decrypting = _Sample[RingArray](charges, -(-MOST_CIPHERTEXTS // 2), 1)

    @override
    def encrypt(self, parts: IntArray) -> tuple[bytes, bytes]:
        self.in_clear.values.append(parts)
        return self._encrypting.of(lambda: SlotOwner.encrypt(self, parts))

    @override
    def decrypt(self, replies: tuple[bytes, ...], count: int) -> RingArray:
        self._decrypting.of(lambda: SlotOwner.decrypt(self, replies, count))
        return self.in_clear.products.popleft()


class _SlotEvaluator(SlotEvaluator):
    def __init__(
        self, material: bytes, parameters: SlotParameters, charges: Charges, in_clear: _InClear
    ) -> None:
        super().__init__(material, parameters)
        self._charges, self._in_clear = charges, in_clear
        self._multiplying = _Sample[tuple[bytes, bytes]](charges, -(-MOST_CIPHERTEXTS // 2), 1)

    @override
    def multiply(
        self, encrypted: tuple[bytes, ...], parts: IntArray
    ) -> tuple[tuple[bytes, bytes], RingArray]:
        reply = self._multiplying.of(lambda: SlotEvaluator.multiply(self, encrypted, parts)[0])
        with self._charges.unmeasured():
            (x, y), (u, v) = self._in_clear.values.popleft(), parts
            shares = ring.uniform(*parts.shape)
            products = np.stack([u * x - v * y, u * y + v * x]).view(np.uint64)
            self._in_clear.products.append(products - shares)
        return reply, shares


class SampledKeys(KeyMaker):
    """Makes such keys, of which both ends are in this process."""

    def __init__(self, charges: Charges) -> None:
        self._charges = charges
        self._in_clear: dict[bytes, _InClear] = {}

    @override
    def ring_owner(self, product_format: RingProductFormat, seed: bytes) -> RingProductOwner:
        made = _RingOwner(product_format, seed, self._charges)
        self._in_clear[made.public_bytes] = made.in_clear
        return made

    @override
    def ring_evaluator(
        self, material: bytes, product_format: RingProductFormat
    ) -> RingProductEvaluator:
        in_clear = self._in_clear[material]
        return _RingEvaluator(material, product_format, self._charges, in_clear)

    @override
    def slot_owner(self, parameters: SlotParameters, seed: bytes) -> SlotOwner:
        made = _SlotOwner(parameters, seed, self._charges)
        self._in_clear[made.public_bytes] = made.in_clear
        return made

    @override
    def slot_evaluator(self, material: bytes, parameters: SlotParameters) -> SlotEvaluator:
        return _SlotEvaluator(material, parameters, self._charges, self._in_clear[material])
