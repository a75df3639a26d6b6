"""The offline phase of a link: two parties make pads, and the shares that follow from them.

The owner k of a link learns θ_k at the end; the holder o has the other share. The exchanged point
is ζ_r = ζ⟨k⟩_r + τ_r. The rows of a round are those of the batch and, for L2, those of E
(`schedule`), each with its pad. Per block of rounds:

1. o → k: Enc_o(u_r) with u_r = trunc(w_r), for uniform pads w_r that o draws.
2. k → o: Enc_o(−N u_r − s_r) with uniform s_r that only k knows. o decrypts y_r.
3. o → k, under another key: Enc_o(τ_r) for uniform shares τ_r that o draws now; τ_0 = 0, as k knows
   its starting point.
4. k → o: Enc_o(Xτ_r − v_r) with uniform v_r that only k knows. o decrypts h_r.
5. o's share of θ_{r+1} is τ_r + trunc(y_r), which does not depend on the round; extrapolated it is
   σ_{r+1}. o → k: e_r = σ_{r+1} − τ_{r+1}, which k adds to its own share, and h_r − w_r for the
   rows of E, whose residuals depend on ζ only. Rounds of a group are columns of one product.
   Before it does, it checks all replies of the block (`checks`).

Learns:
    owner: nothing: it sees ciphertexts under the holder's keys, and words under the pads τ_{r+1}
        and w_r. Without checks a malicious owner could make these reveal what was decrypted, by
        replies of another kind (see the source).
    holder: nothing, whatever it encrypts: it decrypts words under the pads s_r and v_r, in replies
        whose masks cover their whole modulus.
Source: docs/decisions/0032-blind.md.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.crypto import ring
from securevfl.crypto.equality import EqualityTest
from securevfl.crypto.ring_layout import RingProductFormat
from securevfl.errors import PeerViolation
from securevfl.lazy import Lazy
from securevfl.protocols.blind.checks import (
    Combinations,
    ConfirmedCheck,
    OpenedCheck,
    ProvenReplies,
)
from securevfl.protocols.blind.fixed_point import EXTRAPOLATION_BITS, Widths
from securevfl.protocols.blind.schedule import (
    LARGEST_SCALE,
    BlindJob,
    PlannedRound,
    Scales,
    by_group,
    holders,
    owners_held_by,
)
from securevfl.protocols.exchanges.homomorphic import checked, expect_count
from securevfl.protocols.guards.failed_checks import on_record
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.keys import KeyMaker, PublicKey, take_key
from securevfl.runtime.channel import collect, expect_shape
from securevfl.runtime.costs import CORRELATED_RANDOMNESS, SETUP
from securevfl.runtime.views import Share, record
from securevfl.wire.codec import Blobs, StepMessage, message_kind

if TYPE_CHECKING:
    from securevfl.crypto import ring_products
else:  # SEAL takes a second to load, and descriptions need none
    ring_products = Lazy("securevfl.crypto.ring_products")

D = TypeVar("D", np.int64, np.uint64)
T_co = TypeVar("T_co", covariant=True)
Group = Sequence[PlannedRound]
ByRound = dict[int, RingArray]
Arrays = Mapping[str, NDArray[Any]]
# Names of the words of a round in a holder's view.
PADS, PULL_PADS, POINTS, STEPS, PULLS, PREDICTIONS = (
    *("residuals", "pull pads", "point"),
    *("steps", "pulls", "predictions"),
)


@message_kind(60, stage="offline", carries="ciphertexts", shows="pads")
class EncryptedPads(StepMessage):
    """Enc(u_r) of the rounds of a group, of which `step` is the first."""

    groups: Blobs


@message_kind(61, stage="offline", carries="ciphertexts", shows="pads")
class MaskedSteps(StepMessage):
    """Their products with −N, masked."""

    groups: Blobs


@message_kind(75, stage="offline", carries="ciphertexts", shows="pads")
class EncryptedPoints(StepMessage):
    """Enc(τ_r) in the same way, under the holder's other key."""

    groups: Blobs


@message_kind(74, stage="offline", carries="ciphertexts", shows="pads")
class MaskedShares(StepMessage):
    """Their products with X, masked."""

    groups: Blobs


@message_kind(62, stage="offline", carries="masked", shows="pads")
class Corrections(StepMessage):
    """e_r of every round of a block, and h_r − w_r of the rows of E, each of shape (R, P)."""

    points: RingArray
    pulls: RingArray


Request: TypeAlias = EncryptedPads | EncryptedPoints
Answer: TypeAlias = MaskedSteps | MaskedShares


@dataclass(eq=False)
class _Words:
    """Offline words by field and round; using one removes it."""

    def pop(self, start: str, index: int) -> dict[str, RingArray]:
        """Remove and return a round's words, by name."""
        return {
            f"{start}/{each.name}": getattr(self, each.name).pop(index) for each in fields(self)
        }

    def put(self, start: str, index: int, arrays: Arrays) -> None:
        """Add a round's words from `arrays`; a KeyError if any is missing."""
        for each in fields(self):
            getattr(self, each.name)[index] = arrays[f"{start}/{each.name}"]


@dataclass(eq=False)
class HolderPads(_Words):
    """A holder's words.

    Attributes:
        residuals: w_r, shape (S,).
        predictions: h_r, shape (S,).
        path: its shares of θ and of ζ after each round, shape (2, P).
    """

    residuals: ByRound = field(default_factory=dict)
    predictions: ByRound = field(default_factory=dict)
    path: ByRound = field(default_factory=dict)


@dataclass(eq=False)
class OwnerPads(_Words):
    """An owner's words.

    Attributes:
        predictions: −v_r of the batch's rows, shape (S,), added to its share of H.
        pulls: likewise for the rows of E, with the holder's part, shape (P,).
        steps: s_r, shape (P,), added to its share of the step.
        corrections: e_r, shape (P,).
    """

    predictions: ByRound = field(default_factory=dict)
    pulls: ByRound = field(default_factory=dict)
    steps: ByRound = field(default_factory=dict)
    corrections: ByRound = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LinkPads:
    """A party's offline words: as the owner of its link, and as the holder of others'."""

    own: OwnerPads
    held: Mapping[str, HolderPads]


def extrapolated(new: RingArray, before: RingArray, beta: float, *, first: bool) -> RingArray:
    """A party's share of θ⁺ + α(θ⁺ − θ), from its shares of both points."""
    factor = ring.of_integers(np.rint(np.ldexp([beta], EXTRAPOLATION_BITS)).astype(np.int64))
    moved = ring.truncated((new - before) * factor, EXTRAPOLATION_BITS, first=first)
    return ring.reduced(new + moved)


class OfProducts(NamedTuple, Generic[T_co]):
    """A pair for the two shapes of product of a link: formats, keys or ends of keys."""

    steps: T_co
    predictions: T_co


_KEYS = OfProducts("ring, steps", "ring, predictions")


class Holding:
    """A holder's end of a link to an owner of P columns, block after block.

    Attributes:
        made: the words of all blocks made so far.
        weights: its share of θ after the last of these rounds.
        point: its share of ζ after it.
        words: the words of the current block, by name and round.
        combinations: by which its replies are checked.
    """

    def __init__(
        self,
        columns: int,
        keys: "OfProducts[ring_products.RingProductOwner]",
        widths: Widths,
        scales: Scales,
        checks: int,
    ) -> None:
        self._keys, self._widths, self._scales, self._checks = keys, widths, scales, checks
        self.made = HolderPads()
        # The owner knows θ at the start.
        self.weights = self.point = np.zeros(columns, np.uint64)
        self._begin_block()

    def _begin_block(self) -> None:
        kinds = (PADS, PULL_PADS, POINTS, STEPS, PULLS, PREDICTIONS)
        self.words: dict[str, ByRound] = {kind: {} for kind in kinds}
        self.combinations = Combinations(self._checks)

    def go_on(self, shares: RingArray) -> None:
        """Start the next block from an earlier run's shares of θ and ζ, shape (2, P)."""
        self.weights, self.point = shares

    def request(self, kind: type[Request], group: Group) -> Request:
        """A group's pads or points, encrypted."""
        return self.pads(group) if kind is EncryptedPads else self.points(group)

    def pads(self, group: Group) -> EncryptedPads:
        """Draw the pads of a group's rounds, and encrypt their truncations."""
        columns = []
        for each in group:
            pad = self.words[PADS][each.index] = ring.uniform(each.rows)
            pull = self.words[PULL_PADS][each.index] = ring.uniform(len(self.point))
            columns.append(self._widths.truncated(pull, pad, first=True))
        return EncryptedPads(group[0].index, self._encrypted(self._keys.steps, columns))

    def draw_points(self, rounds: Sequence[PlannedRound]) -> None:
        """Draw shares of the points of a block, once all its steps have been answered."""
        for each in rounds:
            self.words[POINTS][each.index] = self.point
            self.point = ring.uniform(len(self.point))

    def points(self, group: Group) -> EncryptedPoints:
        """Encrypt the points of a group's rounds."""
        columns = [self.words[POINTS][each.index] for each in group]
        return EncryptedPoints(group[0].index, self._encrypted(self._keys.predictions, columns))

    def _encrypted(
        self, key: "ring_products.RingProductOwner", columns: Sequence[RingArray]
    ) -> Blobs:
        """A group's columns and their combinations, in the format's shape, with zeros beyond."""
        fmt = key.product_format
        both = self.combinations.extended(np.stack(columns, axis=1))
        return (key.encrypt(_filled(both, (fmt.inner, fmt.columns))),)

    def take(self, owner: str, message: Answer, group: Group) -> None:
        """Decrypt the products of a group's pads or points: y or h."""
        of_steps, columns = isinstance(message, MaskedSteps), len(self.point)
        key = self._keys.steps if of_steps else self._keys.predictions
        found = checked(owner, key.decrypt, only(owner, message.groups))
        self.combinations.take(found)
        for column, each in enumerate(group):
            self.words[STEPS if of_steps else PULLS][each.index] = found[:columns, column]
            if not of_steps:
                seen = found[columns : columns + each.rows, column]
                self.words[PREDICTIONS][each.index] = seen

    def end(
        self, owner: str, rounds: Sequence[PlannedRound], saw: Callable[[Share], None]
    ) -> Corrections:
        """End a block; returns the message for its owner. `saw` records this party's shares."""
        words = self.words
        for what, shares in words.items():
            for each in rounds:
                saw(Share(owner, what, each.index, shares[each.index]))
        points = np.stack([self._correction(each) for each in rounds])
        pulls = np.stack([words[PULLS][r.index] - words[PULL_PADS][r.index] for r in rounds])
        self.made.residuals |= words[PADS]
        self.made.predictions |= words[PREDICTIONS]
        self._begin_block()
        return Corrections(rounds[0].index, points, ring.reduced(pulls))

    def _correction(self, each: PlannedRound) -> RingArray:
        """The correction e after a round; call in order, as it moves the share of θ."""
        dropped = self._scales.step_bits - self._widths.weight_bits
        moved = ring.truncated(self.words[STEPS][each.index], dropped, first=True)
        new = ring.reduced(self.words[POINTS][each.index] + moved)
        target = extrapolated(new, self.weights, each.beta, first=True)
        upcoming = self.words[POINTS].get(each.index + 1, self.point)
        self.weights, self.made.path[each.index] = new, np.stack([new, upcoming])
        return ring.reduced(target - upcoming)


class PartyLinks:
    """A party's ends of all its links: its holder's keys, and a `Holding` per owner."""

    def __init__(
        self,
        job: BlindJob,
        keys: "OfProducts[ring_products.RingProductEvaluator]",
        holdings: Mapping[str, Holding],
    ) -> None:
        self.party, self._matrices = job.training.party, job.matrices
        self._plan, self._place = job.training.plan, job.training.workplace
        self._holder = holders(self.party)[self.party.name]
        self._keys, self._holdings = keys, holdings
        self._masks: list[tuple[RingArray, int]] = []
        held = {name: holding.made for name, holding in holdings.items()}
        self.pads = LinkPads(OwnerPads(), held)

    @classmethod
    async def establish(cls, job: BlindJob, blocks: Sequence[Group]) -> "PartyLinks":
        """Send scales to the holder, and make and exchange keys.

        Rounds of a block are made together, with one product per group.

        Raises:
            PeerViolation: a peer's scales or key do not fit.
            RangeExceeded: the ring has no room for the products.
        """
        party, widths, columns = job.training.party, job.widths, job.agreement.columns
        seed, maker = job.agreement.seed, job.training.workplace.keys
        holder, owners = holders(party)[party.name], owners_held_by(party)
        await party.channel.send(holder, job.scales)
        received = await collect(party.channel, owners, Scales)
        holdings = {}
        for name in owners:
            scales = received[name]
            if scales.step_bits < widths.weight_bits or scales.largest >= LARGEST_SCALE:
                raise PeerViolation(f"{name} announces steps of {scales.largest} bits")
            formats = _formats(job, blocks, columns[name], scales)
            async with party.costs.compute(SETUP):
                keys = OfProducts(*(maker.ring_owner(fmt, seed) for fmt in formats))
            for what, key in zip(_KEYS, keys, strict=True):
                await party.channel.send(name, PublicKey(what, key.public_bytes))
            checks = job.training.plan.checks
            holdings[name] = Holding(columns[name], keys, widths, scales, checks)
        formats = _formats(job, blocks, job.agreement.own_columns, job.scales)
        ends = [
            await take_ring_key(party, holder, what, fmt, seed, keys=maker)
            for what, fmt in zip(_KEYS, formats, strict=True)
        ]
        return cls(job, OfProducts(*ends), holdings)

    def go_on(self, shares: Mapping[str, RingArray]) -> None:
        """Start from an earlier run's shares, by owner, see `Holding.go_on`."""
        for name, holding in self._holdings.items():
            holding.go_on(shares[name])

    def pieces(self, rounds: Sequence[PlannedRound]) -> int:
        """The number of pieces of `making`, the same at all parties."""
        return 6 * len(by_group(rounds))

    async def making(self, rounds: Sequence[PlannedRound]) -> AsyncIterator[None]:
        """Make a block in pieces; a piece only waits for messages of the piece before.

        Group by group, so that one travels while the next is computed.
        """
        groups = by_group(rounds)
        async for _ in self._there_and_back(groups, (EncryptedPads, MaskedSteps)):
            yield
        for holding in self._holdings.values():
            holding.draw_points(rounds)
        async for _ in self._there_and_back(groups, (EncryptedPoints, MaskedShares)):
            yield

    async def _there_and_back(
        self, groups: Sequence[Group], kinds: tuple[type[Request], type[Answer]]
    ) -> AsyncIterator[None]:
        """On every link, send the holder's ciphertexts and return the owner's products."""
        party, holder, owners = self.party, self._holder, list(self._holdings)
        for group in groups:
            for name, holding in self._holdings.items():
                async with party.costs.compute(CORRELATED_RANDOMNESS):
                    message = holding.request(kinds[0], group)
                await party.channel.send(name, message)
            yield
        for group in groups:
            _, request = await party.channel.receive([holder], kinds[0], group[0].index)
            async with party.costs.compute(CORRELATED_RANDOMNESS):
                answer = self._answer(request, group)
            await party.channel.send(holder, answer)
            yield
        for group in groups:
            answers = await collect(party.channel, owners, kinds[1], group[0].index)
            for name, found in answers.items():
                async with party.costs.compute(CORRELATED_RANDOMNESS):
                    self._holdings[name].take(name, found, group)
            yield

    def _answer(self, request: Request, group: Group) -> Answer:
        """Multiply pads by −N, or points by X, and store the masks for this party's own share."""
        matrices, own = self._matrices[group[0].group], self.pads.own
        of_steps = isinstance(request, EncryptedPads)
        key = self._keys.steps if of_steps else self._keys.predictions
        matrix, columns = matrices.steps if of_steps else matrices.features, len(matrices.steps)
        fmt, encrypted = key.product_format, only(self._holder, request.groups)
        filled = _filled(matrix, (fmt.outputs, fmt.inner))
        reply, masks = checked(self._holder, key.product, encrypted, filled)
        if self._plan.checks:
            self._masks.append((masks, len(group)))
        for column, each in enumerate(group):
            mask = ring.reduced(-masks[:, column])
            (own.steps if of_steps else own.pulls)[each.index] = mask[:columns]
            if not of_steps:
                own.predictions[each.index] = mask[columns : columns + each.rows]
        return (MaskedSteps if of_steps else MaskedShares)(request.step, (reply,))

    async def _check(self, step: int) -> None:
        """Check a block's replies on every link, see `checks`.

        Raises:
            CheckFailed: a peer's replies, or its combinations, are not what they should be. The
                peer is recorded, as is one that leaves.
        """
        party, holder, plan = self.party, self._holder, self._plan
        peers = {*self._holdings, holder}
        tests: dict[str, EqualityTest] = {}

        def context(owner: str, holder: str) -> bytes:
            return repr((plan.hash.hex(), owner, holder, step)).encode()

        with on_record(self._place.guard_directory, plan, peers) as failed:
            for name, holding in self._holdings.items():
                async with party.costs.compute(CORRELATED_RANDOMNESS):
                    tests[name] = holding.combinations.test(context(name, party.name))
                seed = holding.combinations.seed
                await party.channel.send(name, OpenedCheck(step, seed, tests[name].point))
            _, opened = await party.channel.receive([holder], OpenedCheck, step)
            async with party.costs.compute(CORRELATED_RANDOMNESS):
                own = checked(holder, Combinations, plan.checks, opened.seed)
                for masks, rounds in self._masks:
                    own.take_mask(masks, rounds)
                test = own.test(context(party.name, holder))
                proof = ProvenReplies(step, test.point, checked(holder, test.tag, opened.point))
            self._masks.clear()
            await party.channel.send(holder, proof)
            waited_for = set(tests)
            while waited_for:  # one that leaves must not keep the others from their confirmation
                name, proof = await party.channel.receive(waited_for, ProvenReplies, step)
                waited_for.remove(name)
                async with party.costs.compute(CORRELATED_RANDOMNESS):
                    if not checked(name, tests[name].accepts, proof.point, proof.tag):
                        failed.append(name)
                        continue
                    tag = tests[name].confirmation(proof.point)
                await party.channel.send(name, ConfirmedCheck(step, tag))
            if not failed:
                _, end = await party.channel.receive([holder], ConfirmedCheck, step)
                async with party.costs.compute(CORRELATED_RANDOMNESS):
                    if not test.confirmed(opened.point, end.tag):
                        failed.append(holder)

    async def end(self, rounds: Sequence[PlannedRound]) -> None:
        """Check the replies of a block, and exchange the corrections that end it."""
        party, holder, own = self.party, self._holder, self.pads.own
        if self._plan.checks:
            await self._check(rounds[0].index)
        saw, first = partial(record, party.channel), rounds[0].index
        masks = {STEPS: own.steps, PREDICTIONS: own.predictions, PULLS: own.pulls}
        for what, by_round in masks.items():
            for each in rounds:
                saw(Share(party.name, what, each.index, by_round[each.index]))
        for name, holding in self._holdings.items():
            async with party.costs.compute(CORRELATED_RANDOMNESS):
                corrections = holding.end(name, rounds, saw)
            await party.channel.send(name, corrections)
        _, message = await party.channel.receive([holder], Corrections, first)
        async with party.costs.compute(CORRELATED_RANDOMNESS):
            shape = len(rounds), own.steps[first].size
            expect_shape(holder, message.points, shape)
            expect_shape(holder, message.pulls, shape)
            for each, point, pull in zip(rounds, message.points, message.pulls, strict=True):
                own.corrections[each.index] = point
                own.pulls[each.index] = ring.reduced(own.pulls[each.index] + pull)
        for each in rounds:
            saw(Share(party.name, PULL_PADS, each.index, own.pulls[each.index]))


def _formats(
    job: BlindJob, blocks: Sequence[Group], columns: int, scales: Scales
) -> OfProducts[RingProductFormat]:
    """Formats of the products of a link whose owner has P columns, known at both ends."""
    groups = [group for block in blocks for group in by_group(block)]
    rows = max(each.rows for block in blocks for each in block)
    features = int(job.agreement.feature_bound * 2.0**job.widths.feature_bits)

    def of(inner: int, outputs: int, largest: int) -> RingProductFormat:
        return RingProductFormat(
            inner=inner,
            outputs=outputs,
            columns=max(map(len, groups)) + job.training.plan.checks,
            matrix_bound=largest,
            products=len(groups),
            bandwidth_mbit=job.training.plan.line.bandwidth_mbit,
        )

    return OfProducts(
        of(columns + rows, columns, 1 << scales.entry_bits), of(columns, columns + rows, features)
    )


async def take_ring_key(
    party: Party, owner: str, what: str, fmt: RingProductFormat, seed: bytes, *, keys: KeyMaker
) -> "ring_products.RingProductEvaluator":
    """This party's end of another party's key, of the joint seed."""
    make = partial(keys.ring_evaluator, product_format=fmt)
    return await take_key(party, owner, what, make, seed)


def _filled(values: NDArray[D], shape: tuple[int, int]) -> NDArray[D]:
    if values.shape == shape:
        return np.ascontiguousarray(values)
    filled = np.zeros(shape, values.dtype)
    filled[: values.shape[0], : values.shape[1]] = values
    return filled


def only(sender: str, blobs: Blobs, what: str = "products") -> bytes:
    """The one ciphertext of a message."""
    expect_count(sender, blobs, 1, what)
    return blobs[0]
