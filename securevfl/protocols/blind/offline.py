"""The offline phase of a blind job: the pads that its rounds use up.

Pads of links and residuals are made now, or come from an earlier run that stored them. They are
made all at once, or one block of rounds at a time, while a party waits in the rounds before. Stored
pads include the matrices that they were multiplied with and their basis: another run could compute
these differently in the last bit, and its pads would not fit.

Learns: see `links` and `residuals`, also for sources.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import astuple, fields

import numpy as np

from securevfl.arrays import RingArray
from securevfl.errors import DataError
from securevfl.models.losses import QuadraticLoss
from securevfl.protocols.blind.links import Arrays, HolderPads, LinkPads, OwnerPads, PartyLinks
from securevfl.protocols.blind.residuals import AffineResiduals, LogisticResiduals
from securevfl.protocols.blind.schedule import (
    BlindJob,
    Matrices,
    PlannedRound,
    Scales,
    Whitening,
    computing_parties,
    owners_held_by,
)
from securevfl.protocols.guards.failed_checks import require_trust
from securevfl.protocols.session.pad_store import PadsHeader, agree_on_pads
from securevfl.protocols.vertical.runner import MadeOffline, Training

OWN, HELD, STEPS, FEATURES, SCALES, INTO, OUT = (
    *("own", "held", "steps", "features", "scales"),
    *("into", "out"),
)
# Bytes of a word of the ring, and of a tensor's name, type and shape in a file.
WORD, NAME_BYTES = 8, 90


class Offline:
    """One party's offline material.

    Args:
        links: make later blocks; None if all pads are made.
        blocks: all later rounds, in blocks that are made together.
        stored: stored pads, a record for each round.

    Attributes:
        residuals: its side of residuals, at the two parties that compute them.
        matrices: that pads are made with, by group of rounds, at these scales and whitening.
    """

    def __init__(
        self,
        pads: LinkPads,
        residuals: AffineResiduals | None,
        matrices: Mapping[int, Matrices],
        scales: Scales,
        whitening: Whitening,
        *,
        links: PartyLinks | None = None,
        blocks: Sequence[Sequence[PlannedRound]] = (),
        stored: Iterator[Arrays] | None = None,
    ) -> None:
        self.pads, self.residuals = pads, residuals
        self.matrices, self.scales, self.whitening = matrices, scales, whitening
        self._links, self._blocks, self._stored = links, list(blocks), stored
        self._making: AsyncIterator[None] | None = None
        self._pieces = 0

    @classmethod
    async def of(cls, job: BlindJob, first: int, held: Mapping[str, RingArray]) -> "Offline":
        """The material of all rounds from `first` on.

        Stored pads are used and deleted if all parties have them. A resumed job deletes them and
        makes new ones; `held` then has, by owner, the shares of θ and ζ that this party holds.

        Raises:
            PeerError: a peer broke the protocol, or holds other pads than this party.
            DataError: stored pads are for another job, party or data.
            RangeExceeded: the ring has no room for the products.
        """
        training = job.training
        party, plan, store = training.party, training.plan, training.workplace.pads
        if store is not None and training.workplace.resume is not None:
            store.discard()
        of, header = (plan.hash.hex(), plan.facts.names, foundation(job)), None
        if store is not None and store.there:
            # A party that cannot use its pads refuses before the others use theirs.
            header = store.usable(*of)
        batch = await agree_on_pads(party, None if header is None else header.batch)
        if store is None or header is None:
            return await cls.made(job, first, held)
        stored = store.take(batch, *of)
        party.costs.bring(stored.costs)
        return await cls._of_records(job, stored.records)

    @classmethod
    async def made(cls, job: BlindJob, first: int, held: Mapping[str, RingArray]) -> "Offline":
        """Make the first block and begin the next."""
        blocks = job.schedule.blocks(first, job.training.plan.job.exchange.offline_rounds)
        links = await PartyLinks.establish(job, blocks)
        if first:
            _require_held(job, held)
            links.go_on(held)
        residuals = await _residuals(job, blocks)
        basis = job.matrices, job.scales, job.whitening
        made = cls(links.pads, residuals, *basis, links=links, blocks=blocks)
        await made._make_block(links)
        return made

    async def meanwhile(self) -> None:
        """While this party waits in a round, make that round's share of the next block.

        All parties make the same number of pieces per round, so that none waits for a piece that
        another makes in a later round.
        """
        if self._making is not None:
            for _ in range(self._pieces):
                await anext(self._making, None)

    async def after(self, each: PlannedRound) -> None:
        """After a round that used up a block, finish the next one."""
        if self._links and len(self._blocks) > 1 and each.index == self._blocks[0][-1].index:
            del self._blocks[0]
            await self._make_block(self._links)

    async def _make_block(self, links: PartyLinks) -> None:
        block, done, made = self._blocks[0], 0, links.party.costs.stopwatch.made
        async for _ in self._making or links.making(block):
            made(done, links.pieces(block))
            done += 1
        made(1, 1)
        await links.end(block)
        if self.residuals is not None:
            await self.residuals.make_offline(sum(each.rows for each in block))
        self._making = None
        if len(self._blocks) > 1:
            self._making = links.making(self._blocks[1])
            self._pieces = -(-links.pieces(self._blocks[1]) // len(block))

    def basis(self) -> Arrays:
        """What pads were made with, by name."""
        return {
            **{f"{STEPS}/{group}": each.steps for group, each in self.matrices.items()},
            **{f"{FEATURES}/{group}": each.features for group, each in self.matrices.items()},
            SCALES: np.array([self.scales.step_bits, self.scales.entry_bits], np.int64),
            INTO: self.whitening[0],
            OUT: self.whitening[1],
        }

    def pop(self, each: PlannedRound) -> Arrays:
        """Remove and return a round's pads, by name."""
        found = self.pads.own.pop(OWN, each.index)
        for owner, pads in self.pads.held.items():
            found |= pads.pop(f"{HELD}/{owner}", each.index)
        return found if self.residuals is None else {**found, **self.residuals.pop(each.rows)}

    def before(self, each: PlannedRound) -> None:
        """Before a round, read its pads if they are stored; a DataError if any is missing."""
        if self._stored is None:
            return
        arrays = next(self._stored, {})
        try:
            self.pads.own.put(OWN, each.index, arrays)
            for owner, pads in self.pads.held.items():
                pads.put(f"{HELD}/{owner}", each.index, arrays)
            if self.residuals is not None:
                self.residuals.put(arrays)
        except KeyError as error:
            raise DataError(f"pads made offline lack {error} of round {each.index}") from error

    @classmethod
    async def _of_records(cls, job: BlindJob, records: Iterator[Arrays]) -> "Offline":
        arrays = next(records, {})
        try:
            matrices = {
                group: Matrices(arrays[f"{STEPS}/{group}"], arrays[f"{FEATURES}/{group}"])
                for group in job.matrices
            }
            scales, whitening = Scales(*map(int, arrays[SCALES])), (arrays[INTO], arrays[OUT])
        except KeyError as error:
            raise DataError(f"pads made offline lack {error}") from error
        held = {name: HolderPads() for name in owners_held_by(job.training.party)}
        return cls(
            LinkPads(OwnerPads(), held),
            await _residuals(job, None),
            matrices,
            scales,
            whitening,
            stored=records,
        )


async def make_offline(training: Training) -> MadeOffline:
    """One party's part of the offline phase of a whole job, stored on disk.

    Raises:
        ConfigError: a peer failed a check before.
        RangeExceeded: fixed point has no room for the job.
        DataError: pads cannot be written.
    """
    party, plan, store = training.party, training.plan, training.workplace.pads
    assert store is not None  # noqa: S101
    require_trust(training.workplace.guard_directory, party.others)
    job = await BlindJob.of(training)
    store.require_room(expected_bytes(job))
    batch = await agree_on_pads(party, None)
    header = PadsHeader(
        batch=batch,
        job_hash=plan.hash.hex(),
        party=party.name,
        parties=plan.facts.names,
        first_round=0,
        rounds=plan.rounds,
    )
    with store.keep(header, foundation(job), party.costs.made_offline) as add:
        made = await Offline.made(job, 0, {})
        add(made.basis())
        for each in job.schedule.rounds:
            add(made.pop(each))
            await made.after(each)
        party.costs.end_round()
    return MadeOffline(store.path, store.path.stat().st_size, plan.rounds)


def foundation(job: BlindJob) -> str:
    """SHA-256 in hexadecimal of what pads depend on: rounds, fixed point, rows and data."""
    training, schedule = job.training, job.schedule
    what = [astuple(each) for each in schedule.rounds], job.widths, job.series
    digest = hashlib.sha256(repr((what, training.workplace.data.fingerprint)).encode())
    digest.update(training.plan.facts.row_digests.astype("<u8").tobytes())
    return digest.hexdigest()


def expected_bytes(job: BlindJob) -> int:
    """The approximate size of a party's pads."""
    party, columns, phases = job.training.party, job.agreement.columns, job.phases
    held = [columns[name] for name in owners_held_by(party)]
    rows, rounds = sum(each.rows for each in job.schedule.rounds), len(job.schedule.rounds)
    computes = phases is not None and party.name in computing_parties(party)
    tables = 2 + WORD * 2 * phases.terms if phases is not None and computes else 0
    of_rows = rows * (WORD * (1 + 2 * len(held)) + tables)
    of_rounds = rounds * WORD * (3 * job.agreement.own_columns + 2 * sum(held))
    names = rounds * NAME_BYTES * (len(fields(OwnerPads)) + len(held) * len(fields(HolderPads)))
    matrices = [m for each in job.matrices.values() for m in (each.steps, each.features)]
    return of_rows + of_rounds + names + sum(m.nbytes for m in (*matrices, *job.whitening))


async def _residuals(
    job: BlindJob, blocks: Sequence[Sequence[PlannedRound]] | None
) -> AffineResiduals | None:
    """This party's side of residuals, for stored pads or with a key to make those of blocks."""
    party, plan, phases = job.training.party, job.training.plan, job.phases
    two = computing_parties(party)
    if party.name not in two:
        return None
    if phases is None:
        assert isinstance(plan.loss, QuadraticLoss)  # noqa: S101
        return AffineResiduals(plan.loss, job.widths.shared_residual_bits)
    (peer,) = {*two} - {party.name}
    first = party.holds_labels
    if blocks is None:
        return LogisticResiduals(party, peer, phases, first=first)
    visits = [sum(each.rows for each in rounds) for rounds in blocks]
    return await LogisticResiduals.establish(
        *(party, peer, phases, visits),
        first=first,
        seed=job.agreement.seed,
        keys=job.training.workplace.keys,
    )


def _require_held(job: BlindJob, held: Mapping[str, RingArray]) -> None:
    columns = job.agreement.columns
    due = {name: (2, columns[name]) for name in owners_held_by(job.training.party)}
    if {name: shares.shape for name, shares in held.items()} != due:
        raise DataError("session state: not the shares that this party keeps")
