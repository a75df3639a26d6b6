"""How the label party obtains Σ_{k<K} H_k, the sum of the feature parties' predictions.

It receives every prediction in clear (`ClearGathering`), or only their sum (`MaskedGathering`).

`MaskedGathering` is secure aggregation with pairwise one-time masks that cancel in the sum (X25519
agreement, ChaCha20 streams, fixed point modulo 2^64), after Bonawitz et al., CCS 2017, without
drop-outs.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.fixed_point import decode, encode, from_ring, to_ring
from securevfl.crypto.masks import PairwiseMasks
from securevfl.errors import ConfigError
from securevfl.models.head import Head, HeadedModel
from securevfl.models.losses import Loss
from securevfl.runtime.channel import Channel, collect_values
from securevfl.runtime.costs import SCORING, Costs
from securevfl.wire.codec import StepMessage, message_kind

FRACTION_BITS = 32
PREDICTION_BOUND = 2.0**24


@dataclass(frozen=True)
class Party:
    """The parties of a job as one of them sees them; `names` has all, in the job's order."""

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
    """One exchange: FedBCD-p has one per round, FedBCD-s one per round and party.

    Where every local step repeats homomorphic work (`he_per_step`), each step is an exchange.

    Attributes:
        index: counts the exchanges of a job.
        receivers: the parties that get a signal.
        fresh: the parties with predictions of this batch that the label party has not seen; none
            where the step repeats the previous product on the same ciphertexts.
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
    """H_k in fixed point, plus masks that cancel in the sum over parties, shape (S, C)."""

    values: RingArray


@message_kind(9, stage="evaluation", carries="values", shows="predictions")
class HeldOutPredictions(StepMessage):
    """Local predictions of the held-out rows in clear, for scoring."""

    values: FloatArray


@message_kind(10, stage="evaluation", carries="shares", shows="predictions")
class MaskedHeldOutPredictions(StepMessage):
    """Local predictions of the held-out rows under masks that cancel in the sum."""

    values: RingArray


class Gathering(ABC):
    """One party's side: feature parties send predictions, the label party adds them up."""

    @abstractmethod
    async def batch(self, step: Step, own: FloatArray) -> FloatArray | None:
        """Take part with this party's predictions of the step's batch.

        Returns:
            The sum of the others' predictions at the label party, None elsewhere.
        """

    @abstractmethod
    async def held_out(self, step: int, own: FloatArray) -> FloatArray | None:
        """The same for the held-out rows."""


class ClearGathering(Gathering):
    """Every H_k in clear, or every u_k where the label party has a head: then H_k = u_k·θ_k.

    Learns:
        label party: every feature party's H_k of each row; with a head u_k, w numbers per row.
        feature parties: nothing.
    """

    def __init__(self, party: Party, head: HeadedModel | Head | None = None) -> None:
        self._party, self._head = party, head
        self._known: dict[str, FloatArray] = {}

    @property
    def side_by_side(self) -> FloatArray:
        """The newest values of all other parties in one matrix."""
        return np.hstack([self._known[name] for name in self._party.feature_parties])

    @override
    async def batch(self, step: Step, own: FloatArray) -> FloatArray | None:
        party = self._party
        if not party.holds_labels:
            if party.name in step.fresh:
                await self._send(Predictions, step.index, own)
            return None
        senders = [name for name in party.feature_parties if name in step.fresh]
        self._known |= await self._received(Predictions, senders, step.index, own.shape)
        return self._sum(self._known)

    @override
    async def held_out(self, step: int, own: FloatArray) -> FloatArray | None:
        if not self._party.holds_labels:
            await self._send(HeldOutPredictions, step, own)
            return None
        senders = self._party.feature_parties
        return self._sum(await self._received(HeldOutPredictions, senders, step, own.shape))

    async def _send(
        self, kind: type[Predictions | HeldOutPredictions], step: int, predictions: FloatArray
    ) -> None:
        await self._party.channel.send(self._party.label_party, kind(step, predictions))

    async def _received(
        self,
        kind: type[Predictions | HeldOutPredictions],
        senders: Collection[str],
        step: int,
        shape: tuple[int, ...],
    ) -> dict[str, FloatArray]:
        width = shape[1] if self._head is None else self._head.width
        return await collect_values(self._party.channel, senders, kind, step, (shape[0], width))

    def _sum(self, values: dict[str, FloatArray]) -> FloatArray:
        head, names = self._head, self._party.feature_parties
        return reduce(
            np.add, [values[n] if head is None else values[n] @ head.part(n) for n in names]
        )


def gathering_of(
    party: Party, masks: PairwiseMasks, *, sums: bool, head: HeadedModel | Head | None = None
) -> Gathering:
    """Single predictions in clear, or only their sum."""
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

    Each `context`, the same at all parties, has masks of its own.
    """
    encoded = encode(values, FRACTION_BITS, PREDICTION_BOUND, what)
    return to_ring(encoded) + masks.zero_share(party.feature_parties, context, values.shape)


def unmasked_sum(summands: Sequence[RingArray]) -> FloatArray:
    """The sum of the feature parties' values, given as `masked` returned them."""
    return decode(from_ring(np.sum(summands, axis=0)), FRACTION_BITS)


class MaskedGathering(Gathering):
    """Only the sum, for three parties or more.

    Learns:
        label party: Σ_{k<K} H_k of each row and no summand.
        feature parties: nothing.

    Raises:
        ConfigError: fewer than two feature parties: the sum would be the summand.
    """

    def __init__(self, party: Party, masks: PairwiseMasks) -> None:
        require_summands(len(party.names))
        self._party, self._masks = party, masks
        self._sum: FloatArray | None = None

    @override
    async def batch(self, step: Step, own: FloatArray) -> FloatArray | None:
        """All parties take part as soon as one has fresh predictions."""
        if any(name in self._party.feature_parties for name in step.fresh):
            index = step.index
            self._sum = await self._added(
                MaskedPredictions, index, own, f"predictions {index}", "encrypt"
            )
        return self._sum

    @override
    async def held_out(self, step: int, own: FloatArray) -> FloatArray | None:
        return await self._added(MaskedHeldOutPredictions, step, own, f"held out {step}", SCORING)

    async def _added(
        self,
        kind: type[MaskedPredictions | MaskedHeldOutPredictions],
        step: int,
        own: FloatArray,
        context: str,
        phase: str,
    ) -> FloatArray | None:
        party = self._party
        if party.holds_labels:
            senders = party.feature_parties
            found = await collect_values(party.channel, senders, kind, step, own.shape)
            return unmasked_sum(list(found.values()))
        async with party.costs.compute(phase):
            values = masked(party, self._masks, context, own, "predictions")
        await party.channel.send(party.label_party, kind(step, values))
        return None
