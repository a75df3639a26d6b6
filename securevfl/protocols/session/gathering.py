"""A party and a step of its job, and how the label party comes to Σ_{k<K} H_k.

It takes each prediction in clear (`ClearGathering`), or only their sum (`MaskedGathering`).

`MaskedGathering` adds pairwise one-time masks that cancel in the sum (X25519 agreement,
ChaCha20 streams, fixed point modulo 2^64), after Bonawitz et al., CCS 2017, without drop-outs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.fixed_point import decode, encode, from_ring, to_ring
from securevfl.crypto.masks import PairwiseMasks
from securevfl.errors import ConfigError
from securevfl.models.head import Head, HeadedModel
from securevfl.models.losses import Loss
from securevfl.runtime.channel import Channel, collect, expect_shape
from securevfl.runtime.costs import Costs
from securevfl.wire.codec import StepMessage, message_kind

FRACTION_BITS = 32
PREDICTION_BOUND = 2.0**24


@dataclass(frozen=True)
class Party:
    """Who takes part, as seen from one party; `names` are of all, in the job's order."""

    channel: Channel
    costs: Costs
    names: tuple[str, ...]
    label_party: str
    loss: Loss

    @property
    def name(self) -> str:
        """This party."""
        return self.channel.name

    @property
    def holds_labels(self) -> bool:
        """Whether this is the label party."""
        return self.name == self.label_party

    @property
    def others(self) -> tuple[str, ...]:
        """All other parties."""
        return tuple(name for name in self.names if name != self.name)

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """All parties without labels."""
        return tuple(name for name in self.names if name != self.label_party)


@dataclass(frozen=True)
class Step:
    """One exchange: in FedBCD-p there is one a round, in FedBCD-s one a party and round.

    Where every local step repeats homomorphic work (`he_per_step`), each is an exchange.

    Attributes:
        index: counts the exchanges of a job.
        receivers: who gets a signal.
        fresh: whose predictions of this batch the label party has not seen yet; nobody's where the
            step repeats the product of the one before, on the same ciphertexts.
    """

    index: int
    receivers: tuple[str, ...]
    fresh: tuple[str, ...]


@message_kind(2, stage="round", carries="values", shows="predictions")
class Predictions(StepMessage):
    """Local predictions H_k of a batch in clear, shape (S, C)."""

    values: FloatArray


@message_kind(3, stage="round", carries="shares", shows="predictions")
class MaskedPredictions(StepMessage):
    """H_k in fixed point plus masks that cancel in the sum over parties, shape (S, C)."""

    values: RingArray


@message_kind(9, stage="evaluation", carries="values", shows="predictions")
class HeldOutPredictions(StepMessage):
    """Local predictions of the held-out rows in clear, for scoring."""

    values: FloatArray


@message_kind(10, stage="evaluation", carries="shares", shows="predictions")
class MaskedHeldOutPredictions(StepMessage):
    """Local predictions of the held-out rows under masks that cancel in the sum."""

    values: RingArray


class Gathering(Protocol):
    """Feature parties give, the label party takes the sum."""

    async def give(self, step: Step, predictions: FloatArray) -> None:
        """Send this feature party's predictions where the step needs them."""

    async def take_sum(self, step: Step, shape: tuple[int, ...]) -> FloatArray:
        """At the label party: Σ_{k<K} H_k of the step's batch."""

    async def give_held_out(self, step: int, predictions: FloatArray) -> None:
        """Send this feature party's predictions of the held-out rows."""

    async def take_held_out_sum(self, step: int, shape: tuple[int, ...]) -> FloatArray:
        """At the label party: the sum over the held-out rows."""


class ClearGathering:
    """Every H_k in clear, or every u_k where the label party has a head, which makes H_k = u_k·θ_k.

    Learns:
        label party: H_k per sample, of every feature party; with a head u_k, w numbers.
        feature parties: nothing.
    """

    def __init__(self, party: Party, head: HeadedModel | Head | None = None) -> None:
        self._party = party
        self._head = head
        self._known: dict[str, FloatArray] = {}

    @property
    def side_by_side(self) -> FloatArray:
        """What all others gave last."""
        return np.hstack([self._known[name] for name in self._party.feature_parties])

    async def give(self, step: Step, predictions: FloatArray) -> None:
        """Send H_k if it is fresh."""
        if self._party.name in step.fresh:
            message = Predictions(step.index, predictions)
            await self._party.channel.send(self._party.label_party, message)

    async def take_sum(self, step: Step, shape: tuple[int, ...]) -> FloatArray:
        """Add what is fresh to what is known."""
        party = self._party
        senders = [name for name in party.feature_parties if name in step.fresh]
        received = await collect(party.channel, senders, Predictions, step.index)
        for sender, message in received.items():
            self._known[sender] = self._checked(sender, message.values, shape)
        given = [self._weighed(name, self._known[name]) for name in party.feature_parties]
        return reduce(np.add, given)

    async def give_held_out(self, step: int, predictions: FloatArray) -> None:
        """Send the held-out predictions in clear."""
        await self._party.channel.send(
            self._party.label_party, HeldOutPredictions(step, predictions)
        )

    async def take_held_out_sum(self, step: int, shape: tuple[int, ...]) -> FloatArray:
        """Add up the held-out predictions."""
        senders = self._party.feature_parties
        received = await collect(self._party.channel, senders, HeldOutPredictions, step)
        values = {name: self._checked(name, each.values, shape) for name, each in received.items()}
        return reduce(np.add, [self._weighed(name, each) for name, each in values.items()])

    def _checked(self, sender: str, values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        width = shape[1] if self._head is None else self._head.width
        expect_shape(sender, values, (shape[0], width))
        return values

    def _weighed(self, sender: str, values: FloatArray) -> FloatArray:
        return values if self._head is None else values @ self._head.part(sender)


def gathering_of(
    party: Party, masks: PairwiseMasks, *, sums: bool, head: HeadedModel | Head | None = None
) -> Gathering:
    """Predictions singly in clear, or only their sum."""
    return MaskedGathering(party, masks) if sums else ClearGathering(party, head)


def require_summands(parties: int) -> None:
    """Refuse a sum over fewer than two feature parties."""
    if parties < 3:  # noqa: PLR2004
        raise ConfigError(
            f"masked predictions need at least 3 parties, this job has {parties}: with one "
            "feature party the sum is its prediction; hide = 'both' of a homomorphic exchange, or "
            "exchange 'blind', hides it, and 'plain' shows it"
        )


def masked(
    party: Party, masks: PairwiseMasks, context: str, values: FloatArray, what: str
) -> RingArray:
    """Values in fixed point plus masks that cancel in the sum over feature parties.

    A context, which all of them name alike, has masks of its own.
    """
    encoded = encode(values, FRACTION_BITS, PREDICTION_BOUND, what)
    return to_ring(encoded) + masks.zero_share(party.feature_parties, context, values.shape)


def unmasked_sum(summands: Sequence[RingArray]) -> FloatArray:
    """The sum of what all feature parties gave of it, `masked`."""
    return decode(from_ring(np.sum(summands, axis=0)), FRACTION_BITS)


class MaskedGathering:
    """Only the sum, for three parties or more.

    Learns:
        label party: Σ_{k<K} H_k per sample and no summand.
        feature parties: nothing.

    Raises:
        ConfigError: fewer than two feature parties: the sum would be the summand.
    """

    def __init__(self, party: Party, masks: PairwiseMasks) -> None:
        require_summands(len(party.names))
        self._party = party
        self._masks = masks
        self._sum: FloatArray | None = None

    async def give(self, step: Step, predictions: FloatArray) -> None:
        """Send H_k + masks; all take part as soon as one has something fresh."""
        if any(name in self._party.feature_parties for name in step.fresh):
            values = await self._masked(f"predictions {step.index}", predictions)
            message = MaskedPredictions(step.index, values)
            await self._party.channel.send(self._party.label_party, message)

    async def take_sum(self, step: Step, shape: tuple[int, ...]) -> FloatArray:
        """Add up the masked predictions: the masks cancel."""
        if self._sum is None or any(name in self._party.feature_parties for name in step.fresh):
            self._sum = await self._unmasked_sum(MaskedPredictions, step.index, shape)
        return self._sum

    async def give_held_out(self, step: int, predictions: FloatArray) -> None:
        """Send the held-out predictions under masks of their own."""
        values = await self._masked(f"held out {step}", predictions, phase="scoring")
        await self._party.channel.send(
            self._party.label_party, MaskedHeldOutPredictions(step, values)
        )

    async def take_held_out_sum(self, step: int, shape: tuple[int, ...]) -> FloatArray:
        """Add up the masked held-out predictions."""
        return await self._unmasked_sum(MaskedHeldOutPredictions, step, shape)

    async def _unmasked_sum(
        self,
        kind: type[MaskedPredictions] | type[MaskedHeldOutPredictions],
        step: int,
        shape: tuple[int, ...],
    ) -> FloatArray:
        senders = self._party.feature_parties
        received = await collect(self._party.channel, senders, kind, step)
        for sender, message in received.items():
            expect_shape(sender, message.values, shape)
        return unmasked_sum([message.values for message in received.values()])

    async def _masked(
        self, context: str, predictions: FloatArray, phase: str = "encrypt"
    ) -> NDArray[np.uint64]:
        async with self._party.costs.compute(phase):
            return masked(self._party, self._masks, context, predictions, "predictions")
