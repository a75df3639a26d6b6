"""What the two parties of a link make ahead of rounds: pads, and shares that follow from them.

Per link and block of rounds; o the holder, k the owner, ζ_r = ζ⟨k⟩_r + τ_r the exchanged point. The
rows of a round are those of the batch and, for L2, those of E (`schedule`), each with its pad:

1. o → k: Enc_o(u_r), u_r = trunc(w_r), for pads w_r that o draws, uniform.
2. k → o: Enc_o(−N u_r − s_r), s_r uniform and known to k alone. o decrypts y_r.
3. o → k, under another key: Enc_o(τ_r), for shares τ_r that o draws now, uniform; τ_0 = 0, as k
   starts at a point that it knows.
4. k → o: Enc_o(Xτ_r − v_r), v_r uniform and known to k alone. o decrypts h_r.
5. o's share of θ_{r+1} is τ_r + trunc(y_r), whatever happens in the round; extrapolated it is
   σ_{r+1}. o → k: e_r = σ_{r+1} − τ_{r+1}, which k adds to its own share, and h_r − w_r of the rows
   of E, whose residuals are linear in ζ alone. Rounds of a group are columns of one product.

Learns:
    owner: nothing: ciphertexts under the holder's keys, and words under the pads τ_{r+1} and w_r;
        one that cheats could have them tell what was decrypted (docs/blind.md).
    holder: nothing: what it decrypts is under the pads s_r and v_r, re-randomized and flooded.
Source: docs/decisions/0032-blind.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ring
from securevfl.errors import UnexpectedMessage
from securevfl.protocols.blind.schedule import Matrices, Round, Scales
from securevfl.protocols.blind.widths import EXTRAPOLATION_BITS, Widths
from securevfl.protocols.exchanges.homomorphic import checked
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.views import Share
from securevfl.wire.codec import Blobs, StepMessage, message_kind

if TYPE_CHECKING:
    from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner

D = TypeVar("D", np.int64, np.uint64)


@message_kind(60, stage="ahead", carries="ciphertexts", shows="pads")
class EncryptedPads(StepMessage):
    """Enc(u_r) of the rounds of some groups of a block; `step` is the first of these."""

    groups: Blobs


@message_kind(61, stage="ahead", carries="ciphertexts", shows="pads")
class MaskedSteps(StepMessage):
    """Their products with −N, masked."""

    groups: Blobs


@message_kind(75, stage="ahead", carries="ciphertexts", shows="pads")
class EncryptedPoints(StepMessage):
    """Enc(τ_r) in the same way, under the holder's other key."""

    groups: Blobs


@message_kind(74, stage="ahead", carries="ciphertexts", shows="pads")
class MaskedShares(StepMessage):
    """Their products with X, masked."""

    groups: Blobs


@message_kind(62, stage="ahead", carries="masked", shows="pads")
class Corrections(StepMessage):
    """e_r of every round of a block, and h_r − w_r of the rows of E, each of shape (R, P)."""

    points: RingArray
    pulls: RingArray


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
        path: its shares of θ and of ζ after each round, shape (2, P).
    """

    residuals: dict[int, RingArray]
    predictions: dict[int, RingArray]
    weights: RingArray
    path: dict[int, RingArray]

    def add(self, more: "HolderPads") -> None:
        """Those of the next block."""
        self.residuals |= more.residuals
        self.predictions |= more.predictions
        self.path |= more.path
        self.weights = more.weights


@dataclass(eq=False)
class OwnerPads:
    """An owner's, by round.

    Attributes:
        predictions: −v_r of the batch's rows, shape (S,), to be added to its share of H.
        pulls: the same of the rows of E with what the holder sent of them, shape (P,).
        steps: s_r, shape (P,), to be added to its share of the step.
        corrections: e_r, shape (P,).
    """

    predictions: dict[int, RingArray] = field(default_factory=dict)
    pulls: dict[int, RingArray] = field(default_factory=dict)
    steps: dict[int, RingArray] = field(default_factory=dict)
    corrections: dict[int, RingArray] = field(default_factory=dict)

    def add(self, more: "OwnerPads") -> None:
        """Those of the next block."""
        self.corrections |= more.corrections
        for what, masks in more.masks.items():
            self.masks[what] |= masks

    @property
    def masks(self) -> dict[str, dict[int, RingArray]]:
        """Its masks of products, by what they mask and by round."""
        return {"steps": self.steps, "predictions": self.predictions, "pulls": self.pulls}

    def take(self, holder: str, message: Corrections) -> None:
        """Add what the holder says at the end.

        Raises:
            UnexpectedMessage: for another number of rounds or weights.
        """
        shape = len(self.steps), next(iter(self.steps.values())).size
        expect_shape(holder, message.points, shape)
        expect_shape(holder, message.pulls, shape)
        for index, point, pull in zip(
            sorted(self.steps), message.points, message.pulls, strict=True
        ):
            self.corrections[index] = point
            self.pulls[index] = ring.reduced(self.pulls[index] + pull)


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


Groups = Mapping[int, Sequence[Round]]
"""Rounds by their group's number."""


class Holding:
    """A holder's end of a link, block after block.

    Args:
        columns: P of the owner.
        keys: its own.
        widths: of the job.
        scales: the owner's.
    """

    def __init__(self, columns: int, keys: HolderKeys, widths: Widths, scales: Scales) -> None:
        self._keys, self._widths, self._scales = keys, widths, scales
        # The owner knows θ at the start.
        self.weights = self._point = np.zeros(columns, np.uint64)
        self._path: dict[int, RingArray] = {}
        self._pads: dict[int, RingArray] = {}
        self._pulls: dict[int, RingArray] = {}
        self._seen_pulls: dict[int, RingArray] = {}
        self._points: dict[int, RingArray] = {}
        self._steps: dict[int, RingArray] = {}
        self._predictions: dict[int, RingArray] = {}

    def go_on(self, shares: RingArray) -> None:
        """Start the next block with the shares of θ and ζ of an earlier run, shape (2, P)."""
        self.weights, self._point = shares

    def pads(self, groups: Groups) -> EncryptedPads:
        """Draw pads of some groups' rounds, and encrypt what they are truncated to."""
        widths, blobs = self._widths, []
        for group in groups.values():
            columns = []
            for each in group:
                pad = self._pads[each.index] = ring.uniform(each.rows)
                pull = self._pulls[each.index] = ring.uniform(len(self._point))
                parts = (pull, widths.dropped_of_pulls), (pad, widths.dropped_of_residuals)
                columns.append(
                    np.hstack([ring.truncated(part, bits, first=True) for part, bits in parts])
                )
            blobs.append(_encrypted(self._keys.for_steps, np.stack(columns, axis=1)))
        return EncryptedPads(first_of(groups), tuple(blobs))

    def take_steps(self, owner: str, message: MaskedSteps, groups: Groups) -> None:
        """Decrypt their y.

        Raises:
            UnexpectedMessage: another number of products than are due.
            MalformedMessage: bytes that are no reply under this party's key.
        """
        for each, found in _decrypted(owner, self._keys.for_steps, message.groups, groups):
            self._steps[each.index] = found

    def draw_points(self, rounds: Sequence[Round]) -> None:
        """Draw shares of the points of a block, once all its steps have been answered."""
        for each in rounds:
            self._points[each.index] = self._point
            self._point = ring.uniform(len(self._point))

    def points(self, groups: Groups) -> EncryptedPoints:
        """Encrypt those of some groups' rounds."""
        blobs = [
            _encrypted(
                self._keys.for_predictions,
                np.stack([self._points[each.index] for each in group], axis=1),
            )
            for group in groups.values()
        ]
        return EncryptedPoints(first_of(groups), tuple(blobs))

    def take_shares(self, owner: str, message: MaskedShares, groups: Groups) -> None:
        """Decrypt their h.

        Raises:
            UnexpectedMessage: another number of products than are due.
            MalformedMessage: bytes that are no reply under this party's key.
        """
        columns = len(self._point)
        for each, found in _decrypted(owner, self._keys.for_predictions, message.groups, groups):
            self._seen_pulls[each.index] = found[:columns]
            self._predictions[each.index] = found[columns : columns + each.rows]

    def ends(
        self, owner: str, rounds: Sequence[Round], saw: Callable[[Share], None]
    ) -> tuple[HolderPads, Corrections]:
        """This party's pads of a block, and what it says at the end.

        Args:
            owner: whose.
            rounds: of the block, in order.
            saw: told this party's shares.
        """
        for what, shares in (
            ("residuals", self._pads),
            ("pull pads", self._pulls),
            ("point", self._points),
            ("steps", self._steps),
            ("pulls", self._seen_pulls),
            ("predictions", self._predictions),
        ):
            for each in rounds:
                saw(Share(owner, what, each.index, shares[each.index]))
        points = np.stack([self._correction(each) for each in rounds])
        pulls = [self._seen_pulls.pop(r.index) - self._pulls.pop(r.index) for r in rounds]
        pads = HolderPads(self._pads, self._predictions, self.weights, self._path)
        self._pads, self._predictions, self._path = {}, {}, {}
        return pads, Corrections(rounds[0].index, points, ring.reduced(np.stack(pulls)))

    def _correction(self, each: Round) -> RingArray:
        """What takes a round to the next, e, in order; its share of θ moves on."""
        dropped = self._scales.step_bits - self._widths.weight_bits
        moved = ring.truncated(self._steps.pop(each.index), dropped, first=True)
        new = ring.reduced(self._points.pop(each.index) + moved)
        extrapolated = Extrapolation(first=True).of(new, self.weights, each.beta)
        self.weights, upcoming = new, self._points.get(each.index + 1, self._point)
        self._path[each.index] = np.stack([new, upcoming])
        return ring.reduced(extrapolated - upcoming)


class Owning:
    """An owner's end of its link: it multiplies by its matrices, and keeps the masks.

    Args:
        holder: who holds.
        keys: its ends of the holder's.
        matrices: by group.
    """

    def __init__(self, holder: str, keys: OwnerKeys, matrices: Mapping[int, Matrices]) -> None:
        self._holder, self._keys, self._matrices = holder, keys, matrices

    def steps(self, message: EncryptedPads, groups: Groups, pads: OwnerPads) -> MaskedSteps:
        """Multiply pads by −N.

        Raises:
            UnexpectedMessage: another number of inputs than are due.
            MalformedMessage: bytes that are no encryption of so many numbers.
        """
        matrices = {group: self._matrices[group].steps for group in groups}
        blobs, masks = self._products(self._keys.for_steps, message.groups, matrices, groups)
        for each, mask in masks:
            pads.steps[each.index] = mask
        return MaskedSteps(message.step, blobs)

    def shares(self, message: EncryptedPoints, groups: Groups, pads: OwnerPads) -> MaskedShares:
        """Multiply points by X.

        Raises:
            UnexpectedMessage: another number of inputs than are due.
            MalformedMessage: bytes that are no encryption of so many numbers.
        """
        matrices = {group: self._matrices[group].features for group in groups}
        blobs, masks = self._products(self._keys.for_predictions, message.groups, matrices, groups)
        for each, mask in masks:
            columns = len(pads.steps[each.index])
            pads.pulls[each.index] = mask[:columns]
            pads.predictions[each.index] = mask[columns : columns + each.rows]
        return MaskedShares(message.step, blobs)

    def _products(
        self,
        key: "RingProductEvaluator",
        blobs: Blobs,
        matrices: Mapping[int, IntArray],
        groups: Groups,
    ) -> tuple[Blobs, list[tuple[Round, RingArray]]]:
        """Replies, and what this party adds to its own share for them, by round."""
        _require_groups(self._holder, blobs, groups)
        fmt, replies, masks = key.product_format, [], []
        for blob, (group, rounds) in zip(blobs, groups.items(), strict=True):
            filled = _filled(matrices[group], (fmt.outputs, fmt.inner))
            reply, mask = checked(self._holder, key.product, blob, filled)
            replies.append(reply)
            masks += [(each, ring.reduced(-mask[:, column])) for column, each in enumerate(rounds)]
        return tuple(replies), masks


def _encrypted(key: "RingProductOwner", values: RingArray) -> bytes:
    """Of as many rows and columns as the format has, 0 beyond those of a group."""
    fmt = key.product_format
    return key.encrypt(_filled(values, (fmt.inner, fmt.columns)))


def _decrypted(
    owner: str, key: "RingProductOwner", blobs: Blobs, groups: Groups
) -> Iterator[tuple[Round, RingArray]]:
    """Every round's column of a block's products."""
    _require_groups(owner, blobs, groups)
    for blob, group in zip(blobs, groups.values(), strict=True):
        found = checked(owner, key.decrypt, blob)
        for column, each in enumerate(group):
            yield each, found[:, column]


def _filled(values: NDArray[D], shape: tuple[int, int]) -> NDArray[D]:
    if values.shape == shape:
        return np.ascontiguousarray(values)
    filled = np.zeros(shape, values.dtype)
    filled[: values.shape[0], : values.shape[1]] = values
    return filled


def _require_groups(sender: str, blobs: Blobs, groups: Groups) -> None:
    if len(blobs) != len(groups):
        raise UnexpectedMessage(f"{sender} sent {len(blobs)} products where {len(groups)} are due")


def first_of(groups: Groups) -> int:
    """The first round of some groups."""
    return min(each.index for group in groups.values() for each in group)
