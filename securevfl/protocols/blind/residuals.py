"""From shares of H to shares of d, at the two parties that compute residuals.

Affine losses have d = c·H + a label part: shares of H, read with two more fraction bits if c = ¼,
are shares of c·H.

Logistic residuals, from shares of H to shares of σ(H) − ½:

**Offline**, for many rows at once: each of the two parties draws uniform phases as its share of ρ,
and both obtain shares of cos(mρ), sin(mρ) for every odd harmonic m. The *second* party owns a key
and sends Enc(cos(mρ₂)), Enc(sin(mρ₂)) for every row and m. The *first* replies with encrypted
products by its own cos(mρ₁) + i·sin(mρ₁), minus uniform masks.

**In a round** each sends its share of the phase of H plus its share of ρ, two bytes per row, at the
same time; other parties send theirs to both (`relays`). Then both know z = H + ρ and add up the
series on their own shares.

Learns: no party anything. Affine residuals take no message. z is uniform for any H, as either
    party's share of ρ is uniform and used once. Offline products: see `slot_products`.
A residual is wrong altogether with the probability `PhaseFormat.failure_probability`, and has the
wrong sign if |H| exceeds half a period, which shows only at the end (`rounds.require_range`).
Source: docs/decisions/0034-logistic-residuals-in-shares.md.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import IntArray, Labels, RingArray
from securevfl.crypto import ring
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.residues import uniform_words
from securevfl.crypto.slot_parameters import SlotParameters, pairs_of
from securevfl.errors import CryptoError, UnexpectedMessage
from securevfl.models.losses import QuadraticLoss, TaylorLogistic
from securevfl.protocols.blind.fixed_point import PhaseArray, PhaseFormat
from securevfl.protocols.exchanges.homomorphic import checked
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.keys import KeyMaker, PublicKey, take_key
from securevfl.runtime.channel import collect
from securevfl.runtime.costs import CORRELATED_RANDOMNESS, SETUP
from securevfl.runtime.views import Decrypted, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

if TYPE_CHECKING:
    from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner

SCHEME = "bfv-slots"
_IN_FLIGHT = 16
_PIECE = 8 * DEGREE  # rows: whole messages, of any number of terms
_PADS = "phases", "tables"
_WIRE = np.dtype("<u2")


@message_kind(65, stage="offline", carries="ciphertexts", shows="pads")
class EncryptedPhases(StepMessage):
    """Enc(cos(mρ₂)), Enc(sin(mρ₂)) of the next angles, up to 8192; `step` counts such pairs."""

    parts: Blobs


@message_kind(66, stage="offline", carries="ciphertexts", shows="pads")
class EncryptedPhaseProducts(StepMessage):
    """Their products by e^{imρ₁}, masked, under the receiver's key."""

    parts: Blobs


@message_kind(67, stage="round", carries="masked", shows="predictions")
class MaskedPhases(StepMessage):
    """The sender's share of H + ρ for every row of a batch, two little-endian bytes each."""

    phases: bytes


def masked_phases(step: int, phases: PhaseArray) -> MaskedPhases:
    """The message with these phases."""
    return MaskedPhases(step, phases.astype(_WIRE).tobytes())


class PhasePads:
    """One party's pads for logistic residuals; each row is used once."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[PhaseArray, RingArray]] = deque()

    def __len__(self) -> int:
        return sum(len(phases) for phases, _ in self._pieces)

    def take(self, rows: int) -> tuple[PhaseArray, RingArray]:
        """Remove and return the next rows' phases and tables."""
        if rows > len(self):
            raise CryptoError(f"pads for {len(self)} rows are left, {rows} needed")
        taken = []
        while rows:
            phases, tables = self._pieces.popleft()
            taken.append((phases[:rows], tables[:rows]))
            if len(phases) > rows:
                self._pieces.appendleft((phases[rows:], tables[rows:]))
            rows -= len(taken[-1][0])
        every = zip(*taken, strict=True)
        return np.concatenate(next(every)), np.concatenate(next(every))

    def add(self, phases: NDArray[Any], tables: NDArray[Any]) -> None:
        """Append pads of further rows.

        Args:
            phases: this party's share of ρ, shape (rows,).
            tables: its shares of cos(mρ), then of sin(mρ), modulo 2^64, shape (rows, 2·terms).

        Raises:
            CryptoError: wrong shapes or types.
        """
        fits = phases.dtype == np.uint16 and tables.dtype == np.uint64
        if not fits or phases.ndim != 1 or tables.shape[:1] != phases.shape or tables.ndim != 2:  # noqa: PLR2004
            raise CryptoError(
                f"pads of {phases.dtype} {phases.shape} and {tables.dtype} {tables.shape}: uint16 "
                "(rows,) and uint64 (rows, 2·terms) expected"
            )
        self._pieces.append((phases, tables))


def uniform_phases(rows: int) -> PhaseArray:
    """Uniform phases from the operating system, shape (rows,)."""
    return uniform_words(-(-rows // 4)).view(np.uint16)[:rows]


class AffineResiduals:
    """One computing party's side of affine residuals, which take no message."""

    def __init__(self, loss: QuadraticLoss, bits: int) -> None:
        self._loss, self._bits = loss, bits

    async def of(self, index: int, predictions: RingArray, labels: Labels | None) -> RingArray:
        """Its share of d from its share of H, shape (S,); the label party has `labels`."""
        del index
        return self._with_labels(predictions, labels)

    async def make_offline(self, rows: int) -> None:
        """Make the pads for this many rows with the other computing party."""

    def pop(self, rows: int) -> Mapping[str, NDArray[Any]]:
        """Remove and return the pads of a round of so many rows, by name."""
        del rows
        return {}

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add a round's pads from `arrays`; a KeyError if any is missing."""

    def _with_labels(self, share: RingArray, labels: Labels | None) -> RingArray:
        if labels is None:
            return share
        part, bound = self._loss.label_part(labels)[:, 0], self._loss.label_bound
        return ring.reduced(share + ring.encode(part, self._bits, bound, "labels"))


class LogisticResiduals(AffineResiduals):
    """One computing party's side of logistic residuals.

    The second party owns a key and the first has its public end; with stored pads there is none.
    """

    def __init__(
        self,
        party: Party,
        peer: str,
        phase_format: PhaseFormat,
        *,
        first: bool,
        key: "SlotEvaluator | None" = None,
        own_key: "SlotOwner | None" = None,
    ) -> None:
        # σ(H) − y and its expansion ½ + ¼H − y have the same label part.
        super().__init__(TaylorLogistic(), phase_format.fraction_bits)
        self._party, self._peer, self._first = party, peer, first
        self.phase_format, self._key, self._own_key = phase_format, key, own_key
        self.pads = PhasePads()

    @classmethod
    async def establish(
        cls,
        party: Party,
        peer: str,
        phase_format: PhaseFormat,
        rows: Sequence[int],
        *,
        first: bool,
        seed: bytes,
        keys: KeyMaker,
    ) -> "LogisticResiduals":
        """Exchange the second party's key, of the joint seed; `rows` are those of each block.

        Raises:
            RangeExceeded: too many rows for masks that hide them.
            PeerViolation: a key of another scheme, or an invalid one.
            KeyMismatch: a key of other parameters or of another seed.
        """
        pairs = sum(pairs_of(each * phase_format.terms) for each in rows)
        parameters = SlotParameters.of(pairs * DEGREE)
        if first:
            make = partial(keys.slot_evaluator, parameters=parameters)
            key = await take_key(party, peer, SCHEME, make, seed)
            return cls(party, peer, phase_format, first=True, key=key)
        async with party.costs.compute(SETUP):
            own_key = keys.slot_owner(parameters, seed)
        await party.channel.send(peer, PublicKey(SCHEME, own_key.public_bytes))
        return cls(party, peer, phase_format, first=False, own_key=own_key)

    @override
    async def make_offline(self, rows: int) -> None:
        if self._key is None and self._own_key is None:
            raise CryptoError("phase pads: all are stored, and there is no key to make more")
        for first in range(0, rows, _PIECE):
            self._party.costs.stopwatch.made(first, rows)
            await self._make_piece(min(_PIECE, rows - first))
        self._party.costs.stopwatch.made(rows, rows)

    async def _make_piece(self, rows: int) -> None:
        async with self._party.costs.compute(CORRELATED_RANDOMNESS):
            phases = uniform_phases(rows)
            parts = self.phase_format.parts(phases)
        if self._key is not None:
            shares = await self._products_of_first(self._key, parts)
        else:
            assert self._own_key is not None  # noqa: S101
            shares = await self._products_of_second(self._own_key, parts)
        self.pads.add(phases, self.phase_format.tables(shares))

    @override
    def pop(self, rows: int) -> Mapping[str, NDArray[Any]]:
        return dict(zip(_PADS, self.pads.take(rows), strict=True))

    @override
    def put(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.pads.add(*(arrays[name] for name in _PADS))

    @override
    async def of(self, index: int, predictions: RingArray, labels: Labels | None) -> RingArray:
        return self._with_labels(await self.sigmoid_shares(index, predictions), labels)

    async def sigmoid_shares(self, step: int, predictions: RingArray) -> RingArray:
        """Shares of σ(H) − ½ modulo 2^59 from this party's shares of H, shape (rows,).

        Raises:
            CryptoError: too few pads are left.
            UnexpectedMessage: a peer sent phases of another number of rows.
        """
        party, peer, fmt = self._party, self._peer, self.phase_format
        async with party.costs.compute("local"):
            phases, tables = self.pads.take(len(predictions))
            opened: PhaseArray = fmt.phases(predictions, first=self._first) + phases
        await party.channel.send(peer, masked_phases(step, opened))
        senders = [peer, *party.feature_parties[1:]]
        received = await collect(party.channel, senders, MaskedPhases, step)
        due = _WIRE.itemsize * len(opened)
        for sender, message in received.items():
            if len(message.phases) != due:
                raise UnexpectedMessage(
                    f"{sender} sent {len(message.phases)} bytes of phases, {due} due"
                )
            opened = opened + np.frombuffer(message.phases, _WIRE)
        async with party.costs.compute("local"):
            return fmt.residuals(opened, tables)

    async def _products_of_first(self, key: "SlotEvaluator", parts: IntArray) -> RingArray:
        party, peer, shares = self._party, self._peer, np.empty(parts.shape, np.uint64)
        for step, block in enumerate(_blocks(parts.shape[1])):
            _, message = await party.channel.receive([peer], EncryptedPhases, step)
            async with party.costs.compute(CORRELATED_RANDOMNESS):
                replies, shares[:, block] = checked(
                    peer, key.multiply, message.parts, parts[:, block]
                )
            party.costs.count("products", 2 * (block.stop - block.start))
            await party.channel.send(peer, EncryptedPhaseProducts(step, replies))
        return shares

    async def _products_of_second(self, key: "SlotOwner", parts: IntArray) -> RingArray:
        party, peer, shares = self._party, self._peer, np.empty(parts.shape, np.uint64)
        blocks = list(_blocks(parts.shape[1]))
        # The first party works while further pairs travel, and no party stores all of them.
        for step in range(len(blocks) + _IN_FLIGHT):
            if step < len(blocks):
                block = blocks[step]
                async with party.costs.compute(CORRELATED_RANDOMNESS):
                    encrypted = key.encrypt(np.ascontiguousarray(parts[:, block]))
                party.costs.count("encryptions", 2 * (block.stop - block.start))
                await party.channel.send(peer, EncryptedPhases(step, encrypted))
            if 0 <= (due := step - _IN_FLIGHT) < len(blocks):
                shares[:, blocks[due]] = await self._decrypted(key, due, blocks[due])
        return shares

    async def _decrypted(self, key: "SlotOwner", step: int, block: slice) -> RingArray:
        party, peer = self._party, self._peer
        _, message = await party.channel.receive([peer], EncryptedPhaseProducts, step)
        async with party.costs.compute(CORRELATED_RANDOMNESS):
            values = checked(peer, key.decrypt, message.parts, block.stop - block.start)
        party.costs.count("decryptions", values.size)
        record(party.channel, Decrypted(peer, step, values))
        return values


def _blocks(count: int) -> Iterator[slice]:
    for at in range(0, count, DEGREE):
        yield slice(at, min(at + DEGREE, count))
