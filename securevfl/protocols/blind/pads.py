"""What the two parties of a link make ahead of rounds: pads, and shares that follow from them.

Per link and block of rounds; o the holder, k the owner, ζ_r = ζ⟨k⟩_r + τ_r the exchanged point:

1. o → k: Enc_o(u_r, τ_r) and Enc_o(τ_r), u_r = trunc(w_r); pads w_r of S numbers and shares τ_r of
   P are uniform, drawn by o (τ_0 = 0: k starts at a point that it knows).
2. k → o: Enc_o(−N u_r − B τ_r − s_r) and Enc_o(X τ_r − v_r), s_r and v_r uniform, known to k alone.
3. o decrypts y_r and h_r. Its share of θ_{r+1} is τ_r + trunc(y_r), whatever happens in the round;
   extrapolated it is σ_{r+1}, and o → k: e_r = σ_{r+1} − τ_{r+1}, which k adds to its own share.

Rounds of one group are columns of one matrix product.

Learns:
    owner: nothing: ciphertexts under the holder's key, and e_r, under the pad τ_{r+1}.
    holder: nothing: what it decrypts is under the pads s_r and v_r, re-randomized and flooded.
Source: docs/decisions/0032-blind.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ring
from securevfl.errors import CryptoError, MalformedMessage, UnexpectedMessage
from securevfl.protocols.blind.schedule import Matrices, Round, Scales
from securevfl.protocols.blind.widths import EXTRAPOLATION_BITS, Widths
from securevfl.runtime.views import Share
from securevfl.wire.codec import Blobs, StepMessage, message_kind

if TYPE_CHECKING:
    from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner

D = TypeVar("D", np.int64, np.uint64)


@message_kind(60, stage="ahead", carries="ciphertexts")
class PadInputs(StepMessage):
    """Enc(τ, u) and Enc(τ) of each group in a block of rounds; `step` is the block's first."""

    for_steps: Blobs
    for_predictions: Blobs


@message_kind(61, stage="ahead", carries="ciphertexts")
class PadProducts(StepMessage):
    """Their products with [−B | −N] and X, masked, in the same order."""

    of_steps: Blobs
    of_predictions: Blobs


@message_kind(62, stage="ahead", carries="masked")
class Corrections(StepMessage):
    """e_r of every round of a block, shape (R, P)."""

    values: RingArray


@dataclass(frozen=True)
class Extrapolation:
    """θ⁺ + α(θ⁺ − θ) on shares."""

    first: bool

    def of(self, new: RingArray, before: RingArray, beta: float) -> RingArray:
        """A party's share, from its shares of both points."""
        factor = ring.of_integers(np.rint(np.ldexp([beta], EXTRAPOLATION_BITS)).astype(np.int64))
        return ring.reduced(
            new + ring.truncated((new - before) * factor, EXTRAPOLATION_BITS, first=self.first)
        )


@dataclass(eq=False)
class HolderPads:
    """A holder's, by round.

    Attributes:
        residuals: w_r, shape (S,).
        predictions: h_r, shape (S,).
        weights: its share of θ after the last of these rounds, shape (P,).
    """

    residuals: dict[int, RingArray]
    predictions: dict[int, RingArray]
    weights: RingArray


@dataclass(eq=False)
class OwnerPads:
    """An owner's, by round.

    Attributes:
        predictions: −v_r, shape (S,), to be added to its share of H.
        steps: s_r, shape (P,), to be added to its share of the step.
        corrections: e_r, shape (P,).
    """

    predictions: dict[int, RingArray] = field(default_factory=dict)
    steps: dict[int, RingArray] = field(default_factory=dict)
    corrections: dict[int, RingArray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class HolderKeys:
    """A holder's keys, one for each shape of product."""

    for_steps: "RingProductOwner"
    for_predictions: "RingProductOwner"


@dataclass(frozen=True, eq=False)
class OwnerKeys:
    """An owner's ends of them."""

    for_steps: "RingProductEvaluator"
    for_predictions: "RingProductEvaluator"


class Holding:
    """A holder's end of a link, block after block.

    Args:
        columns: P of the owner.
        keys: its own.
        widths: of the job.
        scales: the owner's.
        weights: its share of θ where the first block starts; none where the owner knows θ.
    """

    def __init__(
        self,
        columns: int,
        keys: HolderKeys,
        widths: Widths,
        scales: Scales,
        *,
        weights: RingArray | None = None,
    ) -> None:
        self._keys, self._widths, self._scales = keys, widths, scales
        zeros = np.zeros(columns, np.uint64)
        self.weights = zeros if weights is None else weights
        self._point = self.weights
        self._pads: dict[int, RingArray] = {}
        self._points: dict[int, RingArray] = {}

    def inputs(self, groups: Mapping[int, Sequence[Round]]) -> PadInputs:
        """Draw pads of a block, and encrypt them group by group."""
        for_steps, for_predictions = [], []
        dropped = self._widths.shared_residual_bits - self._widths.residual_bits
        rounds = sorted((each for group in groups.values() for each in group), key=_index)
        for each in rounds:
            self._points[each.index] = self._point
            self._pads[each.index] = ring.uniform(each.rows)
            self._point = ring.uniform(len(self._point))
        for group in groups.values():
            pads = [ring.truncated(self._pads[r.index], dropped, first=True) for r in group]
            points = np.stack([self._points[r.index] for r in group], axis=1)
            both = np.vstack([points, np.stack(pads, axis=1)])
            for_steps.append(_encrypted(self._keys.for_steps, both))
            for_predictions.append(_encrypted(self._keys.for_predictions, points))
        return PadInputs(rounds[0].index, tuple(for_steps), tuple(for_predictions))

    def take(
        self,
        owner: str,
        message: PadProducts,
        groups: Mapping[int, Sequence[Round]],
        saw: Callable[[Share], None],
    ) -> tuple[HolderPads, Corrections]:
        """Decrypt the owner's products; this party's pads of the block, and e_r.

        Args:
            owner: whose.
            message: its products.
            groups: of the block.
            saw: told this party's shares.

        Raises:
            UnexpectedMessage: another number of products than are due.
            MalformedMessage: bytes that are no reply under this party's keys.
        """
        _require_groups(owner, message.of_steps, message.of_predictions, groups)
        steps: dict[int, RingArray] = {}
        predictions: dict[int, RingArray] = {}
        for place, group in enumerate(groups.values()):
            found = _decrypted(owner, self._keys.for_steps, message.of_steps[place])
            seen = _decrypted(owner, self._keys.for_predictions, message.of_predictions[place])
            for column, each in enumerate(group):
                steps[each.index] = found[:, column]
                predictions[each.index] = seen[: each.rows, column]
        for what, shares in (
            ("residuals", self._pads),
            ("point", self._points),
            ("steps", steps),
            ("predictions", predictions),
        ):
            for index in steps:
                saw(Share(owner, what, index, shares[index]))
        dropped = self._scales.step_bits - self._widths.weight_bits
        corrections, extrapolation = [], Extrapolation(first=True)
        rounds = sorted((each for group in groups.values() for each in group), key=_index)
        for each in rounds:
            moved = ring.truncated(steps[each.index], dropped, first=True)
            new = ring.reduced(self._points.pop(each.index) + moved)
            extrapolated = extrapolation.of(new, self.weights, each.beta)
            self.weights = new
            upcoming = self._points.get(each.index + 1, self._point)
            corrections.append(ring.reduced(extrapolated - upcoming))
        pads = HolderPads(self._pads, predictions, self.weights)
        self._pads = {}
        return pads, Corrections(rounds[0].index, np.stack(corrections))


def products(
    holder: str,
    message: PadInputs,
    keys: OwnerKeys,
    matrices: Mapping[int, Matrices],
    groups: Mapping[int, Sequence[Round]],
) -> tuple[OwnerPads, PadProducts]:
    """An owner's part: multiply, and keep the masks.

    Raises:
        UnexpectedMessage: another number of inputs than are due.
        MalformedMessage: bytes that are no encryption of so many numbers.
    """
    _require_groups(holder, message.for_steps, message.for_predictions, groups)
    pads = OwnerPads()
    of_steps, of_predictions = [], []
    for place, (group, rounds) in enumerate(groups.items()):
        found, matrix = message.for_steps[place], matrices[group]
        try:
            reply, steps = _product(keys.for_steps, found, matrix.steps)
            of_steps.append(reply)
            found = message.for_predictions[place]
            reply, predictions = _product(keys.for_predictions, found, matrix.features)
            of_predictions.append(reply)
        except CryptoError as error:
            raise MalformedMessage(f"from {holder}: {error}") from error
        for column, each in enumerate(rounds):
            pads.steps[each.index] = ring.reduced(-steps[:, column])
            pads.predictions[each.index] = ring.reduced(-predictions[: each.rows, column])
    return pads, PadProducts(message.step, tuple(of_steps), tuple(of_predictions))


def _require_groups(
    sender: str, first: Blobs, second: Blobs, groups: Mapping[int, Sequence[Round]]
) -> None:
    if not len(first) == len(second) == len(groups):
        raise UnexpectedMessage(
            f"{sender} sent {len(first)} and {len(second)} products where {len(groups)} are due"
        )


def _encrypted(key: "RingProductOwner", values: RingArray) -> bytes:
    """Of as many rows and columns as the format has, 0 beyond those of a group."""
    fmt = key.product_format
    return key.encrypt(_filled(values, (fmt.inner, fmt.columns)))


def _product(
    key: "RingProductEvaluator", encrypted: bytes, matrix: IntArray
) -> tuple[bytes, RingArray]:
    fmt = key.product_format
    return key.product(encrypted, _filled(matrix, (fmt.outputs, fmt.inner)))


def _decrypted(owner: str, key: "RingProductOwner", reply: bytes) -> RingArray:
    try:
        return key.decrypt(reply)
    except CryptoError as error:
        raise MalformedMessage(f"from {owner}: {error}") from error


def _filled(values: NDArray[D], shape: tuple[int, int]) -> NDArray[D]:
    if values.shape == shape:
        return np.ascontiguousarray(values)
    filled = np.zeros(shape, values.dtype)
    filled[: values.shape[0], : values.shape[1]] = values
    return filled


def _index(each: Round) -> int:
    return each.index
