"""Checks on an owner's replies in the offline phase: one matrix for all columns of a product.

Beside the R columns that it needs, a holder encrypts κ more, each a combination Σ ρ_j·column_j
modulo 2^59 with secret uniform ρ. Once it has all replies of a block it opens ρ. For replies M·V +
mask, the combinations of replies minus the replies to combinations are those of the masks, which
the owner knows. Both compare them by an equality test, before anything that was decrypted is used.

Learns:
    owner: nothing: ρ, when its replies are in.
    holder: whether all replies are columns of one product. An owner passes with replies of another
        kind if it guesses what they change (docs/explanation/blind.md#checks-on-replies).
    A holder whose combinations are others, of its choice, makes one guess of what M makes of them,
        a block. A wrong one ends the job, and the owner records it.
"""

import hashlib
from collections import deque
from secrets import token_bytes

import numpy as np

from securevfl.arrays import RingArray
from securevfl.crypto import ring
from securevfl.crypto.equality import EqualityTest
from securevfl.crypto.masks import WordStream
from securevfl.errors import CryptoError
from securevfl.wire.codec import StepMessage, message_kind

SEED_BYTES = 32


@message_kind(77, stage="offline")
class OpenedCheck(StepMessage):
    """The seed of ρ in a block, and the holder's point of the equality test."""

    seed: bytes
    point: bytes


@message_kind(78, stage="offline")
class ProvenReplies(StepMessage):
    """The owner's point, and its tag."""

    point: bytes
    tag: bytes


@message_kind(83, stage="offline")
class ConfirmedCheck(StepMessage):
    """The holder's tag: its side is the owner's."""

    tag: bytes


class Combinations:
    """The factors ρ of a block, in the order of its products; and what is compared.

    Args:
        count: κ.
        seed: of ρ; drawn at the holder. A CryptoError if it has another size.
    """

    def __init__(self, count: int, seed: bytes | None = None) -> None:
        self.seed = token_bytes(SEED_BYTES) if seed is None else seed
        if len(self.seed) != SEED_BYTES:
            raise CryptoError(f"a seed of {len(self.seed)} bytes, {SEED_BYTES} expected")
        self._count, self._stream = count, WordStream(self.seed)
        self._factors: deque[RingArray] = deque()
        self._digest = hashlib.sha256()

    def extended(self, columns: RingArray) -> RingArray:
        """The next product's columns, (inner, R), with their combinations: (inner, R + κ)."""
        self._draw(columns.shape[1])
        return np.hstack([columns, ring.reduced(columns @ self._factors[-1])])

    def take(self, words: RingArray) -> None:
        """The next product's replies, or masks: (outputs, R + κ), or more columns."""
        factors = self._factors.popleft()
        rounds = len(factors)
        found, expected = words[:, rounds : rounds + self._count], words[:, :rounds] @ factors
        self._digest.update(ring.reduced(found - expected).tobytes())

    def take_mask(self, words: RingArray, rounds: int) -> None:
        """At the owner: the masks of the next product."""
        self._draw(rounds)
        self.take(words)

    def test(self, context: bytes) -> EqualityTest:
        """This party's side of the comparison."""
        return EqualityTest(self._digest.digest(), context)

    def _draw(self, rounds: int) -> None:
        words = self._stream.words(rounds * self._count)
        self._factors.append(ring.reduced(words).reshape(rounds, self._count))
