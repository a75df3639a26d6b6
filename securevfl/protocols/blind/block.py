"""What the rounds of a job are, and what they need from before: made now, or in an earlier run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securevfl.arrays import FloatArray, RingArray
from securevfl.errors import ConfigError
from securevfl.protocols.blind.ahead import Links, Pads
from securevfl.protocols.blind.at_rest import arrays_of, foundation, pads_from
from securevfl.protocols.blind.links import links_of
from securevfl.protocols.blind.schedule import Matrices, Scales, Schedule, column_units
from securevfl.protocols.blind.widths import Widths
from securevfl.protocols.exchange import Batch
from securevfl.protocols.session import pad_store
from securevfl.protocols.session.agreement import Agreement, agree
from securevfl.protocols.session.pad_agreement import agree_on_pads
from securevfl.protocols.session.pad_store import PadsHeader, PadStore
from securevfl.protocols.vertical.batches import PartyBatches
from securevfl.protocols.vertical.program import MadeAhead, Training
from securevfl.runtime.costs import SETUP


@dataclass(frozen=True, eq=False)
class Block:
    """One party's rounds, agreed and computed before any of them.

    Attributes:
        training: whose.
        agreement: what the parties told each other.
        widths: of the job.
        batches: its rows, by round.
        units: of its columns, shape (P,).
        schedule: its rounds.
        scales: of its steps.
        matrices: by group of rounds.
    """

    training: Training
    agreement: Agreement
    widths: Widths
    batches: Sequence[Batch]
    units: FloatArray
    schedule: Schedule
    scales: Scales
    matrices: Mapping[int, Matrices]

    @classmethod
    async def of(cls, training: Training) -> "Block":
        """Agree with the others, and compute all that is known before.

        Raises:
            PeerError: a peer broke the protocol or is gone.
            RangeExceeded: fixed point has no room for the job.
        """
        party, plan, part = training.party, training.plan, training.part
        async with party.costs.compute(SETUP):
            units = column_units(part.inputs)
        agreement = await agree(party, plan.hash, part.inputs / units, len(part.held_out))
        widths = Widths.of(plan, agreement, None)
        async with party.costs.compute(SETUP):
            batches = PartyBatches(plan, training.workplace.data, part.inputs)
            rows = [batches.at(each) for each in range(plan.rounds)]
            schedule = _schedule(training, agreement, rows, units)
            scales = schedule.scales(widths)
            matrices = schedule.matrices(widths, scales)
        return cls(training, agreement, widths, rows, units, schedule, scales, matrices)

    @property
    def owners(self) -> tuple[str, ...]:
        """Whose shares this party holds."""
        party = self.training.party
        return tuple(each.owner for each in links_of(party) if each.holder == party.name)

    async def made(self, first: int, held: Mapping[str, RingArray]) -> Pads:
        """Make what all rounds from one on need.

        Args:
            first: the first round.
            held: where it is not 0: by owner, the shares that this party holds, of θ and ζ.

        Raises:
            PeerError: a peer broke the protocol or is gone.
            RangeExceeded: products that the ring has no room for.
        """
        links = await Links.establish(
            self.training.party,
            self.training.plan,
            self.agreement,
            self.schedule,
            widths=self.widths,
            scales=self.scales,
            matrices=self.matrices,
        )
        if first:
            links.go_on(held)
        return await links.make(self.schedule.rounds[first:])

    async def obtained(
        self, first: int, held: Mapping[str, RingArray]
    ) -> tuple[Pads, Mapping[int, Matrices], Scales]:
        """Pads of all rounds from one on, with the matrices that they were made with.

        Those of an earlier run where all parties have them, which are gone from there when this
        returns. A job that goes on drops them and makes new ones.

        Args:
            first: the first round.
            held: as `made` takes it.

        Raises:
            PeerError: a peer broke the protocol, or holds other pads than this party.
            DataError: pads that are not those of this job, party and data.
            RangeExceeded: products that the ring has no room for.
        """
        training = self.training
        party, plan, store = training.party, training.plan, training.workplace.pads
        if store is not None and training.workplace.resume is not None:
            store.discard()
        of, header = (plan.hash.hex(), plan.facts.names, self._foundation()), None
        if store is not None and store.there:
            # Whoever has no use for its own says so before others take theirs.
            header = store.usable(*of)
        batch = await agree_on_pads(party, None if header is None else header.batch)
        if store is None or header is None:
            return await self.made(first, held), self.matrices, self.scales
        stored = store.take(batch, *of)
        await party.costs.bring(stored.costs)
        return pads_from(stored.arrays, self.owners, self.matrices)

    def _foundation(self) -> str:
        digests = self.training.plan.facts.row_digests
        return foundation(self.schedule.rounds, self.widths, self.matrices, digests)

    def keep(self, store: PadStore, batch: str, pads: Pads) -> MadeAhead:
        """Write pads for a later run.

        Raises:
            DataError: they cannot be written.
        """
        party, plan = self.training.party, self.training.plan
        size = store.keep(
            pad_store.Pads(
                PadsHeader(
                    batch=batch,
                    job_hash=plan.hash.hex(),
                    party=party.name,
                    parties=plan.facts.names,
                    first_round=0,
                    rounds=plan.rounds,
                ),
                self._foundation(),
                arrays_of(pads, self.matrices, self.scales),
                party.costs.made_ahead(),
            )
        )
        return MadeAhead(store.path, size, plan.rounds)


async def make_ahead(training: Training) -> MadeAhead:
    """One party's part of making all pads of a job before it, and writing them.

    Raises:
        ConfigError: there is nowhere to write them.
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: fixed point has no room for the job.
        DataError: they cannot be written.
    """
    store, party = training.workplace.pads, training.party
    if store is None:
        raise ConfigError("pads made ahead: nowhere to write them")
    block = await Block.of(training)
    batch = await agree_on_pads(party, None)
    pads = await block.made(0, {})
    party.costs.end_round()
    return block.keep(store, batch, pads)


def _schedule(
    training: Training, agreement: Agreement, batches: Sequence[Batch], units: FloatArray
) -> Schedule:
    plan, part = training.plan, training.part
    columns = sum((agreement.own_columns, *agreement.columns.values()))
    steps = plan.steps(part.model, part.inputs, columns)
    intercept = part.model.intercept
    return Schedule(batches, steps, units, l2=plan.l2, intercept=intercept)
