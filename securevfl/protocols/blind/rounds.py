"""A party's part of a blind job: its rounds on shares, and the rounded reveal at the end.

In round r a party's share of H is X·ζ⟨k⟩ + v_r plus the h_r of the links that it holds. From
shares of d it obtains a = d − w_r for its own link (`relays`). Its share of θ_{r+1} is
ζ⟨k⟩ + trunc(−N·trunc(a) + s_r); extrapolated with e_r it is the share of ζ_{r+1}.

After the agreed number of rounds holders send the top bits of their share of θ.

Learns:
    owner: θ_k at the end, on a grid of 2^−12 whose offset depends on its own share; nothing before.
        With logistic residuals every party also learns of every other whether its predictions
        stayed within the range of the series: one bit, which is true in a job that succeeds.
    holder: nothing.
Guarantees: against semi-honest parties; what others get: docs/explanation/blind.md.
Source: docs/decisions/0032-blind.md, 0034-logistic-residuals-in-shares.md.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import FloatArray, Labels, RingArray
from securevfl.crypto import ring
from securevfl.crypto.scheme import MODULUS_BITS
from securevfl.errors import ConfigError, DataError, RangeExceeded, UnexpectedMessage
from securevfl.models.sigmoid_series import LARGEST_PERIOD, SigmoidSeries
from securevfl.protocols.blind.fixed_point import (
    LARGEST_WEIGHT,
    OPENED_BITS,
    REVEALED_BITS,
    Widths,
)
from securevfl.protocols.blind.links import OwnerPads, extrapolated
from securevfl.protocols.blind.offline import Offline
from securevfl.protocols.blind.relays import gather_shares, give_phases, hand_back
from securevfl.protocols.blind.schedule import (
    BlindJob,
    Matrices,
    PlannedRound,
    Scales,
    holders,
    owners_held_by,
)
from securevfl.protocols.blind.scoring import establish_scoring
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.pad_store import StateSeal
from securevfl.protocols.session.privacy_account import LeakageCount
from securevfl.protocols.session.scoring import Scoring
from securevfl.protocols.vertical.runner import Part, Seen, Training
from securevfl.runtime.channel import exchange_with, receive_values
from securevfl.runtime.costs import SETUP
from securevfl.runtime.views import Share, record
from securevfl.wire.codec import Message, message_kind

OWN, HELD, INTO, OUT = "own", "held ", "into", "out"


@message_kind(64, stage="round", carries="masked", shows="weights")
class RevealedShare(Message):
    """A holder's share of θ on the grid that is revealed, modulo 2^28, shape (P,)."""

    values: RingArray


@message_kind(76, stage="evaluation")
class StaysInRange(Message):
    """Whether the sender's part of every training row's prediction is within half a period."""

    within: bool


class SharedWeights:
    """An owner's shares of θ and of the exchanged point ζ, round by round, from φ⁰, shape (P,)."""

    def __init__(self, start: FloatArray, widths: Widths, scales: Scales) -> None:
        self.widths, self._scales = widths, scales
        self.weights = ring.encode(start, widths.weight_bits, LARGEST_WEIGHT, "starting weights")
        self.point = self.weights
        self._pulls = self.weights

    @property
    def shares(self) -> RingArray:
        """The shares of θ and ζ, shape (2, P)."""
        return np.stack([self.weights, self.point])

    def predictions(self, each: PlannedRound, matrices: Matrices, pads: OwnerPads) -> RingArray:
        """Its share of H, shape (S,); the rows of E stay here until `move`."""
        seen = matrices.of_features @ self.point
        columns = len(self.point)
        self._pulls = ring.reduced(seen[:columns] + pads.pulls.pop(each.index))
        return ring.reduced(seen[columns:] + pads.predictions.pop(each.index))

    def move(
        self, each: PlannedRound, matrices: Matrices, pads: OwnerPads, masked: RingArray
    ) -> None:
        """Its share of a round's step, from d − w of its link, shape (S,)."""
        residuals = self.widths.truncated(self._pulls, masked, first=False)
        step = matrices.of_residuals @ residuals + pads.steps.pop(each.index)
        dropped = self._scales.step_bits - self.widths.weight_bits
        new = ring.reduced(self.point + ring.truncated(step, dropped, first=False))
        target = extrapolated(new, self.weights, each.beta, first=False)
        self.weights = new
        self.point = ring.reduced(target + pads.corrections.pop(each.index))

    def opened(self, top: RingArray) -> FloatArray:
        """φ, from the top bits of the holder's share; a RangeExceeded if implausibly large."""
        dropped = self.widths.weight_bits - REVEALED_BITS
        own = ring.truncated(self.weights, dropped, first=False)
        spare = np.uint64(MODULUS_BITS - OPENED_BITS)
        words = np.left_shift(top + own, spare).view(np.int64) >> spare.astype(np.int64)
        values: FloatArray = np.ldexp(words.astype(np.float64), -REVEALED_BITS)
        largest = float(np.max(np.abs(values), initial=0.0))
        if largest > LARGEST_WEIGHT:
            raise RangeExceeded(
                f"blind: the revealed weights reach {largest:.3g}, at most {LARGEST_WEIGHT:g} "
                "expected: training diverged, or a truncation of shares went wrong; use smaller "
                "steps, or run again with fresh pads"
            )
        return values


def top_of(weights: RingArray, widths: Widths) -> RevealedShare:
    """The part of its share of θ that a holder reveals: weights up to 2^12 and a check of sizes."""
    dropped = widths.weight_bits - REVEALED_BITS
    top = ring.truncated(weights, dropped, first=True)
    return RevealedShare(top & np.uint64((1 << OPENED_BITS) - 1))


async def require_range(party: Party, own: FloatArray, series: SigmoidSeries) -> None:
    """At the end every party announces whether its part X_k·θ_k is within half a period.

    The series pushes rows beyond half a period further outwards, quickly in a long job. On all data
    of docs/decisions/0034 a spoiled model had a part out of range. The sum of the parts may leave
    the range unnoticed, by less than a factor of K.

    Raises:
        RangeExceeded: some party's part is out of range; all parties raise it.
    """
    within = bool(np.max(np.abs(own), initial=0.0) <= series.period / 2)
    others = await exchange_with(party.channel, party.others, StaysInRange(within))
    if within and all(each.within for each in others.values()):
        return
    longer = ""
    if round(series.period) < LARGEST_PERIOD:
        longer = f"set [exchange] period = {min(round(2 * series.period), LARGEST_PERIOD)}, "
    raise RangeExceeded(
        f"blind: predictions left half the period of {series.period:.0f} for which logistic "
        f"residuals were computed, and the model is not the one that was asked for: {longer}take "
        "fewer rounds or a larger l2, or bound features that reach many deviations"
    )


class BlindPart(Part):
    """An offline phase, rounds on shares, and a reveal of θ at the end.

    Its checkpoints have the shares of θ and ζ and the basis of its own, and nothing made offline: a
    resumed session has fresh keys and pads. It restores before it agrees with the others, as the
    agreement depends on the basis. Shares of ζ can be used again: no party has seen them, and the
    interrupted round's messages were under pads.

    Raises:
        ConfigError: states are to be written, and there is no folder for the key that seals them.
    """

    restores_first = True
    job: BlindJob
    own: SharedWeights
    offline: Offline

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        place, plan = self.place, self.plan
        self._kept: dict[str, NDArray[Any]] = {}
        self._seal: StateSeal | None = None
        if place.checkpoints is not None and place.pads is not None:
            self._seal = place.pads.state_seal(plan.hash.hex())
        elif place.checkpoints is not None and plan.job.output.checkpoint_every:
            raise ConfigError("checkpoints of shares are sealed: name a folder for keys (pads)")

    @override
    async def agree(self) -> Agreement:
        whitening = (self._kept[INTO], self._kept[OUT]) if self._kept else None
        self.job = await BlindJob.of(self.training, whitening)
        self.failure = self.job.failure
        return self.job.agreement

    @override
    async def establish(self, agreement: Agreement, leakage: LeakageCount) -> Scoring:
        state = self.place.resume
        scoring = await establish_scoring(self.training, agreement)
        held = {n.removeprefix(HELD): a for n, a in self._kept.items() if n.startswith(HELD)}
        self.offline = await Offline.of(self.job, 0 if state is None else state.rounds, held)
        async with self.party.costs.compute(SETUP):
            for each in self.offline.matrices.values():
                each.prepare()
        self._start = self.local.model.weights[:, 0]
        self._shared_start = self.offline.whitening[1] @ self._start
        self.own = SharedWeights(self._shared_start, self.job.widths, self.offline.scales)
        if state is not None:
            self.own.weights, self.own.point = self._kept[OWN]
        return scoring

    @override
    def begin(self) -> None:
        into, out = self.offline.whitening
        self._kept = {OWN: self.own.shares, INTO: into, OUT: out}
        if self._seal is not None:
            self._seal.renew()

    @override
    async def round(self, index: int) -> Seen:
        """Take one round on shares; the last one reveals every owner's parameters."""
        each = self.job.schedule.rounds[index]
        await self._take(each, self.job.batches[index].labels)
        self._kept[OWN] = self.own.shares
        for name, held in self.offline.pads.held.items():
            self._kept[HELD + name] = held.path.pop(index)
        await self.offline.after(each)
        if index == self.plan.rounds - 1:
            await self._end()
        return Seen()

    async def _take(self, each: PlannedRound, labels: Labels | None) -> None:
        party, own, pads = self.party, self.own, self.offline.pads
        matrices = self.offline.matrices[each.group]
        record(party.channel, Share(party.name, "point", each.index, own.point))
        async with party.costs.compute("local"):
            self.offline.before(each)
            share = own.predictions(each, matrices, pads.own)
            for held in pads.held.values():
                share = share + held.predictions.pop(each.index)
            held_pads = {name: held.residuals.pop(each.index) for name, held in pads.held.items()}
        masked = await self._masked(each.index, ring.reduced(share), labels, held_pads)
        record(party.channel, Share(party.name, "residuals", each.index, masked))
        async with party.costs.compute("local"):
            own.move(each, matrices, pads.own, masked)

    async def _masked(
        self, index: int, share: RingArray, labels: Labels | None, pads: Mapping[str, RingArray]
    ) -> RingArray:
        """D − w of the link that this party owns, from its share of H, each of shape (S,)."""
        party, masks, phases = self.party, self.job.agreement.masks, self.job.phases
        if phases is None:
            computed = await gather_shares(party, masks, index, share)
        else:
            computed = await give_phases(party, masks, index, share, phases)
        if computed is not None:
            assert self.offline.residuals is not None  # noqa: S101
            computed = await self.offline.residuals.of(index, computed, labels)
        return await hand_back(
            party, masks, index, computed,
            pads=pads, shape=share.shape, meanwhile=self.offline.meanwhile,
        )  # fmt: skip

    async def _end(self) -> None:
        part, series = self.local, self.job.series
        moved = await self.reveal() - self._shared_start
        weights = self._start + self.offline.whitening[0] @ moved
        part.model.weights = weights[:, None]
        if series is not None:
            await require_range(self.party, part.inputs @ weights, series)

    async def reveal(self) -> FloatArray:
        """Reveal every link's θ to its owner; returns this party's own φ."""
        party, own = self.party, self.own
        for name in self.offline.pads.held:
            weights, _ = self._kept[HELD + name]
            await party.channel.send(name, top_of(weights, own.widths))
        holder = holders(party)[party.name]
        shape = own.weights.shape
        top = await receive_values(party.channel, holder, RevealedShare, None, shape)
        if np.any(top >> np.uint64(OPENED_BITS)):
            raise UnexpectedMessage(
                f"{holder} sent words of more than {OPENED_BITS} bits at the end"
            )
        async with party.costs.compute("local"):
            return own.opened(top)

    @override
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        return dict(self._kept) if self._seal is None else self._seal.seal(self._kept)

    @override
    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        found = dict(arrays) if self._seal is None else self._seal.open(arrays)
        columns = len(self.model.weights)
        shapes = {OWN: (2, columns), INTO: (columns, columns), OUT: (columns, columns)}
        held = {HELD + name for name in owners_held_by(self.party)}
        if found.keys() - held != shapes.keys() or any(
            found[name].shape != shape for name, shape in shapes.items()
        ):
            raise DataError("session state: not the shares that this party keeps")
        self._kept = {name: np.array(values) for name, values in found.items()}
