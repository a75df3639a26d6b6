"""Everything that rounds use up: made now, or by an earlier run that wrote it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securevfl.arrays import RingArray
from securevfl.errors import ConfigError, DataError
from securevfl.models.losses import Squared, TaylorLogistic
from securevfl.protocols.blind.ahead import Links, Pads
from securevfl.protocols.blind.at_rest import (
    Arrays,
    arrays_of,
    expected_bytes,
    foundation,
    matrices_from,
    pads_from,
)
from securevfl.protocols.blind.block import Block, Whitening
from securevfl.protocols.blind.coming import Coming
from securevfl.protocols.blind.fourier import FourierResiduals
from securevfl.protocols.blind.links import computing_parties, owners_held_by
from securevfl.protocols.blind.phase_pads import PhasePads
from securevfl.protocols.blind.residuals import (
    AffineResiduals,
    LogisticResiduals,
    ResidualShares,
)
from securevfl.protocols.blind.schedule import Matrices, Round, Scales
from securevfl.protocols.session import pad_store
from securevfl.protocols.session.pad_agreement import agree_on_pads
from securevfl.protocols.session.pad_store import PadsHeader
from securevfl.protocols.vertical.program import MadeAhead, Training


@dataclass(frozen=True, eq=False)
class Supplies:
    """One party's.

    Attributes:
        pads: of its links.
        residuals: its side of residuals, where it is one of the two that compute them.
        matrices: those that pads were made with, by group of rounds.
        scales: of the same.
        whitening: that they are in.
        coming: what is still to be made; None where all is there.
    """

    pads: Pads
    residuals: ResidualShares | None
    matrices: Mapping[int, Matrices]
    scales: Scales
    whitening: Whitening
    coming: Coming | None = None

    def prepare(self) -> None:
        """What rounds should not have to do."""
        for each in self.matrices.values():
            each.prepare()


async def supplies_of(block: Block, first: int, held: Mapping[str, RingArray]) -> Supplies:
    """Those of all rounds from one on.

    What an earlier run wrote is used where all parties have it, and is gone from there when this
    returns. A job that goes on drops it and makes new ones.

    Args:
        block: the party's rounds.
        first: the first to come.
        held: where that is not 0: by owner, the shares that this party holds, of θ and ζ.

    Raises:
        PeerError: a peer broke the protocol, or holds other pads than this party.
        DataError: pads that are not those of this job, party and data.
        RangeExceeded: products that the ring has no room for.
    """
    training = block.training
    party, plan, store = training.party, training.plan, training.workplace.pads
    if store is not None and training.workplace.resume is not None:
        store.discard()
    of, header = (plan.hash.hex(), plan.facts.names, foundation(block)), None
    if store is not None and store.there:
        # Whoever has no use for its own says so before others take theirs.
        header = store.usable(*of)
    batch = await agree_on_pads(party, None if header is None else header.batch)
    if store is None or header is None:
        return await _made(block, first, held)
    stored = store.take(batch, *of)
    await party.costs.bring(stored.costs)
    return Supplies(
        pads_from(stored.arrays, owners_held_by(party)),
        await _residuals(block, stored.arrays, ()),
        *matrices_from(stored.arrays, list(block.matrices)),
    )


async def make_ahead(training: Training) -> MadeAhead:
    """One party's part of making everything before a job, and writing it.

    Raises:
        ConfigError: there is nowhere to write it.
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: fixed point has no room for the job.
        DataError: it cannot be written.
    """
    party, plan, store = training.party, training.plan, training.workplace.pads
    if store is None:
        raise ConfigError("ahead: nowhere to write pads to, and to keep their keys")
    if plan.job.exchange.ahead_rounds is not None:
        raise ConfigError("ahead: all rounds are made before; drop ahead_rounds")
    block = await Block.of(training)
    store.require_room(expected_bytes(block))
    batch = await agree_on_pads(party, None)
    made = await _made(block, 0, {})
    party.costs.end_round()
    header = PadsHeader(
        batch=batch,
        job_hash=plan.hash.hex(),
        party=party.name,
        parties=plan.facts.names,
        first_round=0,
        rounds=plan.rounds,
    )
    arrays = {
        **arrays_of(made.pads, made.matrices, made.scales, made.whitening),
        **({} if made.residuals is None else made.residuals.arrays()),
    }
    costs = party.costs.made_ahead()
    size = store.keep(pad_store.Pads(header, foundation(block), arrays, costs))
    return MadeAhead(store.path, size, plan.rounds)


async def _made(block: Block, first: int, held: Mapping[str, RingArray]) -> Supplies:
    size = block.training.plan.job.exchange.ahead_rounds
    blocks = block.schedule.blocks(first, size)
    links = await Links.establish(
        block.training.party,
        block.training.plan,
        block.agreement,
        block.schedule,
        blocks=blocks,
        widths=block.widths,
        scales=block.scales,
        matrices=block.matrices,
    )
    if first:
        _require_held(block, held)
        links.go_on(held)
    residuals = await _residuals(block, None, blocks)
    coming = Coming(links, residuals, blocks)
    pads = await coming.first()
    return Supplies(pads, residuals, block.matrices, block.scales, block.whitening, coming)


async def _residuals(
    block: Block, made: Arrays | None, blocks: Sequence[Sequence[Round]]
) -> ResidualShares | None:
    """This party's side of residuals: with what was made, or with a key to make it."""
    party, plan, widths = block.training.party, block.training.plan, block.widths
    two = computing_parties(party)
    if party.name not in two:
        return None
    if isinstance(plan.loss, Squared):
        return AffineResiduals(plan.loss, widths.shared_residual_bits)
    phases = block.phases
    assert phases is not None  # noqa: S101
    (peer,) = {*two} - {party.name}
    first = party.holds_labels
    if made is not None:
        pads = PhasePads.of_arrays(made)
        side = FourierResiduals(party, peer, phases, None, first=first, pads=pads)
    else:
        visits = [sum(each.rows for each in rounds) for rounds in blocks]
        side = await FourierResiduals.establish(party, peer, phases, visits, first=first)
    return LogisticResiduals(side, TaylorLogistic())


def _require_held(block: Block, held: Mapping[str, RingArray]) -> None:
    """Check the shares that this party goes on with.

    Raises:
        DataError: they are not of these parties, or of other numbers of columns.
    """
    columns = block.agreement.columns
    due = {name: (2, columns[name]) for name in owners_held_by(block.training.party)}
    if {name: shares.shape for name, shares in held.items()} != due:
        raise DataError("session state: not the shares that this party keeps")
