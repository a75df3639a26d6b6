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
from dataclasses import replace
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
# Relative costs of an evaluator's work: an input, a plaintext, a product, a reply. They matter
# where a sample has another mixture than the whole, as in all products of long tables.
_INPUT, _PLAINTEXT, _PRODUCT, _REPLY = 1.0, 0.1, 0.35, 4.0
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
    """Work on so many ciphertexts that the first calls do; all are charged `times` what it took."""

    def __init__(self, charges: Charges, ciphertexts: int, times: float = 1.0) -> None:
        self._charges, self._times = charges, times
        self._left = max(MOST_CIPHERTEXTS // ciphertexts, LEAST_CALLS)
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


class _InClear:
    """What the owner of a key encrypts, and what it decrypts, in order."""

    def __init__(self) -> None:
        self.values, self.products = deque[Any](), deque[RingArray]()


class SampledKeys(KeyMaker):
    """Makes such keys, of which both ends are in this process.

    Attributes:
        in_clear: by public key, which another process does not have.
    """

    def __init__(self, charges: Charges) -> None:
        self.charges = charges
        self.in_clear: dict[bytes, _InClear] = {}

    @override
    def ring_owner(self, product_format: RingProductFormat, seed: bytes) -> RingProductOwner:
        return _RingOwner(product_format, seed, self)

    @override
    def ring_evaluator(
        self, material: bytes, product_format: RingProductFormat
    ) -> RingProductEvaluator:
        return _RingEvaluator(material, product_format, self)

    @override
    def slot_owner(self, parameters: SlotParameters, seed: bytes) -> SlotOwner:
        return _SlotOwner(parameters, seed, self)

    @override
    def slot_evaluator(self, material: bytes, parameters: SlotParameters) -> SlotEvaluator:
        return _SlotEvaluator(material, parameters, self)


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


def _resized(ciphertexts: bytes, count: int, wanted: int) -> bytes:
    """As many bytes as `wanted` of them have: again from the first, or cut off."""
    return (ciphertexts * -(-wanted // count))[: len(ciphertexts) // count * wanted]


def _largest(part: RingLayout) -> int:
    return max(part.inputs, part.replies)


def _evaluated(layout: RingLayout) -> float:
    plaintexts = layout.chunks * layout.sides
    of_plaintexts = plaintexts * (_PLAINTEXT + layout.groups * _PRODUCT)
    return layout.inputs * _INPUT + of_plaintexts + layout.replies * _REPLY


class _RingOwner(RingProductOwner):
    """Has a key for the sample, as others ask this one for its format."""

    def __init__(self, fmt: RingProductFormat, seed: bytes, keys: SampledKeys) -> None:
        self.product_format, self._layout = fmt, RingLayout.of(fmt)
        self._few = part = sampled(self._layout)
        self._key = RingProductOwner(part.product_format, seed, layout=part)
        self._public_bytes, self._in_clear = self._key.public_bytes, _InClear()
        keys.in_clear[self.public_bytes] = self._in_clear
        inputs, replies = self._layout.inputs / part.inputs, self._layout.replies / part.replies
        self._encrypting = _Sample[bytes](keys.charges, _largest(part), inputs)
        self._decrypting = _Sample[RingArray](keys.charges, _largest(part), replies)

    @override
    def encrypt(self, values: RingArray) -> bytes:
        self._in_clear.values.append(values)
        fmt = self._few.product_format
        part = values[: fmt.inner, : fmt.columns]
        sample = self._encrypting.of(lambda: self._key.encrypt(part))
        return _resized(sample, self._few.inputs, self._layout.inputs)

    @override
    def decrypt(self, ciphertext: bytes) -> RingArray:
        part = _resized(ciphertext, self._layout.replies, self._few.replies)
        self._decrypting.of(lambda: self._key.decrypt(part))
        return self._in_clear.products.popleft()


class _RingEvaluator(RingProductEvaluator):
    """Likewise."""

    def __init__(self, material: bytes, fmt: RingProductFormat, keys: SampledKeys) -> None:
        self.product_format, self._layout = fmt, RingLayout.of(fmt)
        self._few = part = sampled(self._layout)
        self._key = RingProductEvaluator(material, part.product_format, layout=part)
        self._charges, self._in_clear = keys.charges, keys.in_clear[material]
        times = _evaluated(self._layout) / _evaluated(part)
        self._multiplying = _Sample[bytes](keys.charges, _largest(part), times)

    @override
    def product(self, encrypted: bytes, matrix: IntArray) -> tuple[bytes, RingArray]:
        fmt = self._few.product_format
        rows = matrix[: fmt.outputs, : fmt.inner]
        inputs = _resized(encrypted, self._layout.inputs, self._few.inputs)
        reply = self._multiplying.of(lambda: self._key.product(inputs, rows)[0])
        with self._charges.unmeasured():
            mask = ring.uniform(self.product_format.outputs, self.product_format.columns)
            product = _multiplied(matrix, self._in_clear.values.popleft())
            self._in_clear.products.append(ring.reduced(product + mask))
            return _resized(reply, self._few.replies, self._layout.replies), mask


def _multiplied(matrix: IntArray, values: RingArray) -> RingArray:
    """M·V modulo 2^64, without copies of either."""
    product = np.zeros((len(matrix), values.shape[1]), np.uint64)
    for row in range(0, matrix.shape[0], _BLOCK):
        for column in range(0, matrix.shape[1], _BLOCK):
            block = matrix[row : row + _BLOCK, column : column + _BLOCK]
            product[row : row + _BLOCK] += ring.Factor(block) @ values[column : column + _BLOCK]
    return product


class _SlotOwner(SlotOwner):
    def __init__(self, parameters: SlotParameters, seed: bytes, keys: SampledKeys) -> None:
        super().__init__(parameters, seed)
        keys.in_clear[self.public_bytes] = self._in_clear = _InClear()
        self._encrypting = _Sample[tuple[bytes, bytes]](keys.charges, 2)
        self._decrypting = _Sample[RingArray](keys.charges, 2)

    @override
    def encrypt(self, parts: IntArray) -> tuple[bytes, bytes]:
        self._in_clear.values.append(parts)
        return self._encrypting.of(lambda: SlotOwner.encrypt(self, parts))

    @override
    def decrypt(self, replies: tuple[bytes, ...], count: int) -> RingArray:
        self._decrypting.of(lambda: SlotOwner.decrypt(self, replies, count))
        return self._in_clear.products.popleft()


class _SlotEvaluator(SlotEvaluator):
    def __init__(self, material: bytes, parameters: SlotParameters, keys: SampledKeys) -> None:
        super().__init__(material, parameters)
        self._in_clear, self._charges = keys.in_clear[material], keys.charges
        self._multiplying = _Sample[tuple[bytes, bytes]](keys.charges, 2)

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
