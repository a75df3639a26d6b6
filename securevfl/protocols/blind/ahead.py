"""A party's ends of its links: their keys, and what is made ahead over them."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from securevfl.arrays import RingArray
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.errors import PeerViolation
from securevfl.protocols.blind.links import holder_of, owners_held_by
from securevfl.protocols.blind.pads import (
    Corrections,
    EncryptedPads,
    EncryptedPoints,
    Groups,
    HolderKeys,
    HolderPads,
    Holding,
    MaskedShares,
    MaskedSteps,
    OwnerKeys,
    OwnerPads,
    Owning,
    first_of,
)
from securevfl.protocols.blind.schedule import LARGEST_SCALE, Matrices, Round, Scales, Schedule
from securevfl.protocols.blind.widths import Widths
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.keys import PublicKey, take_key
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import collect
from securevfl.runtime.costs import AHEAD, SETUP
from securevfl.runtime.views import Share, record
from securevfl.wire.codec import StepMessage

if TYPE_CHECKING:
    from securevfl.crypto.ring_products import RingProductEvaluator

A = TypeVar("A", bound=StepMessage)
B = TypeVar("B", bound=StepMessage)
FOR_STEPS, FOR_PREDICTIONS = "ring, steps", "ring, predictions"


@dataclass(frozen=True, eq=False)
class Formats:
    """What the products of one link are like."""

    for_steps: RingProductFormat
    for_predictions: RingProductFormat

    @classmethod
    def of(
        cls,
        plan: Plan,
        schedule: Schedule,
        widths: Widths,
        scales: Scales,
        *,
        blocks: Sequence[Sequence[Round]],
        columns: int,
        feature_bound: float,
    ) -> "Formats":
        """From what both ends know.

        Args:
            plan: of the job.
            schedule: its rounds.
            widths: of the job.
            scales: the owner's.
            blocks: rounds that are made together: each has a product of every group in it.
            columns: P of the owner.
            feature_bound: on its features.
        """
        groups = [group for block in blocks for group in schedule.members(block).values()]
        rows = max(each.rows for block in blocks for each in block)
        together, line = max(map(len, groups)), plan.line

        def of(inner: int, outputs: int, largest: int) -> RingProductFormat:
            return RingProductFormat(
                inner=inner,
                outputs=outputs,
                columns=together,
                matrix_bound=largest,
                products=len(groups),
                bandwidth_mbit=line.bandwidth_mbit,
            )

        return cls(
            of(columns + rows, columns, 1 << scales.entry_bits),
            of(columns, columns + rows, int(feature_bound * 2.0**widths.feature_bits)),
        )


@dataclass(frozen=True, eq=False)
class Pads:
    """What a party has made ahead of a block of rounds.

    Attributes:
        own: as the owner of its own link.
        held: as the holder of others', by owner.
    """

    own: OwnerPads
    held: Mapping[str, HolderPads]

    def add(self, more: "Pads") -> None:
        """Those of the next block."""
        self.own.add(more.own)
        for name, pads in self.held.items():
            pads.add(more.held[name])


class Links:
    """A party's ends of all its links; `establish` makes them."""

    def __init__(
        self,
        party: Party,
        schedule: Schedule,
        *,
        keys: OwnerKeys,
        matrices: Mapping[int, Matrices],
        holdings: Mapping[str, Holding],
    ) -> None:
        self._party, self._schedule, self._holder = party, schedule, holder_of(party)
        self._owning, self._holdings = Owning(self._holder, keys, matrices), holdings

    @classmethod
    async def establish(
        cls,
        party: Party,
        plan: Plan,
        agreement: Agreement,
        schedule: Schedule,
        *,
        blocks: Sequence[Sequence[Round]],
        widths: Widths,
        scales: Scales,
        matrices: Mapping[int, Matrices],
    ) -> "Links":
        """Tell holders what they have to know, make keys and exchange them.

        Raises:
            PeerViolation: a peer's word or key that does not fit.
            RangeExceeded: products that the ring has no room for.
        """
        holder, owners = holder_of(party), owners_held_by(party)
        await party.channel.send(holder, scales)
        told = await collect(party.channel, owners, Scales)
        holdings = {}
        for name in owners:
            if told[name].step_bits < widths.weight_bits or told[name].largest >= LARGEST_SCALE:
                raise PeerViolation(f"{name} says steps of {told[name].largest} bits")
            formats = Formats.of(
                plan, schedule, widths, told[name], blocks=blocks,
                columns=agreement.columns[name], feature_bound=agreement.feature_bound,
            )  # fmt: skip
            async with party.costs.compute(SETUP):
                made = _fresh_keys(formats)
            for what, key in (
                (FOR_STEPS, made.for_steps),
                (FOR_PREDICTIONS, made.for_predictions),
            ):
                await party.channel.send(name, PublicKey(what, key.public_bytes))
            holdings[name] = Holding(agreement.columns[name], made, widths, told[name])
        formats = Formats.of(
            plan, schedule, widths, scales, blocks=blocks,
            columns=agreement.own_columns, feature_bound=agreement.feature_bound,
        )  # fmt: skip
        keys = OwnerKeys(
            await take_ring_key(party, holder, FOR_STEPS, formats.for_steps),
            await take_ring_key(party, holder, FOR_PREDICTIONS, formats.for_predictions),
        )
        return cls(party, schedule, keys=keys, matrices=matrices, holdings=holdings)

    def go_on(self, shares: Mapping[str, RingArray]) -> None:
        """Start with the shares of an earlier run, by owner, as `Holding.go_on` takes them."""
        for name, holding in self._holdings.items():
            holding.go_on(shares[name])

    def pieces(self, rounds: Sequence[Round]) -> int:
        """How many times `making` stops; the same at all parties."""
        return 6 * len(self._schedule.members(rounds))

    async def making(self, rounds: Sequence[Round], own: OwnerPads) -> AsyncIterator[None]:
        """Make it piece by piece: what one waits for, another has sent a piece before.

        Group by group, so that one is on the line while the next is worked on.

        Raises:
            PeerError: a peer broke the protocol or is gone.
        """
        groups = [{g: each} for g, each in self._schedule.members(rounds).items()]
        owning = self._owning
        async for _ in self._there_and_back(
            groups,
            (EncryptedPads, MaskedSteps),
            ask=Holding.pads,
            answer=lambda asked, group: owning.steps(asked, group, own),
            take=Holding.take_steps,
        ):
            yield
        for holding in self._holdings.values():
            holding.draw_points(rounds)
        async for _ in self._there_and_back(
            groups,
            (EncryptedPoints, MaskedShares),
            ask=Holding.points,
            answer=lambda asked, group: owning.shares(asked, group, own),
            take=Holding.take_shares,
        ):
            yield

    async def _there_and_back(
        self,
        groups: Sequence[Groups],
        kinds: tuple[type[A], type[B]],
        *,
        ask: Callable[[Holding, Groups], A],
        answer: Callable[[A, Groups], B],
        take: Callable[[Holding, str, B, Groups], None],
    ) -> AsyncIterator[None]:
        """Of every link, the holder's ciphertexts there and the owner's products back."""
        party, holder, owners = self._party, self._holder, list(self._holdings)
        for group in groups:
            for name, holding in self._holdings.items():
                async with party.costs.compute(AHEAD):
                    message = ask(holding, group)
                await party.channel.send(name, message)
            yield
        for group in groups:
            _, asked = await party.channel.receive([holder], kinds[0], first_of(group))
            async with party.costs.compute(AHEAD):
                reply = answer(asked, group)
            await party.channel.send(holder, reply)
            yield
        for group in groups:
            answers = await collect(party.channel, owners, kinds[1], first_of(group))
            for name, found in answers.items():
                async with party.costs.compute(AHEAD):
                    take(self._holdings[name], name, found, group)
            yield

    async def end(self, own: OwnerPads, rounds: Sequence[Round]) -> Pads:
        """Say, and hear, what ends a block.

        Raises:
            PeerError: a peer broke the protocol or is gone.
        """
        party, holder = self._party, self._holder
        saw, held = partial(record, party.channel), {}
        for what, masks in own.masks.items():
            for index, mask in masks.items():
                saw(Share(party.name, what, index, mask))
        for name, holding in self._holdings.items():
            async with party.costs.compute(AHEAD):
                held[name], said = holding.ends(name, rounds, saw)
            await party.channel.send(name, said)
        _, corrections = await party.channel.receive([holder], Corrections, rounds[0].index)
        async with party.costs.compute(AHEAD):
            own.take(holder, corrections)
        for index, pull in own.pulls.items():
            saw(Share(party.name, "pull pads", index, pull))
        return Pads(own, held)


def _fresh_keys(formats: Formats) -> HolderKeys:
    from securevfl.crypto.ring_products import RingProductOwner  # noqa: PLC0415

    return HolderKeys(
        RingProductOwner(formats.for_steps), RingProductOwner(formats.for_predictions)
    )


async def take_ring_key(
    party: Party, owner: str, what: str, fmt: RingProductFormat
) -> "RingProductEvaluator":
    """This party's end of another's key.

    Raises:
        PeerViolation: a key for something else, or none.
        KeyMismatch: a key of another format.
    """
    from securevfl.crypto.ring_products import RingProductEvaluator  # noqa: PLC0415

    return await take_key(party, owner, what, partial(RingProductEvaluator, product_format=fmt))
